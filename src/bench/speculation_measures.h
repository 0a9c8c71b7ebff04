// What speculation is measured by, as SPEED-Bench (arXiv 2604.09557) and its code define it: a step's length is the
// number of tokens that it gave a text, 1 without a right guess.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nmoe {

// What was written to one turn of a prompt.
struct WrittenTurn {
  std::string prompt;    // its id
  std::string category;  // of the prompt
  int64_t turn = 0;
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths;  // of the steps that gave any, in their order: their sum is the number of ids
  int64_t drafted = 0;           // guesses that were run
  int64_t accepted = 0;          // of these, those that were right
  // Seconds since the run's start. Where there is no token the last two are the end.
  double submitted_s = 0.0, first_s = 0.0, last_s = 0.0;
};

// Of several turns.
struct SpeculationMeasures {
  int64_t turns = 0;  // with a token
  int64_t tokens = 0;
  int64_t drafted = 0, accepted = 0;
  // Mean over turns of the mean length of a turn's steps: long texts count no more than short ones ("Average AL").
  double acceptance_length = 0.0;
  std::vector<int64_t> histogram;  // [i]: steps of length i + 1, up to the longest
  // [i], for the guess in place i of a step, up to the longest step's last: the share of the steps of length i + 1 and
  // more that were longer ("conditional acceptance rate"), and of all steps ("joint"). Steps in which so many guesses
  // were not run count, too.
  std::vector<double> conditional_rates, joint_rates;
  // Mean and median over turns with two tokens and more of (tokens - 1) / (last token - first token): what one who
  // reads the text sees ("user TPS").
  double user_tokens_per_s = 0.0, median_user_tokens_per_s = 0.0;
  double first_token_s = 0.0;  // mean from submission to the first token ("TTFT")
};

SpeculationMeasures measure_speculation(std::span<const WrittenTurn> turns);

// Tokens of all turns over the time from the first submission to the last token ("output TPS").
double output_tokens_per_s(std::span<const WrittenTurn> turns);

// Where two runs of the same turns in the same order differ: "prompt 3, turn 1, token 17: 5 and 9". Nothing: nowhere.
std::optional<std::string> first_difference(std::span<const WrittenTurn> plain, std::span<const WrittenTurn> drafted);

}  // namespace nmoe
