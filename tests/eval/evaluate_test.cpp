// Suites over a model whose probabilities are a table.
#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/json.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

// A bigram model of bytes: behind any byte a digit d comes with probability (d + 1) / 64, "y" with 1 / 4 but behind "?"
// with 1 / 2, and any other with 1 / 1024. The likeliest is "y".
class BigramScorer final : public Scorer {
 public:
  static double nats_of(int32_t before, int32_t token) {
    if (token >= '0' && token <= '9') return -std::log(static_cast<double>(token - '0' + 1) / 64);
    if (token == 'y') return -std::log(before == '?' ? 0.5 : 0.25);
    return -std::log(1.0 / 1024);
  }
  int64_t max_tokens() const override { return 64; }
  void score(std::span<const std::vector<ScoredText>* const> groups,
             const std::function<void(size_t, std::span<const TextScore>)>& done) override {
    for (size_t i = groups.size(); i-- > 0;) {  // not in their order
      std::vector<TextScore> scores;
      for (const ScoredText& text : *groups[i]) {
        TextScore& score = scores.emplace_back();
        for (auto at = static_cast<size_t>(text.begin); at < text.tokens.size(); ++at) {
          score.nats += nats_of(text.tokens[at - 1], text.tokens[at]);
          score.greedy = score.greedy && text.tokens[at] == 'y';
          ++score.tokens;
        }
      }
      ++scored_groups;
      if (scored_groups == fail_at) throw runtime_error("killed", "");
      done(i, scores);
    }
  }
  int64_t computed_tokens() const override { return 0; }

  int64_t scored_groups = 0;
  int64_t fail_at = 0;
};

class EvaluateTest : public test::TempDirTest {
 protected:
  void write(const std::string& name, std::string_view text) const { write_file_atomically(dir_ / name, text); }
  EvalReport run(const std::string& tasks, EvalJournal* journal = nullptr, int64_t limit = 0) {
    const auto tokenizer = byte_tokenizer();
    const TokenRules rules{.tokenizer = tokenizer.get(), .begin_ids = {tokenizer->eos_id()}, .max_tokens = max_tokens_};
    ThreadPool pool(2);
    const EvalOptions options{
        .suites = {parse_task_suite(tasks, "suite.toml")}, .data_dir = dir_, .limit = limit, .progress = {}};
    return evaluate({.scorer = [&]() -> Scorer& { return scorer_; }}, rules, options, pool, journal);
  }

  BigramScorer scorer_;
  int64_t max_tokens_ = 64;
};

constexpr const char* kChoices = "[tasks.c]\ntype = \"multiple_choice\"\nfile = \"c.jsonl\"\nbaseline = 50\n";

TEST_F(EvaluateTest, KnownLosses) {
  // By sum "9" (4/64... the table's best digit) beats "11"; per token and per character too.
  write("c.jsonl", R"({"query": "a", "choices": ["1", "9"], "gold": 1})");
  const EvalReport report = run(kChoices);
  const TaskReport& task = report.tasks.at(0);
  ASSERT_EQ(task.outcomes.size(), 1u);
  const auto& scores = task.outcomes[0].result.scores;
  EXPECT_DOUBLE_EQ(scores[0].nats, std::log(32.0));
  EXPECT_DOUBLE_EQ(scores[1].nats, std::log(6.4));
  EXPECT_EQ(scores[0].tokens, 1);
  EXPECT_EQ(task.accuracy(), 1.0);
  EXPECT_EQ(task.outcomes[0].result.lengths, (std::vector<int64_t>{4, 4}));  // the end of a document, "a", " ", digit
}

TEST_F(EvaluateTest, WhatDecides) {
  // Sum: "9" has 1.86 nats, "yyy" 4.16. Per token and character "yyy" has 1.39. "é" is one character of two tokens.
  write("c.jsonl", "{\"query\": \"a\", \"choices\": [\"yyy\", \"9\", \"\\u00e9\"], \"gold\": 1}");
  const TaskReport by_token = run(kChoices).tasks[0];
  EXPECT_EQ(by_token.outcomes[0].choice, 0);
  EXPECT_EQ(by_token.accuracy_by(ChoiceScore::kToken), 0.0);
  EXPECT_EQ(by_token.accuracy_by(ChoiceScore::kSum), 1.0);
  EXPECT_EQ(by_token.accuracy_by(ChoiceScore::kCharacter), 0.0);
  EXPECT_EQ(run(std::string(kChoices) + "score = \"sum\"\n").tasks[0].accuracy(), 1.0);
}

