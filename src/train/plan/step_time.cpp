#include "train/plan/step_time.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "model/experts_exchange.h"
#include "model/spec/cost.h"
#include "model/spec/moe.h"
#include "model/spec/operand_formats.h"
#include "model/spec/spec.h"
#include "ops/moment_codes.h"
#include "optim/optimizer.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

constexpr double kActBytes = 2.0, kStatBytes = 4.0;
constexpr double kCodeBytes = 1.0 + 1.0 / static_cast<double>(moments::kBlock);

// The share of what products read and write that shows: the rest is in the cache, or lies under the product.
constexpr double kVisible = 0.45;

// Bytes for each token and value of the residual stream that a part's norm and its way back to the stream read and
// write: forward x, the norm's output, the part's, and the sum; backward those and their gradients.
constexpr double kBranchBytes = 20.0;
// For each value that a mixer's projections give: rotated, or put into heads, forward and backward.
constexpr double kHeadsBytes = 8.0;
// For each logit: exponentials and gradients, written once, and read by two products.
constexpr double kLogitBytes = 6.0;
// For each value that is rounded to a low precision: read, and its code written; forward and backward.
constexpr double kCastBytes = 3.0;
// For each pre-activation that waits as codes: those, written and read.
constexpr double kSavedBytes = 2.0;
// Values that an iteration of Newton-Schulz reads and writes for each element: docs/log/optimizer.md.
constexpr double kIterationValues = 5.0;
// Forward's share of attention (two products of seven).
constexpr double kForwardAttention = 0.3;
// The share of block inputs' transfers, each way, that nothing hides: docs/log/memory.md.
constexpr double kVisibleInputs = 0.022;
// docs/scale.md: the share of transfers between ranks that no work hides; how much longer the products of experts take
// on the most loaded of many ranks; what barriers and plans of a layer take in a microbatch, in seconds.
constexpr double kExposed = 0.5, kUneven = 0.2, kLayerExchange = 0.11e-3;

// Work of a kind in a microbatch: what products multiply, in each precision, and what is read and written.
struct Work {
  double flops = 0.0, low_flops = 0.0, bytes = 0.0;

  Work& operator+=(const Work& other) {
    flops += other.flops;
    low_flops += other.low_flops;
    bytes += other.bytes;
    return *this;
  }
};

double product_seconds(const Work& work, const DeviceRates& rates) {
  return work.flops / rates.product + work.low_flops / rates.low_product;
}
double seconds(const Work& work, const DeviceRates& rates) {
  return product_seconds(work, rates) + work.bytes / rates.memory;
}

class StepModel {
 public:
  StepModel(const Config& config, const DeviceRates& rates)
      : config_(config),
        rates_(rates),
        model_(describe_model(config.model)),
        ranks_(static_cast<double>(config.parallel.ranks)) {
    const BatchShape shape = batch_shape(config, config.data.seq_len);
    tokens_ = static_cast<double>(shape.microbatch_tokens());
    microbatches_ = static_cast<double>(shape.num_microbatches(config.parallel.ranks));
  }

  StepTime predict(int64_t host_state_bytes) const {
    Work once, experts, repeated;
    for (const WeightSpec& weight : model_.weights) {
      if (!weight.is_multiplied()) continue;
      const Work forward = forward_of(weight);
      Work all = forward;
      all += backward_of(weight);
      (weight.group == WeightGroup::kExperts ? experts : once) += all;
      repeated += repeated_of(weight, forward);
    }
    const double branches = kBranchBytes * width() * tokens_ * static_cast<double>(num_parts());
    once.bytes += branches + combining_bytes();
    const double attention = attention_seconds();
    StepTime time{
        .products = microbatches_ * (product_seconds(once, rates_) + product_seconds(experts, rates_)),
        .attention = microbatches_ * attention,
        .memory = microbatches_ * (once.bytes + experts.bytes) / rates_.memory,
        .repeated = microbatches_ * seconds(repeated, rates_),
        .update = update_seconds(),
    };
    const auto layers = std::ssize(all_layer_specs(config_.model));
    for (int64_t layer = 0; layer < layers; ++layer) {
      const Recompute level = config_.train.recompute.of(layer);
      double of_all = 0.0;  // if all layers were as this one
      if (level >= Recompute::kBlocks) {
        of_all = kForwardAttention * attention + branches / 3.0 / rates_.memory;
      } else if (level != Recompute::kNone) {
        of_all = branches / 5.0 / rates_.memory;
      }
      if (level == Recompute::kHost) {
        const double bytes = 2.0 * kActBytes * width() * tokens_ * static_cast<double>(layers);
        of_all += kVisibleInputs * bytes / rates_.host_link;
      }
      time.repeated += microbatches_ * of_all / static_cast<double>(layers);
    }
    if (host_state_bytes > 0) {
      time.update = std::max(time.update, transfer_seconds(static_cast<double>(host_state_bytes),
                                                           time.products + time.attention + time.memory));
    }
    if (ranks_ > 1.0) time.exchange = exchange_seconds(seconds(experts, rates_));
    return time;
  }

