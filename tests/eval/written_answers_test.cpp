// Tasks whose answers are written, by a model with random weights.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/json.h"
#include "eval/evaluate.h"
#include "eval/scored_groups.h"
#include "infer/load_model.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class WrittenAnswersTest : public test::TempDirTest {
 protected:
  struct How {
    int64_t slots = 3;
    EvalJournal* journal = nullptr;
    int64_t fail_after = 0;  // items; 0: never
    const Sandbox* sandbox = nullptr;
    DraftOptions draft = {};
  };
  EvalReport run(const std::string& keys, const How& how) const {
    const auto tokenizer = byte_tokenizer();
    InferenceEngine engine(
        random_cached_model(
            test::random_config(), tokenizer,
            {.num_threads = 1,
             .cached = {.num_slots = how.slots, .capacity = kContext, .max_drafts = most_drafts(how.draft)}}),
        how.draft);
    const TokenRules rules{.tokenizer = tokenizer.get(), .begin_ids = {tokenizer->eos_id()}, .max_tokens = kContext};
    ThreadPool pool(2);
    const EvalOptions options{
        .suites = {parse_task_suite("[tasks.t]\ntype = \"generation\"\nfile = \"rows.jsonl\"\n" + keys, "mine.toml")},
        .data_dir = dir_,
        .progress = [&](const std::string&, int64_t done, int64_t) {
          if (done == how.fail_after) throw runtime_error("killed", "");
        }};
    return evaluate({.scorer = {}, .engine = [&]() -> InferenceEngine& { return engine; }, .sandbox = how.sandbox},
                    rules, options, pool, how.journal);
  }
  void write_questions(int count) const {
    std::string rows;
    for (int i = 0; i < count; ++i)
      rows += fmt::format("{{\"question\": \"{} and {}?\", \"answer\": \"so #### {}\"}}\n", i, i % 3, i);
    write_file_atomically(dir_ / "rows.jsonl", rows);
  }

  static constexpr int64_t kContext = 48;
};

TEST_F(WrittenAnswersTest, DependOnNothingBeside) {
  write_questions(9);
  const std::string keys = "max_tokens = 6\nsamples = 2\ntemperature = 1.5\ntop_p = 0.9\n";
  const EvalReport report = run(keys, {.slots = 1});
  const std::string expected = item_lines(report);
  EXPECT_EQ(item_lines(run(keys, {.slots = 7})), expected);
  EXPECT_NE(item_lines(run(keys + "stop = \"#\"\n", {})), "");
  for (const int64_t fail_after : {2, 5}) {
    EvalJournal journal(dir_ / "out", "of this model");
    EXPECT_EQ(std::string(error_of([&] { run(keys, {.journal = &journal, .fail_after = fail_after}); }).what()),
              "killed");
  }
  EvalJournal journal(dir_ / "out", "of this model");
  const EvalReport resumed = run(keys, {.journal = &journal});
  EXPECT_EQ(item_lines(resumed), expected);
  EXPECT_GE(resumed.tasks[0].resumed, 4);

  std::set<std::string> texts;
  for (const ItemOutcome& outcome : report.tasks[0].outcomes) {
    ASSERT_EQ(outcome.result.answers.size(), 2u);
    for (const WrittenAnswer& answer : outcome.result.answers) texts.insert(answer.text);
  }
  EXPECT_GT(texts.size(), 12u);  // of 18: samples have seeds of their own
  EXPECT_EQ(report.tasks[0].texts, 18);
  std::vector<std::string> tags;
  for (const auto& [tag, value] : report_metrics(report)) tags.push_back(tag);
  EXPECT_EQ(tags, (std::vector<std::string>{"eval/mine/t/acc", "eval/mine/t/centered", "eval/mine/t/flexible",
                                            "eval/mine/t/n"}));
}

TEST_F(WrittenAnswersTest, OfGuessesItIsRecordedHowManyWereRight) {
  write_questions(9);
  const std::string keys = "max_tokens = 20\n";
  const EvalReport plain = run(keys, {}), drafted = run(keys, {.draft = {.kind = DraftKind::kNgram, .tokens = 2}});
  EXPECT_EQ(item_lines(drafted), item_lines(plain));
  const DraftCounts& drafts = drafted.tasks[0].drafts;
  ASSERT_GT(drafts.num_accepted(), 0);
  std::map<std::string, double> recorded;
  for (const auto& [tag, value] : report_metrics(drafted)) recorded[tag] = value;
  const auto ratio = [](int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); };
  EXPECT_EQ(recorded.at("eval/mine/t/acceptance_length"), 1.0 + ratio(drafts.num_accepted(), drafts.steps));
  EXPECT_EQ(recorded.at("eval/mine/t/accepted_1"), ratio(drafts.accepted[0], drafts.reached[0]));
  EXPECT_EQ(recorded.at("eval/mine/t/accepted_2"), ratio(drafts.accepted[1], drafts.reached[1]));
  EXPECT_FALSE(recorded.contains("eval/mine/t/accepted_3"));
  EXPECT_EQ(std::ssize(recorded), std::ssize(report_metrics(plain)) + 3);
  const auto json = parse_json<nlohmann::json>(report_json(drafted)).at("tasks").at(0).at("drafts");
  EXPECT_EQ(json.at("accepted_tokens"), drafts.num_accepted());
  EXPECT_EQ(json.at("conditional_acceptance_rates").size(), 2u);
  EXPECT_FALSE(parse_json<nlohmann::json>(report_json(plain)).at("tasks").at(0).contains("drafts"));
}

