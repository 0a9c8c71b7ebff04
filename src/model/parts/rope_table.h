// Rotary angles, with the frequencies of longer contexts.
#pragma once

#include <vector>

#include "config/config.h"

namespace nmoe {

struct RopeAngles {
  std::vector<double> cos;  // [num_positions, rope_dim / 2]
  std::vector<double> sin;
};

// Angle of pair i at position p: p * f_i, f_i = theta^(-2i / rope_dim), divided by rope.factor with `linear` (arXiv
// 2306.15595). With `llama3` (Llama 3.1's reference code) pairs with at most low_freq_factor turns in the original
// context are divided by it, those with at least high_freq_factor kept; in between, linearly in the turns.
//
// Or YaRN-corrected (arXiv 2309.00071, section 3.2): pairs that rotate more than beta_fast times within the original
// context keep f_i, those that rotate less than beta_slow times get f_i / factor, with a linear ramp in between. cos
// and sin are multiplied by m(mscale) / m(mscale_all_dim), m(x) = 0.1 x ln(factor) + 1, as DeepSeek-V2 does.
RopeAngles rope_angles(const RopeConfig& rope, const YarnConfig& yarn, int64_t rope_dim, int64_t num_positions);

// The factor of 1 / sqrt(head size) in attention: m(mscale_all_dim)^2, or 1 without it.
double yarn_softmax_scale(const YarnConfig& yarn);

}  // namespace nmoe