 private:
  // Whether it is the first of a feed-forward's two.
  static bool gives_pre_activations(const WeightSpec& weight) {
    const bool is_mlp =
        weight.part == WeightPart::kDense || weight.part == WeightPart::kShared || weight.part == WeightPart::kExperts;
    return is_mlp && weight.name.ends_with("in");
  }

  // The embedding, too, where the head shares it: else it is not multiplied.
  static bool is_head(const WeightSpec& weight) { return weight.name == "head" || weight.name == "embedding"; }

  double width() const { return static_cast<double>(config_.model.dim); }
  static double outputs(const WeightSpec& weight) { return static_cast<double>(weight.shape[weight.shape.rank() - 2]); }
  static double inputs(const WeightSpec& weight) { return static_cast<double>(weight.shape[weight.shape.rank() - 1]); }
  int64_t num_parts() const {
    return std::ssize(model_.parts()) +
           std::ssize(model_.prediction_layer_parts()) * config_.model.mtp.passes_of_a_module();
  }
  // Of a rank in a microbatch. The head has those of every further depth, too.
  double rows(const WeightSpec& weight) const {
    const int64_t passes = weight.num_passes + (is_head(weight) ? config_.model.mtp.depth : 0);
    const int64_t of_token = weight.group == WeightGroup::kExperts ? config_.model.moe.top_k : 1;
    return tokens_ * static_cast<double>(passes * of_token);
  }
  Recompute level_of(const WeightSpec& weight) const {
    return weight.layer == kNoLayer ? Recompute::kNone : config_.train.recompute.of(weight.layer);
  }
  bool waits_as_values(const WeightSpec& weight) const {
    return weight.layer == kNoLayer || config_.precision.saved.of(weight.layer) == RowFormat::kDevice;
  }
  // Elements that a rank has, of which it multiplies.
  double elements(const WeightSpec& weight) const {
    const auto all = static_cast<double>(weight.shape.num_elements());
    return weight.group == WeightGroup::kExperts ? all / ranks_ : all;
  }

  // One of the three products with a weight.
  Work product(const WeightSpec& weight, OperandFormat format) const {
    const double flops = 2.0 * outputs(weight) * inputs(weight) * rows(weight);
    const double values = (outputs(weight) + inputs(weight)) * rows(weight);
    Work work{.bytes = kVisible * kActBytes * values};
    if (format == OperandFormat::kAct) {
      work.flops = flops;
    } else {
      work.low_flops = flops;
      work.bytes += kCastBytes * values / 2.0;
    }
    return work;
  }

  Work forward_of(const WeightSpec& weight) const {
    Work work = product(weight, product_formats(weight, config_).operands);
    work.bytes += kActBytes * elements(weight);
    return work;
  }

  Work backward_of(const WeightSpec& weight) const {
    const ProductFormats formats = product_formats(weight, config_);
    Work work = product(weight, formats.operands);
    work += product(weight, formats.weight_gradient);
    // The first microbatch writes a gradient, others add to it.
    const bool rounds = config_.train.gradients == GradientFormat::kBf16 && weight.group == WeightGroup::kExperts;
    const double gradient = rounds ? 12.0 : kStatBytes * (2.0 - 1.0 / microbatches_);
    work.bytes += (kActBytes + gradient) * elements(weight);
    if (weight.part == WeightPart::kMixer) work.bytes += kHeadsBytes * outputs(weight) * rows(weight);
    if (is_head(weight)) work.bytes += kLogitBytes * outputs(weight) * rows(weight);
    if (gives_pre_activations(weight) && !waits_as_values(weight)) {
      work.bytes += kSavedBytes * outputs(weight) * rows(weight);
    }
    return work;
  }

  // What backward computes again of what comes with a weight, of which forward is `forward`.
  Work repeated_of(const WeightSpec& weight, const Work& forward) const {
    const Recompute level = level_of(weight);
    const bool first = gives_pre_activations(weight);
    if (level >= Recompute::kBlocks) return forward;
    if (level == Recompute::kExperts && first) return forward;
    if (level == Recompute::kNorms && first && waits_as_values(weight)) {
      const double hidden = outputs(weight) / static_cast<double>(weight.num_matrices);
      return {.bytes = kActBytes * (outputs(weight) + hidden) * rows(weight)};
    }
    return {};
  }

  int64_t num_moe_passes() const {
    const std::vector<int64_t> passes = moe_passes(config_.model);
    return std::reduce(passes.begin(), passes.end());
  }