TEST_F(WrittenAnswersTest, AreCutWherePromptsLeaveRoom) {
  write_file_atomically(dir_ / "rows.jsonl",
                        fmt::format("{{\"question\": \"{}\", \"answer\": \"1\"}}\n", std::string(100, 'q')));
  const TaskReport task = run("max_tokens = 15\n", {}).tasks[0];
  EXPECT_EQ(task.cropped, 1);
  EXPECT_EQ(task.tokens, kContext - 15);
  ASSERT_EQ(task.outcomes[0].result.answers.size(), 1u);
  const WrittenAnswer& answer = task.outcomes[0].result.answers[0];
  EXPECT_EQ(answer.tokens, 15);
  EXPECT_TRUE(answer.cut);
  EXPECT_EQ(task.cut, 1);
  EXPECT_EQ(task.accuracy(), 0.0);
  EXPECT_TRUE(contains(error_of([&] { run("max_tokens = 48\n", {}); }).remedy(), "--context"));
}

// A comment may go on with whatever the model writes; checks that fail, and none, are no pass.
TEST_F(WrittenAnswersTest, ProgramsAreRunInTheSandbox) {
  const auto row = [](const char* check) {
    return nlohmann::json({{"task_id", "t/0"},
                           {"prompt", "def f():\n    return 1\n#"},
                           {"entry_point", "f"},
                           {"test", check},
                           {"canonical_solution", ""}})
               .dump() +
           "\n";
  };
  write_file_atomically(dir_ / "rows.jsonl",
                        row("def check(f):\n    assert f() == 1\n") + row("def check(f):\n    assert f() == 2\n"));
  std::unique_ptr<const Sandbox> sandbox;
  try {
    sandbox = std::make_unique<const Sandbox>(SandboxOptions{.seconds = 30});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const EvalReport report =
      run("metric = \"code\"\nmax_tokens = 1\nsamples = 2\ntemperature = 0.01\n", {.sandbox = sandbox.get()});
  const TaskReport& task = report.tasks[0];
  EXPECT_EQ(task.accuracy(), 0.5);
  EXPECT_EQ(task.correct, 1);
  for (const ItemOutcome& outcome : task.outcomes) {
    EXPECT_EQ(outcome.right, std::vector<bool>(2, outcome.row == 0));
    EXPECT_EQ(outcome.result.answers[0].fault, outcome.row == 0 ? "" : "AssertionError");
  }
  const auto json = parse_json<nlohmann::json>(report_json(report)).at("tasks").at(0);
  EXPECT_EQ(json.at("pass_at"), nlohmann::json({{"1", 0.5}}));
  EXPECT_EQ(json.at("metric"), "code");
}

TEST(TaskReport, OfSeveralSamples) {
  TaskReport report{.suite = "s", .task = {.name = "t", .kind = TaskKind::kGeneration}};
  report.task.generation = {.metric = AnswerMetric::kCode, .samples = 4};
  report.items = 3;
  for (const int right : {0, 1, 4}) {
    std::vector<bool> of_item(4, false);
    for (int i = 0; i < right; ++i) of_item[static_cast<size_t>(i)] = true;
    report.outcomes.push_back({.right = of_item});
    report.credit += right / 4.0;
    report.credit_squares += right * right / 16.0;
  }
  EXPECT_DOUBLE_EQ(report.accuracy(), 1.25 / 3);
  EXPECT_DOUBLE_EQ(report.pass_at(1), report.accuracy());
  EXPECT_DOUBLE_EQ(report.pass_at(2), (0 + 0.5 + 1) / 3);
  const double mean = 1.25 / 3;
  const double squares = mean * mean + std::pow(0.25 - mean, 2) + std::pow(1 - mean, 2);
  EXPECT_DOUBLE_EQ(report.standard_error(), std::sqrt(squares / 2 / 3));
}

}  // namespace
}  // namespace nmoe
