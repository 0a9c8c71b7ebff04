#include "model/spec/mamba2.h"

#include <cmath>

#include "model/spec/names.h"

namespace nmoe {
namespace {

// Initial values as in the reference (state-spaces/mamba, mamba2.py) and Megatron's: A is -U(1, 16), steps are
// log-uniform, D is 1, and the convolution's weights and biases are uniform within 1 / sqrt(taps).
constexpr double kLowA = 1.0, kHighA = 16.0;

}  // namespace

PartTraits describe_mamba2(const LayerPart& part, WeightList& weights) {
  const Mamba2Config& config = part.config.mamba2;
  const int64_t D = part.config.dim, W = config.width(), G = config.group_width(), H = config.num_heads,
                K = config.conv_width, Q = config.chunk;
  const std::string name = mamba2_prefix(part);
  weights.begin_part(WeightPart::kMixer);
  weights.add_joined({weights.matrix(name + "z", W, D), weights.matrix(name + "x", W, D),
                      weights.matrix(name + "b", G, D), weights.matrix(name + "c", G, D),
                      weights.matrix(name + "dt", H, D)});
  const double bound = 1.0 / std::sqrt(static_cast<double>(K));
  WeightSpec conv = WeightList::bias(name + "conv", {config.conv_channels(), K});
  conv.decay = true;
  weights.add(WeightList::drawn(conv, InitKind::kUniform, -bound, bound));
  weights.add(WeightList::drawn(WeightList::bias(name + "conv_bias", {config.conv_channels()}), InitKind::kUniform,
                                -bound, bound));
  weights.add(WeightList::drawn(WeightList::bias(name + "dt_bias", {H}), InitKind::kInverseSoftplus, config.step_min,
                                config.step_max));
  weights.add(WeightList::drawn(WeightList::bias(name + "a_log", {H}), InitKind::kLogOfUniform, kLowA, kHighA));
  weights.add(WeightList::gain(name + "d", H));
  weights.add(WeightList::gain(name + "norm", W));
  weights.add(weights.output(name + "out", D, W));
  // Of pairs in a chunk: C . B once a group, forward and three times backward, and what is summed of them over values,
  // forward and twice backward. Of tokens: their part of a state and its of theirs, forward, and five such products
  // backward (states made again among them).
  const auto pair = static_cast<double>(8 * G + 6 * W), token = 14.0 * static_cast<double>(W * config.state_dim);
  return {.flops_per_position = pair,
          .chunk = Q,
          .flops_per_token = token,
          .state = {.widths = {},
                    .fixed = {{.shape = {H, config.head_dim, config.state_dim}, .is_stat = true},
                              {.shape = {Q, W}},
                              {.shape = {Q, G}},
                              {.shape = {Q, H}, .is_stat = true},
                              {.shape = {K - 1, config.conv_channels()}}}}};
}

}  // namespace nmoe
