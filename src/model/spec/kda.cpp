#include "model/spec/kda.h"

#include <cmath>

#include "model/spec/names.h"

namespace nmoe {
namespace {

// Initial values as in the authors' implementation (flash-linear-attention, kda.py): A is -U(1, 16); steps, which are 0
// before softplus there, are log-uniform, as Gated DeltaNet's; the convolution's weights uniform within 1 / sqrt(taps).
constexpr double kLeastKdaRate = 1.0, kMostKdaRate = 16.0, kLeastKdaStep = 0.001, kMostKdaStep = 0.1;

}  // namespace

PartTraits describe_kda(const LayerPart& part, WeightList& weights) {
  const KdaConfig& config = part.config.kda;
  const int64_t D = part.config.dim, W = config.width(), H = config.num_heads, C = config.head_dim,
                K = config.conv_width;
  const std::string name = kda_prefix(part);
  weights.begin_part(WeightPart::kMixer);
  weights.add_joined({weights.matrix(name + "q", W, D), weights.matrix(name + "k", W, D),
                      weights.matrix(name + "v", W, D), weights.matrix(name + "b", H, D)});
  weights.add(weights.matrix(name + "decay_down", C, D));
  weights.add(weights.matrix(name + "decay_up", W, C));
  weights.add(weights.matrix(name + "gate_down", C, D));
  weights.add(weights.matrix(name + "gate_up", W, C));
  const double bound = 1.0 / std::sqrt(static_cast<double>(K));
  WeightSpec conv = WeightList::bias(name + "conv", {config.conv_channels(), K});
  conv.decay = true;
  weights.add(WeightList::drawn(conv, InitKind::kUniform, -bound, bound));
  weights.add(WeightList::drawn(WeightList::bias(name + "dt_bias", {H, C}), InitKind::kInverseSoftplus, kLeastKdaStep,
                                kMostKdaStep));
  weights.add(
      WeightList::drawn(WeightList::bias(name + "a_log", {H}), InitKind::kLogOfUniform, kLeastKdaRate, kMostKdaRate));
  weights.add(WeightList::gain(name + "norm", C));
  weights.add(weights.output(name + "out", D, W));
  // The recurrence's: as Gated DeltaNet's.
  return {.flops_per_token = 24.0 * static_cast<double>(W * C),
          .state = {.widths = {},
                    .fixed = {{.shape = {H, C, C}, .is_stat = true}, {.shape = {K - 1, config.conv_channels()}}}}};
}

}  // namespace nmoe
