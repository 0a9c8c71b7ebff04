// The measures of speculation against cases that were counted by hand, its prompts, and that a bench measures what an
// engine does.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/files.h"
#include "bench/speculate_bench.h"
#include "bench/speculation_measures.h"
#include "bench/speculation_prompts.h"
#include "config/load.h"
#include "data/parquet_files.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_run.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

WrittenTurn turn_of(std::vector<int64_t> lengths, double submitted = 0.0, double first = 1.0, double last = 2.0) {
  WrittenTurn turn{.prompt = "p", .category = "c", .lengths = std::move(lengths)};
  for (const int64_t length : turn.lengths) turn.ids.resize(turn.ids.size() + static_cast<size_t>(length), 7);
  turn.submitted_s = submitted;
  turn.first_s = first;
  turn.last_s = last;
  return turn;
}

TEST(SpeculationMeasures, CountedByHand) {
  // Steps of 1, 3, 2, 1 and of 1, 4, 4: 7 tokens in 4 steps and 9 in 3.
  std::vector<WrittenTurn> turns = {turn_of({1, 3, 2, 1}, 0.0, 0.5, 2.5), turn_of({1, 4, 4}, 0.5, 1.5, 3.5)};
  turns[0].drafted = 9, turns[0].accepted = 3;
  turns[1].drafted = 6, turns[1].accepted = 6;
  const SpeculationMeasures measures = measure_speculation(turns);
  EXPECT_EQ(measures.turns, 2);
  EXPECT_EQ(measures.tokens, 16);
  EXPECT_EQ(measures.drafted, 15);
  EXPECT_EQ(measures.accepted, 9);
  EXPECT_DOUBLE_EQ(measures.acceptance_length, (7.0 / 4 + 9.0 / 3) / 2) << "turns count alike, tokens do not";
  EXPECT_EQ(measures.histogram, (std::vector<int64_t>{3, 1, 1, 2}));
  // Of 7 steps 4 are of 2 and more, 3 of 3 and more, 2 of 4.
  EXPECT_EQ(measures.conditional_rates, (std::vector<double>{4.0 / 7, 3.0 / 4, 2.0 / 3}));
  EXPECT_EQ(measures.joint_rates, (std::vector<double>{4.0 / 7, 3.0 / 7, 2.0 / 7}));
  // (7 - 1) / 2 s and (9 - 1) / 2 s.
  EXPECT_DOUBLE_EQ(measures.user_tokens_per_s, 3.5);
  EXPECT_DOUBLE_EQ(measures.median_user_tokens_per_s, 4.0);
  EXPECT_DOUBLE_EQ(measures.first_token_s, 0.75);
  EXPECT_DOUBLE_EQ(output_tokens_per_s(turns), 16 / 3.5) << "from the first submission to the last token";
}

TEST(SpeculationMeasures, LengthsThatDoNotOccurHaveRatesToo) {
  const std::vector<WrittenTurn> turns = {turn_of({1, 1, 4, 1})};
  const SpeculationMeasures measures = measure_speculation(turns);
  EXPECT_EQ(measures.histogram, (std::vector<int64_t>{3, 0, 0, 1}));
  EXPECT_EQ(measures.conditional_rates, (std::vector<double>{0.25, 1.0, 1.0}));
}

TEST(SpeculationMeasures, WithoutGuessesEveryStepIsOneToken) {
  const std::vector<WrittenTurn> turns = {turn_of({1, 1, 1}), turn_of({}), turn_of({1}, 0.0, 1.0, 1.0)};
  const SpeculationMeasures measures = measure_speculation(turns);
  EXPECT_EQ(measures.turns, 2) << "a turn without a token has no length";
  EXPECT_EQ(measures.acceptance_length, 1.0);
  EXPECT_TRUE(measures.conditional_rates.empty());
  EXPECT_EQ(measures.user_tokens_per_s, 2.0) << "a single token has no rate";
  const SpeculationMeasures none = measure_speculation({});
  EXPECT_EQ(none.acceptance_length, 0.0);
  EXPECT_EQ(output_tokens_per_s({}), 0.0);
}