TEST_F(EvaluateTest, TheFirstOfEqualsIsChosen) {
  write("c.jsonl", R"({"query": "a", "choices": ["3", "3", "2"], "gold": 0}
{"query": "a", "choices": ["2", "3", "3"], "gold": 2}
)");
  const TaskReport task = run(kChoices).tasks[0];
  EXPECT_EQ(task.correct, 1);
  for (const ItemOutcome& outcome : task.outcomes) EXPECT_EQ(outcome.choice, outcome.row == 0 ? 0 : 1);
}

TEST_F(EvaluateTest, OnlyWhatDiffersIsScored) {
  // Choices share "y", schemas end alike.
  write("c.jsonl", R"({"query": "a", "choices": ["y1", "y22"], "gold": 0})");
  const auto choices = run(kChoices).tasks[0].outcomes[0].result;
  EXPECT_EQ(choices.scores[0].tokens, 1);
  EXPECT_EQ(choices.scores[1].tokens, 2);
  write("s.jsonl", R"({"context_options": ["is it?", "it is"], "continuation": "y7", "gold": 0})");
  const TaskReport schema = run("[tasks.s]\ntype = \"schema\"\nfile = \"s.jsonl\"\ndelimiter = \"\"\n").tasks[0];
  EXPECT_EQ(schema.outcomes[0].result.scores[0].tokens, 2);
  EXPECT_DOUBLE_EQ(schema.outcomes[0].result.scores[0].nats, std::log(2.0) + std::log(8.0));
  EXPECT_DOUBLE_EQ(schema.outcomes[0].result.scores[1].nats, std::log(4.0) + std::log(8.0));
  EXPECT_EQ(schema.correct, 1);
  // One choice is how the other begins: a token of each is scored all the same.
  write("c.jsonl", R"({"query": "a", "choices": ["5", "55"], "gold": 0})");
  EXPECT_EQ(run(kChoices).tasks[0].outcomes[0].result.scores[0].tokens, 1);
}

TEST_F(EvaluateTest, GreedyAnswersAndTheMean) {
  write("l.jsonl", R"({"context": "q", "continuation": "yy"}
{"context": "q", "continuation": "y1"}
{"context": "q", "continuation": "y"}
{"context": "q ", "continuation": "yyy"}
)");
  write("c.jsonl", R"({"query": "a", "choices": ["1", "9"], "gold": 1}
{"query": "a", "choices": ["1", "9"], "gold": 0}
)");
  const EvalReport report =
      run(std::string("mean = \"M\"\n") + kChoices +
          "baseline_v2 = 75\n[tasks.l]\ntype = \"language_modeling\"\nfile = \"l.jsonl\"\ndelimiter "
          "= \"?\"\n");
  EXPECT_EQ(report.tasks[1].accuracy(), 0.75);
  EXPECT_DOUBLE_EQ(report.tasks[1].standard_error(), std::sqrt(0.75 * 0.25 / 3));
  EXPECT_EQ(report.tasks[0].centred(), 0.0);
  EXPECT_EQ(report.tasks[0].centred_v2(), -1.0);  // not clipped
  ASSERT_EQ(report.means.size(), 1u);
  EXPECT_EQ(report.means[0].value, 0.375);
  EXPECT_EQ(report.means[0].value_v2, -0.125);
  EXPECT_DOUBLE_EQ(report.means[0].standard_error, std::sqrt(0.75 * 0.25 / 3 + 4 * 0.25) / 2);
}

TEST_F(EvaluateTest, GroupsHaveAMean) {
  write("c.jsonl", R"({"query": "a", "choices": ["1", "9"], "gold": 1, "s": "x"}
{"query": "a", "choices": ["1", "9"], "gold": 1, "s": "x"}
{"query": "a", "choices": ["1", "9"], "gold": 1, "s": "x"}
{"query": "a", "choices": ["1", "9"], "gold": 0, "s": "y"}
)");
  const TaskReport task = run(std::string(kChoices) + "group = \"s\"\n").tasks[0];
  EXPECT_EQ(task.accuracy(), 0.75);
  EXPECT_EQ(task.macro_accuracy(), 0.5);
}

