#include "eval/task.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

constexpr std::string_view kTask = "[tasks.mine]\ntype = \"multiple_choice\"\nfile = \"mine.jsonl\"\n";

TEST(TaskSuite, HasDefaults) {
  const TaskSuite suite = parse_task_suite(kTask, "some/mine.toml");
  EXPECT_EQ(suite.name, "mine");
  ASSERT_EQ(suite.tasks.size(), 1u);
  const Task& task = suite.tasks[0];
  EXPECT_EQ(task.prompt, "{query}");
  EXPECT_EQ(task.choices, "choices");
  EXPECT_EQ(task.delimiter, " ");
  EXPECT_EQ(task.score, ChoiceScore::kToken);
  EXPECT_EQ(task.baseline, 0.0);
}

TEST(TaskSuite, KeepsTheOrderOfItsTasks) {
  const TaskSuite core = find_task_suite("core");
  ASSERT_EQ(core.tasks.size(), 22u);
  EXPECT_EQ(core.tasks.front().name, "hellaswag_zeroshot");
  EXPECT_EQ(core.tasks.back().name, "bigbench_language_identification");
  EXPECT_EQ(core.tasks[6].baseline, 0.2);  // commonsense_qa
  EXPECT_DOUBLE_EQ(core.tasks[6].baseline_v2, 0.403);
}

TEST(TaskSuite, EveryBuiltinOneReads) {
  for (const std::string& name : task_suite_names()) EXPECT_FALSE(find_task_suite(name).tasks.empty()) << name;
  const TaskSuite one = find_task_suite("core/piqa");
  ASSERT_EQ(one.tasks.size(), 1u);
  EXPECT_EQ(one.mean, "");
}

TEST(TaskSuite, AnswersAreWritten) {
  const std::string task = "[tasks.t]\ntype = \"generation\"\nfile = \"t.jsonl\"\n";
  const Task numbers = parse_task_suite(task + "stop = \"Q\"\n", "t.toml").tasks[0];
  EXPECT_EQ(numbers.prompt, "{question}");
  EXPECT_EQ(numbers.generation.stops(), std::vector<std::string>{"Q"});
  EXPECT_EQ(pass_counts(numbers.generation), std::vector<int64_t>{1});
  const Task code = find_task_suite("humaneval_sampled").tasks[0];
  EXPECT_EQ(code.prompt, "{prompt}");
  EXPECT_EQ(code.generation.stops().size(), 5u);
  EXPECT_EQ(pass_counts(code.generation), (std::vector<int64_t>{1, 10, 100}));
  for (const auto& [more, what] : {std::pair{"samples = 2", "samples"},
                                   {"metric = \"code\"\nstop = \"x\"", "stop"},
                                   {"score = \"sum\"", "score"}}) {
    const Error error = error_of([&, keys = task + more] { parse_task_suite(keys, "t.toml"); });
    EXPECT_TRUE(contains(error.what(), fmt::format("has {}, which has no effect", what)));
  }
  EXPECT_TRUE(contains(error_of([&] { parse_task_suite(task + "metric = \"exact\"", "t.toml"); }).what(),
                       "\"strict\", \"flexible\" or \"code\""));
}

TEST(TaskSuite, RefusesWhatItDoesNotKnow) {
  struct Case {
    std::string more, what, remedy;
  };
  for (const Case& c :
       {Case{"delimitter = \" \"", "mine.toml:4: unknown key tasks.mine.delimitter", "did you mean delimiter?"},
        Case{"shots = -1", "whole number from 0 to", "correct tasks.mine.shots"},
        Case{"baseline = 100", "from 0 to below 100", "baseline"},
        Case{"score = \"bits\"", "\"token\", \"sum\" or \"character\"", "correct"},
        Case{"answer = \"{x}\"", "has answer, which has no effect in it", "leave it out"},
        Case{"baseline_v2 = 3", "has baseline_v2, which has no effect", "leave it out"},
        Case{"max_tokens = 3", "has max_tokens, which has no effect", "leave it out"},
        Case{"shots_file = \"a\"", "has shots_file, which has no effect", "leave it out"}}) {
    const Error error = error_of([&] { parse_task_suite(std::string(kTask) + c.more, "mine.toml"); });
    EXPECT_TRUE(contains(error.what(), c.what));
    EXPECT_TRUE(contains(error.remedy(), c.remedy));
  }
  EXPECT_TRUE(contains(error_of([] { parse_task_suite("", "no.toml"); }).what(), "there are no tasks"));
  EXPECT_TRUE(contains(error_of([] { find_task_suite("cor"); }).remedy(), "core"));
  EXPECT_TRUE(contains(error_of([] { find_task_suite("core/pica"); }).remedy(), "piqa"));
}

}  // namespace
}  // namespace nmoe