TEST(SpeculationMeasures, TextsThatDifferAreNamed) {
  std::vector<WrittenTurn> plain = {turn_of({1, 2}), turn_of({1, 1})}, drafted = plain;
  EXPECT_FALSE(first_difference(plain, drafted));
  drafted[0].lengths = {1, 1, 1};
  EXPECT_FALSE(first_difference(plain, drafted)) << "steps are no part of a text";
  drafted[1].turn = plain[1].turn = 1;
  drafted[1].ids[1] = 9;
  EXPECT_EQ(first_difference(plain, drafted), "prompt p, turn 2, token 2: 7 and 9");
  drafted[1].ids.pop_back();
  EXPECT_EQ(first_difference(plain, drafted), "prompt p, turn 2, token 2: 7 and the end");
}

TEST(SpeculationPrompts, TheOwnSetHasElevenCategories) {
  std::map<std::string, int> counts;
  std::set<std::string> ids;
  size_t more_turns = 0;
  for (const SpeculationPrompt& prompt : qualitative_prompts()) {
    ++counts[prompt.category];
    ids.insert(prompt.id);
    if (prompt.turns.size() > 1) ++more_turns;
  }
  std::string names;
  for (const auto& [name, count] : counts) {
    names += name + " ";
    EXPECT_EQ(count, 4) << name;
  }
  EXPECT_EQ(names, "coding humanities math multilingual qa rag reasoning roleplay stem summarization writing ");
  EXPECT_EQ(ids.size(), 44u);
  EXPECT_GE(more_turns, 11u);
  const std::vector<SpeculationPrompt> few = limit_categories(qualitative_prompts(), 1);
  ASSERT_EQ(few.size(), 11u);
  EXPECT_EQ(few[0].id, "coding_1");
}

TEST(SpeculationPrompts, OfAnyLengthAndTierTheSameEveryTime) {
  const auto tokenizer = byte_tokenizer();
  const std::vector<int32_t> begin = {256};
  for (const std::string_view tier : kEntropyTiers) {
    for (const int64_t tokens : {int64_t{5}, int64_t{80}, int64_t{1000}}) {
      const auto prompts = throughput_prompts(*tokenizer, begin, tier, 3, tokens);
      const auto again = throughput_prompts(*tokenizer, begin, tier, 5, tokens);
      ASSERT_EQ(prompts.size(), 3u);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(std::ssize(prompts[i].ids), tokens);
        EXPECT_EQ(prompts[i].ids, again[i].ids);
        EXPECT_EQ(prompts[i].category, tier);
      }
      if (tokens == 1000) {
        EXPECT_EQ(prompts[0].ids[0], 256);
        EXPECT_NE(prompts[0].ids, prompts[1].ids);
      }
    }
  }
  const auto random = random_prompts(*tokenizer, begin, 2, 300);
  ASSERT_EQ(std::ssize(random[1].ids), 300);
  EXPECT_NE(random[0].ids, random[1].ids);
  EXPECT_EQ(std::ranges::count(random[0].ids, 256), 1) << "but for the beginning all stand for a text";
}

class SpeculationFileTest : public test::TempDirTest {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    write_file_atomically(dir_ / name, text);
    return (dir_ / name).string();
  }
};

// The published files have these columns, and more.
TEST_F(SpeculationFileTest, ParquetAndJsonLinesAreReadAlike) {
  const std::string parquet = (dir_ / "set.parquet").string();
  test::run_sql(fmt::format(
      "COPY (SELECT * FROM (VALUES ('a1', 'qa', 'x', ['Why?', 'And then?'], true), ('a2', 'math', 'y', ['Add.'], "
      "false)) AS rows(question_id, category, sub_category, turns, multiturn)) TO '{}' (FORMAT parquet)",
      parquet));
  const std::string lines =
      file("set.jsonl",
           "{\"question_id\": \"a1\", \"category\": \"qa\", \"turns\": [\"Why?\", \"And "
           "then?\"]}\n{\"question_id\": \"a2\", \"category\": \"math\", \"turns\": [\"Add.\"]}\n");
  for (const std::string& name : {parquet, lines}) {
    const auto prompts = read_speculation_prompts(name);
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(prompts[0].id, "a1");
    EXPECT_EQ(prompts[0].category, "qa");
    EXPECT_EQ(prompts[0].turns, (std::vector<std::string>{"Why?", "And then?"}));
    EXPECT_EQ(prompts[1].turns, std::vector<std::string>{"Add."});
  }
}

