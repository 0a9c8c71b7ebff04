// All of HumanEval in the sandbox: what it was made with passes, and what the graders of others let through does not.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "data/prep/records.h"
#include "sandbox/code_task.h"

namespace nmoe::test {
namespace {

class HumanEvalTest : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path path = fs::path(NMOE_SOURCE_DIR) / "../shared/evals/humaneval/test.jsonl.zst";
    if (!fs::exists(path)) GTEST_SKIP() << "no " << path;
    // Records of JSON lines are texts of one member each: five times over the file, a member at a time.
    const auto member = [&](const char* name) {
      std::vector<std::string> texts;
      const auto records = open_records(path, {.text_field = name});
      for (Record record; records->next(record);) texts.push_back(record.text);
      return texts;
    };
    const auto ids = member("task_id"), prompts = member("prompt"), names = member("entry_point"),
               tests = member("test"), solutions = member("canonical_solution");
    ASSERT_EQ(ids.size(), 164u);
    for (size_t i = 0; i < ids.size(); ++i) {
      tasks_.push_back({.id = ids[i],
                        .prompt = prompts[i],
                        .entry_point = names[i],
                        .test = tests[i],
                        .canonical_solution = solutions[i]});
    }
  }

  // The tasks whose completion passes, each with why the others do not.
  int64_t count_passed(const std::function<std::string(const CodeTask&)>& completion, std::string& others) {
    const Sandbox sandbox({.seconds = 30});  // for machines that are busy; a solution takes some milliseconds
    std::atomic<size_t> next{0};
    std::atomic<int64_t> num_passed{0};
    std::mutex mutex;
    const auto work = [&] {
      for (size_t i = next++; i < tasks_.size(); i = next++) {
        const CodeVerdict verdict = judge_completion(sandbox, tasks_[i], completion(tasks_[i]));
        if (verdict.passed) {
          ++num_passed;
        } else {
          const std::lock_guard lock(mutex);
          others += fmt::format("{}: {}\n", tasks_[i].id, verdict.why);
        }
      }
    };
    std::thread other(work);
    work();
    other.join();
    return num_passed;
  }

  std::vector<CodeTask> tasks_;
};

TEST_F(HumanEvalTest, EverySolutionPasses) {
  std::string others;
  EXPECT_EQ(count_passed([](const CodeTask& task) { return task.canonical_solution; }, others), 164);
  EXPECT_EQ(others, "");
}

TEST_F(HumanEvalTest, NoEmptyCompletionPasses) {
  std::string others;
  EXPECT_EQ(count_passed([](const CodeTask&) { return std::string(); }, others), 0);
}

// As a grader that strips a completion makes it.
TEST_F(HumanEvalTest, NoSolutionWithoutItsIndentationPasses) {
  std::string others;
  EXPECT_EQ(count_passed(
                [](const CodeTask& task) {
                  return task.canonical_solution.substr(task.canonical_solution.find_first_not_of(" \t\n"));
                },
                others),
            0);
}

TEST_F(HumanEvalTest, NoEarlyEndPasses) {
  std::string others;
  EXPECT_EQ(count_passed([](const CodeTask&) { return std::string("    import os\n    os._exit(0)\n"); }, others), 0);
  EXPECT_EQ(others.find("Error"), std::string::npos) << others;
}

}  // namespace
}  // namespace nmoe::test
