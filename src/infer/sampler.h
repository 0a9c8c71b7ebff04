// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/sampling.h"

namespace nmoe {

// Applied in this order, which is that of transformers; each step renormalises what the one before left.
struct SamplingOptions {
  // Logits of ids that the prompt or the output contains: divided by it where positive, multiplied where negative
  // (CTRL, arXiv 1909.05858, section 4.1; the form of transformers). 1: none.
  double repetition_penalty = 1.0;
  double temperature = 1.0;  // logits are divided by it; 0: the most likely token, always
  int64_t top_k = 0;         // the likeliest top_k tokens; 0: all
  double top_p = 1.0;        // nucleus: the likeliest tokens whose probabilities just reach top_p; 1: all
  double min_p = 0.0;        // tokens at least min_p times as probable as the likeliest (arXiv 2407.01082)
  uint64_t seed = 1;
};

// Error (usage) naming the option that is out of its range: repetition_penalty above 0, temperature and top_k not
// negative, top_p and min_p from 0 to 1; no NaN.
void check_sampling(const SamplingOptions& options);

// The random number in (0, 1) of the token at `position` of an output.
double sampling_uniform(const SamplingOptions& options, int64_t position);

// The same of a device that samples: how it draws that token.
TokenDraw token_draw(const SamplingOptions& options, int64_t position);

// Error (runtime) for a model whose largest logit for an output's token at `position` is not finite.
Error no_finite_logit(int64_t position);

// Chooses tokens for one sequence after the other. Holds buffers; not thread-safe.
class Sampler {
 public:
  // The token at `position` of an output. The same logits, options, position and set of ids `seen` (in any order, which
  // the penalty counts once each) give the same token. Ties go to the lower id. Nucleus: arXiv 1904.09751, section 3.1.
  // Error (runtime) when the largest logit is not finite.
  int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t position,
                 std::span<const int32_t> seen = {});

 private:
  struct Candidate {
    double weight;  // probability, up to a factor
    int32_t id;
  };
  static bool before(const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  }
  // Keeps in candidates_ those that top_k, top_p and min_p leave, the likeliest first where any of them is set.
  void truncate(const SamplingOptions& options);

  std::vector<float> penalised_;
  std::vector<Candidate> candidates_;
};

}  // namespace nmoe