TEST_F(SpeculationFileTest, RowsThatAreNoPromptsAreRefusedByName) {
  const auto refusal = [&](const std::string& row) {
    const std::string name = file("bad.jsonl", row + "\n");
    const Error error = error_of([&] { read_speculation_prompts(name); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_TRUE(contains(error.what(), "bad.jsonl")) << error.what();
    return std::string(error.what());
  };
  EXPECT_TRUE(contains(refusal(R"({"question_id": 1, "turns": ["a"]})"), "no category"));
  EXPECT_TRUE(contains(refusal(R"({"question_id": 1, "category": "qa", "turns": []})"), "turns"));
  EXPECT_TRUE(contains(refusal(R"({"question_id": 1, "category": "qa", "turns": "a"})"), "turns"));
  EXPECT_TRUE(contains(refusal(R"({"question_id": 1.5, "category": "qa", "turns": ["a"]})"), "question_id"));
  EXPECT_TRUE(
      contains(refusal(R"({"question_id": 1, "category": "qa", "turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED )"
                       R"(FROM THE SOURCE USING SPECDEC_BENCH"]})"),
               "still to be fetched"));
}

Config random_config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> keys = {"model.vocab_size=257", "model.init.std=0.3", "model.init.embedding_std=1"};
  keys.insert(keys.end(), more.begin(), more.end());
  return parse_config(test::kTinyToml, "tiny.toml", keys);
}

TEST(SpeculateBenchTest, StepsAreTokensLessRightGuesses) {
  const SpeculateBenchOptions options{.num_threads = 1,
                                      .draft = {.kind = DraftKind::kNgram, .tokens = 3},
                                      .prompts = "throughput",
                                      .input_tokens = {40},
                                      .limit = 2,
                                      .batches = {1, 3},
                                      .tokens = 13,
                                      .runs = 1};
  const SpeculateBench bench = bench_speculate("", random_config(), byte_tokenizer(), options);
  ASSERT_EQ(bench.cases.size(), 8u);
  for (const SpeculateBench::Case& one : bench.cases) {
    EXPECT_EQ(one.prompts, 2) << one.name;
    EXPECT_EQ(one.input_tokens, 40);
    EXPECT_EQ(one.measures.tokens, 26);
    EXPECT_GE(one.measures.acceptance_length, 1.0);
    EXPECT_LE(one.measures.histogram.size(), 4u);
    // A text's steps are its tokens less the right guesses.
    int64_t steps = 0;
    for (const int64_t count : one.measures.histogram) steps += count;
    EXPECT_EQ(steps, 26 - one.measures.accepted);
    EXPECT_GT(one.plain.output_tokens_per_s, 0.0);
    EXPECT_GT(one.gain, 0.0);
  }
  EXPECT_EQ(bench.cases[3].name, "random");
  EXPECT_TRUE(bench.cases[3].is_random());
  EXPECT_EQ(bench.cases[4].batch, 3);
}

// Where the module's logits and the model's are as good as flat, the same random number draws the same token of both.
TEST(SpeculateBenchTest, TurnsFollowEachOther) {
  const SpeculateBenchOptions options{.num_threads = 1,
                                      .draft = {.kind = DraftKind::kMtp, .tokens = 3},
                                      .sampling = {.temperature = 1.0, .seed = 2},
                                      .limit = 1,
                                      .batches = {4},
                                      .tokens = 9,
                                      .runs = 1};
  const Config config = random_config({"model.mtp.depth=1", "model.init.std=0.001", "model.init.embedding_std=0.001"});
  const SpeculateBench bench = bench_speculate("", config, byte_tokenizer(), options);
  ASSERT_EQ(bench.cases.size(), 1u);
  const SpeculateBench::Case& all = bench.cases[0];
  ASSERT_EQ(all.categories.size(), 11u);
  int64_t turns = 0, tokens = 0;
  for (const SpeculateBench::Category& category : all.categories) {
    turns += category.measures.turns;
    tokens += category.measures.tokens;
  }
  EXPECT_EQ(all.measures.turns, turns);
  EXPECT_EQ(all.measures.tokens, tokens);
  EXPECT_GT(turns, 11);
  EXPECT_GT(all.measures.acceptance_length, 1.5);
  EXPECT_GT(all.measures.conditional_rates.at(0), 0.5);
}

TEST(SpeculateBenchTest, WithoutADrafterThereIsNothingToMeasure) {
  const Error error =
      error_of([] { bench_speculate("", random_config(), byte_tokenizer(), {.draft = {.kind = DraftKind::kNone}}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.remedy(), "--draft ngram"));
}

}  // namespace
}  // namespace nmoe
