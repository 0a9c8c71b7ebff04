#include "model/spec/gated_deltanet.h"

#include <cmath>

#include "model/spec/names.h"

namespace nmoe {
namespace {

// Initial values as in the authors' implementation (flash-linear-attention, gated_deltanet.py): A is -U(0, 16), steps
// are log-uniform, the convolution's weights uniform within 1 / sqrt(taps). An A of 0 would have no logarithm.
constexpr double kLeastRate = 1e-4, kMostRate = 16.0, kLeastStep = 0.001, kMostStep = 0.1;

}  // namespace

PartTraits describe_gated_deltanet(const LayerPart& part, WeightList& weights) {
  const GatedDeltaNetConfig& config = part.config.gated_deltanet;
  const int64_t D = part.config.dim, W = config.value_width(), G = config.key_width(), H = config.num_value_heads,
                K = config.conv_width;
  const std::string name = gated_deltanet_prefix(part);
  weights.begin_part(WeightPart::kMixer);
  weights.add_joined({weights.matrix(name + "z", W, D), weights.matrix(name + "q", G, D),
                      weights.matrix(name + "k", G, D), weights.matrix(name + "v", W, D),
                      weights.matrix(name + "b", H, D), weights.matrix(name + "a", H, D)});
  const double bound = 1.0 / std::sqrt(static_cast<double>(K));
  WeightSpec conv = WeightList::bias(name + "conv", {config.conv_channels(), K});
  conv.decay = true;
  weights.add(WeightList::drawn(conv, InitKind::kUniform, -bound, bound));
  weights.add(
      WeightList::drawn(WeightList::bias(name + "dt_bias", {H}), InitKind::kInverseSoftplus, kLeastStep, kMostStep));
  weights.add(WeightList::drawn(WeightList::bias(name + "a_log", {H}), InitKind::kLogOfUniform, kLeastRate, kMostRate));
  weights.add(WeightList::gain(name + "norm", config.value_head_dim));
  weights.add(weights.output(name + "out", D, W));
  // The recurrence's: three products with a state forward, seven backward, for which two are made again.
  return {.flops_per_token = 24.0 * static_cast<double>(W * config.key_head_dim),
          .state = {.widths = {},
                    .fixed = {{.shape = {H, config.key_head_dim, config.value_head_dim}, .is_stat = true},
                              {.shape = {K - 1, config.conv_channels()}}}}};
}

}  // namespace nmoe
