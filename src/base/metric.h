// What a metric is: declared once, by whoever measures it, and joined in the catalogue (track/catalogue.h), from which
// documentation and viewers take it.
#pragma once

#include <cstdint>
#include <string_view>

namespace nmoe {

// Whose value a metric is, of the ranks of a run.
enum class OverRanks : uint8_t {
  kAll,    // one for all ranks together, a sum or a mean over what all of them did; recorded by rank 0
  kMean,   // mean over ranks; recorded by rank 0
  kMax,    // of the rank where it is largest; recorded by rank 0
  kFirst,  // of rank 0 alone
  kEach,   // of each rank, which records its own
  kHost,   // of each host; recorded by the first rank of each process
};

struct Metric {
  // A tag, or tags as a pattern: LL stands for a layer, RR for a rank, GG for a GPU, SOURCE for a source of data, TASK
  // and SUITE for what is evaluated, OPERAND for a part of a layer and which operand or output, NN for a number.
  std::string_view tag;
  std::string_view unit;  // "" of a plain number
  std::string_view meaning;
  OverRanks over_ranks = OverRanks::kAll;
  bool is_array = false;
};

}  // namespace nmoe
