// Prompts that speculation is measured with.
//
//   qualitative  texts of nmoe's own (configs/bench/speculation.jsonl) in the 11 categories of SPEED-Bench
//                (arXiv 2604.09557), some of several turns: what users write, so that guesses are as right as for them
//   throughput   prompts of a given number of tokens, in three tiers by what an answer is likely to be: "low" entropy
//                (records that are to be copied), "high" (loose words to be gone on from), and "mixed" of both
//   random       as many random tokens: no text, and answers that are none, either, so that figures of it say little of
//                what users get (SPEED-Bench: they overstate it by some 23 %)
//   a file       of rows with question_id, category and turns: the published sets as their scripts write them
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace nmoe {

struct SpeculationPrompt {
  std::string id;
  std::string category;  // of the throughput set and random tokens: the tier, "random"
  std::vector<std::string> turns;
  std::vector<int32_t> ids = {};  // of the only turn, in place of `turns`
};

// The qualitative set, in its order.
std::vector<SpeculationPrompt> qualitative_prompts();

// Of a file of rows: JSON lines, JSON or Parquet. Errors (usage): no rows; a row that lacks a member or has it in
// another form, or whose turns are those that are still to be fetched from their source.
std::vector<SpeculationPrompt> read_speculation_prompts(const std::filesystem::path& file);

// The first `limit` of each category, in their order; 0: all.
std::vector<SpeculationPrompt> limit_categories(std::vector<SpeculationPrompt> prompts, int64_t limit);

inline constexpr std::string_view kEntropyTiers[] = {"low", "mixed", "high"};

// `count` prompts of exactly `tokens` tokens each, the same ones every time, which begin with the ids `begin` and end
// with what is asked of the reader, as far as there is room. `tier`: one of kEntropyTiers.
std::vector<SpeculationPrompt> throughput_prompts(const Tokenizer& tokenizer, const std::vector<int32_t>& begin,
                                                  std::string_view tier, int64_t count, int64_t tokens);
// The same of ids that stand for any text, each as likely as another.
std::vector<SpeculationPrompt> random_prompts(const Tokenizer& tokenizer, const std::vector<int32_t>& begin,
                                              int64_t count, int64_t tokens);

}  // namespace nmoe