TEST_F(EvaluateTest, BitsPerByteInWindows) {
  // 100 bytes in windows of 16 tokens: every byte is scored once, whatever the windows.
  write("t.jsonl", fmt::format("{{\"text\": \"{}\"}}\n{{\"text\": \"9\"}}\n", std::string(99, 'y')));
  max_tokens_ = 16;
  const TaskReport task = run("[tasks.t]\ntype = \"text\"\nfile = \"t.jsonl\"\n").tasks[0];
  EXPECT_EQ(task.scored_bytes, 100);
  EXPECT_EQ(task.scored_tokens, 100);
  EXPECT_EQ(task.items, 8);
  EXPECT_NEAR(task.bits_per_byte(), (99 * 2 + std::log2(6.4)) / 100, 1e-12);
}

TEST_F(EvaluateTest, LongTextsLoseTheirBeginning) {
  write("c.jsonl", R"({"query": "a long question?", "choices": ["y1", "22", "333"], "gold": 0})");
  max_tokens_ = 6;
  const ItemResult cropped = run(kChoices).tasks[0].outcomes[0].result;
  EXPECT_EQ(cropped.cropped, 3);
  EXPECT_EQ(cropped.lengths, (std::vector<int64_t>{6, 6, 6}));
  EXPECT_EQ(cropped.scores[2].tokens, 3);
  max_tokens_ = 3;
  EXPECT_TRUE(
      contains(error_of([&] { run(kChoices); }).what(), "item 0: 3 tokens have to be scored, and a text may have 3"));
}

TEST_F(EvaluateTest, GoesOnWhereItWasKilled) {
  std::string rows;
  for (int i = 0; i < 40; ++i)
    rows += fmt::format("{{\"query\": \"q{}\", \"choices\": [\"{}\", \"8\"], \"gold\": 0}}\n", i, i % 10);
  write("c.jsonl", rows);
  const std::string expected = item_lines(run(kChoices));
  for (const int64_t fail_at : {1, 14, 9}) {
    scorer_.scored_groups = 0;
    scorer_.fail_at = fail_at;
    EvalJournal journal(dir_ / "out", "of this model");
    EXPECT_EQ(std::string(error_of([&] { run(kChoices, &journal); }).what()), "killed");
  }
  // Half a line was being written.
  const std::string whole = read_file(dir_ / "out/journal.jsonl");
  write("out/journal.jsonl", whole.substr(0, whole.size() - 20));
  scorer_.scored_groups = scorer_.fail_at = 0;
  {
    EvalJournal journal(dir_ / "out", "of this model");
    const EvalReport report = run(kChoices, &journal);
    EXPECT_EQ(item_lines(report), expected);
    EXPECT_EQ(report.tasks[0].resumed, 0 + 13 + 8 - 1);
    EXPECT_EQ(scorer_.scored_groups, 40 - 20);
  }
  EXPECT_TRUE(
      contains(error_of([&] { EvalJournal(dir_ / "out", "of that model"); }).what(), "is of another evaluation"));
  EvalJournal journal(dir_ / "out", "of this model");
  EXPECT_TRUE(contains(error_of([&] { run(kChoices, &journal, 7); }).what(), "has other items of suite/c"));
}

TEST_F(EvaluateTest, ReportsAsJson) {
  write("c.jsonl", R"({"query": "a", "choices": ["1", "9"], "gold": 1})");
  const EvalReport report = run(kChoices);
  const auto json = parse_json<nlohmann::json>(report_json(report));
  EXPECT_EQ(json.at("tasks").at(0).at("task"), "suite/c");
  EXPECT_EQ(json.at("tasks").at(0).at("centred"), 1.0);
  const auto line = parse_json<nlohmann::json>(item_lines(report));
  EXPECT_EQ(line.at("nats").at(1).get<double>(), report.tasks[0].outcomes[0].result.scores[1].nats);  // the bits
  EXPECT_EQ(line.at("correct"), true);
}

}  // namespace
}  // namespace nmoe
