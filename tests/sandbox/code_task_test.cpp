#include "sandbox/code_task.h"

#include <gtest/gtest.h>

#include <string>

#include "sandbox/test_sandbox.h"
#include "support/errors.h"

namespace nmoe::test {
namespace {

CodeTask task() {
  return {.id = "Test/0",
          .prompt = "def twice(x):\n    \"\"\" 2 x \"\"\"\n",
          .entry_point = "twice",
          .test = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0.5) == 1\n",
          .canonical_solution = "    return 2 * x\n"};
}

CodeVerdict judge(std::string_view completion) { return judge_completion(sandbox(), task(), completion); }

TEST(CodeTaskTest, ProgramsAreTheTextsAsTheyAre) {
  EXPECT_EQ(code_program(task(), "    return 2 * x", "abc"),
            "def twice(x):\n    \"\"\" 2 x \"\"\"\n    return 2 * x\n"
            "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0.5) == 1\n\n"
            "check(twice)\n__import__(\"os\").write(1, b\"\\nabc\\n\")\n");
}

TEST(CodeTaskTest, WhatIsRightPasses) {
  EXPECT_TRUE(judge("    return 2 * x\n").passed);
  EXPECT_TRUE(judge("    print('on the way', end='')\n    return x + x").passed);
  EXPECT_TRUE(judge("    return x + x\nimport sys, io\nsys.stdout = io.StringIO()").passed);
  EXPECT_TRUE(judge("    return x + x\ndef print(*args): raise ValueError").passed);
}

TEST(CodeTaskTest, WhatIsWrongSaysWhy) {
  EXPECT_FALSE(judge("").passed);
  EXPECT_TRUE(contains(judge("").why, "AssertionError"));
  EXPECT_TRUE(contains(judge("return 2 * x\n").why, "SyntaxError"));
  EXPECT_TRUE(contains(judge("  return 2 * x\n    return 3").why, "IndentationError"));
  EXPECT_TRUE(contains(judge("    return y\n").why, "NameError"));
  EXPECT_EQ(judge("    return 2 * x\nimport os\nos.write(1, b'x' * 100000)").why, "output limit");
}

// An end before the checks, whatever it looks like.
TEST(CodeTaskTest, EndingEarlyFails) {
  for (const char* completion : {
           "    import os; os._exit(0)\n",
           "    return 2 * x\nimport os\nos._exit(0)\n",
           "    return 2 * x\nimport sys\nsys.exit(0)\n",
           "    return 2 * x\nraise SystemExit\n",
           "    return 2 * x\nimport os\nos.write(1, b'\\n0123456789abcdef0123456789abcdef\\n')\nos._exit(0)\n",
           "    return 2 * x\nimport os, sys\nos.execv(os.path.realpath(sys.executable), ['python3', '-c', ''])\n",
       }) {
    const CodeVerdict verdict = judge(completion);
    EXPECT_FALSE(verdict.passed) << completion;
    EXPECT_EQ(verdict.why, "ended early") << completion;
  }
}

TEST(CodeTaskTest, ExchangingTheChecksFails) {
  EXPECT_FALSE(judge("    return 0\ndef check(candidate): pass\n").passed);
  EXPECT_FALSE(judge("    return 0\nimport builtins\nbuiltins.check = lambda candidate: None\n").passed);
  EXPECT_FALSE(judge("    global check\n    check = lambda candidate: None\n").passed);
  EXPECT_FALSE(judge("    return 0\nimport builtins\nbuiltins.AssertionError = None\n").passed);
}

TEST(CodeTaskTest, ReadsALineOfJson) {
  const CodeTask task = parse_code_task(
      R"({"task_id": "A/1", "prompt": "p", "entry_point": "f_1", "test": "t", "canonical_solution": " s"})",
      "a, line 1");
  EXPECT_EQ(task.id, "A/1");
  EXPECT_EQ(task.canonical_solution, " s");
  const auto refused = [](std::string json) {
    return std::string(error_of([&] { parse_code_task(json, "a.jsonl, line 2"); }).what());
  };
  EXPECT_TRUE(contains(refused("[]"), "a.jsonl, line 2: there is no text 'task_id'"));
  EXPECT_TRUE(contains(refused("{"), "a.jsonl, line 2: "));
  EXPECT_TRUE(contains(refused(R"({"task_id": 1})"), "there is no text 'task_id'"));
  EXPECT_TRUE(contains(
      refused(R"({"task_id": "A", "prompt": "p", "entry_point": "f)\n#", "test": "t", "canonical_solution": "s"})"),
      "not the name of a function"));
}

// Against the quotient of binomial coefficients, counted out.
TEST(CodeTaskTest, PassAtK) {
  const auto choose = [](int64_t n, int64_t k) {
    double ways = 1;
    for (int64_t i = 1; i <= k; ++i) ways = ways * static_cast<double>(n - k + i) / static_cast<double>(i);
    return n < k ? 0.0 : ways;
  };
  for (int64_t n = 1; n <= 12; ++n) {
    for (int64_t c = 0; c <= n; ++c) {
      for (int64_t k = 1; k <= n; ++k) {
        EXPECT_NEAR(pass_at_k(n, c, k), 1 - choose(n - c, k) / choose(n, k), 1e-12) << n << " " << c << " " << k;
      }
    }
  }
  EXPECT_EQ(pass_at_k(1, 1, 1), 1.0);
  EXPECT_EQ(pass_at_k(200, 0, 100), 0.0);
  EXPECT_NEAR(pass_at_k(200, 10, 1), 0.05, 1e-12);
}

}  // namespace
}  // namespace nmoe::test