  // Rows of experts into sums of tokens, forward and backward.
  double combining_bytes() const {
    const auto layers = static_cast<double>(num_moe_passes());
    const double rows = tokens_ * static_cast<double>(config_.model.moe.top_k + 1);
    return layers * 2.0 * kActBytes * rows * static_cast<double>(travelling_width(config_.model));
  }

  double attention_seconds() const {
    const ModelCost cost = model_cost(config_.model);
    const double flops = tokens_ * (cost.flops_per_token(config_.data.seq_len) -
                                    6.0 * static_cast<double>(cost.active_matrix_parameters));
    double of_positions = 0.0, mixers = 0.0;
    for (const DescribedPart& part : model_.parts()) {
      if (!is_mixer(part.spec.kind)) continue;
      of_positions += part.traits.flops_per_position;
      mixers += 1.0;
    }
    if (mixers == 0.0) return 0.0;
    const double of_pair = of_positions / mixers / static_cast<double>(config_.model.num_heads);
    return flops / rates_.attention + flops / of_pair * rates_.attention_pair;
  }

  // What state in host memory takes longer than forward and backward, of `computing` seconds a step: as much as may is
  // written back beside the first forward, and while the update goes on the rest is, beside what is fetched.
  double transfer_seconds(double bytes, double computing) const {
    const BatchShape shape = batch_shape(config_, config_.data.seq_len);
    const double held = std::min(bytes, static_cast<double>(state_bytes_beside_forward(config_, shape)));
    const double forward = computing / 3.0 / microbatches_;
    return (bytes - held) / rates_.host_link + std::max(0.0, held / rates_.host_link - forward);
  }

  double update_seconds() const {
    double bytes = 0.0, flops = 0.0;
    const bool in_bf16 = config_.optim.muon.products == MuonProducts::kBf16;
    for (const WeightSpec& weight : model_.weights) {
      if (!weight.is_trained()) continue;
      const double here = static_cast<double>(weight.shape.num_elements()) / ranks_;
      const bool rounds = config_.train.gradients == GradientFormat::kBf16 && weight.group == WeightGroup::kExperts;
      // The gradient for its norm and for the update; both halves of masters.
      double of_element = 2.0 * (rounds ? kActBytes : kStatBytes) + 2.0 * kStatBytes;
      const auto moment = [](MomentFormat format) {
        if (format == MomentFormat::kFp8) return kCodeBytes;
        return format == MomentFormat::kBf16 ? kActBytes : kStatBytes;
      };
      if (group_of(config_.optim, weight.group).optimizer == OptimizerKind::kMuon && weight.shape.rank() > 1) {
        const auto iterations = static_cast<double>(config_.optim.muon.iterations);
        of_element +=
            2.0 * moment(config_.optim.muon.state) + iterations * kIterationValues * (in_bf16 ? kActBytes : kStatBytes);
        const double rows = outputs(weight) / static_cast<double>(weight.num_matrices);
        const double low = std::min(rows, inputs(weight)), high = std::max(rows, inputs(weight));
        // Two products with the Gram matrix's side twice, and its square.
        flops += here / (low * high) * iterations * (4.0 * low * low * high + 2.0 * low * low * low);
      } else {
        of_element += 4.0 * moment(config_.optim.adamw.state);
      }
      bytes += of_element * here;
    }
    return bytes / rates_.memory + flops / (in_bf16 ? rates_.product : rates_.muon_product);
  }

  double exchange_seconds(double experts) const {
    const auto layers = static_cast<double>(num_moe_passes());
    const std::vector<int64_t> passes = moe_passes(config_.model);
    const std::vector<ExchangeCost> costs = exchange_costs(config_, DType::kBF16, config_.parallel.ranks);
    double bytes = 0.0;
    for (size_t layer = 0; layer < passes.size(); ++layer) {
      if (passes[layer] == 0) continue;
      bytes += static_cast<double>(passes[layer]) * tokens_ * microbatches_ * costs[layer].bytes_per_token();
    }
    double update = 0.0;  // values that come back, and the embedding's gradient, which is complete last
    for (const WeightSpec& weight : model_.weights) {
      if (!weight.is_trained() || weight.per_expert) continue;
      update +=
          (kActBytes + (weight.is_looked_up ? kStatBytes : 0.0)) * static_cast<double>(weight.shape.num_elements());
    }
    return kExposed * bytes / rates_.device_link + layers * microbatches_ * kLayerExchange +
           microbatches_ * kUneven * experts * (ranks_ - 1.0) / ranks_ +
           update * (ranks_ - 1.0) / ranks_ / rates_.device_link;
  }

  const Config& config_;
  const DeviceRates& rates_;
  ModelSpec model_;
  double ranks_, tokens_, microbatches_;
};

}  // namespace

StepTime predict_step_time(const Config& config, const DeviceRates& rates, int64_t host_state_bytes) {
  return StepModel(config, rates).predict(host_state_bytes);
}

}  // namespace nmoe
