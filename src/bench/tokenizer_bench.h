// Times a tokenizer, on one thread and on more.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace nmoe {

struct TokenizerBench {
  struct Result {
    int threads = 0;
    double seconds = 0.0;  // the median round
    int64_t bytes = 0;     // a round's
    int64_t tokens = 0;

    double mb_per_s() const { return static_cast<double>(bytes) / 1e6 / seconds; }
  };
  int rounds = 0;  // of each result
  int64_t num_documents = 0;
  std::vector<Result> results;  // 1, 2, 4, ... threads

  double bytes_per_token() const {
    return static_cast<double>(results.front().bytes) / static_cast<double>(results.front().tokens);
  }
};

// Encodes `text`, which is not empty, cut into documents. most_threads 0: one per available CPU.
TokenizerBench bench_tokenizer(const Tokenizer& tokenizer, std::string_view text, int most_threads);

}  // namespace nmoe
