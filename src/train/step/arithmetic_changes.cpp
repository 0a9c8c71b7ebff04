#include "train/step/arithmetic_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "config/layers.h"
#include "model/spec/spec.h"
#include "optim/optimizer.h"

namespace nmoe {
namespace {

bool rates_decay(const Config& config) { return !config.optim.schedule.decay.is_none(); }
bool any_run(const Config& /*config*/) { return true; }
bool runs_on_a_gpu(const Config& config) { return config.run.device == "cuda"; }
bool masks_documents(const Config& config) { return config.data.mask_documents; }

// Of the sizes for which sums lag behind the highest score (ops/contracts/attention.h).
bool has_wide_attention(const Config& config) {
  const ModelConfig& model = config.model;
  return config.run.device == "cuda" && config.run.precision != Precision::kFp32 &&
         std::ranges::any_of(parts_of(layer_specs(model)), [&](const PartSpec& part) {
           return (part.kind == PartKind::kGqa && model.gqa.head_dim == 128) ||
                  (part.kind == PartKind::kMla && model.mla.v_head_dim == 128);
         });
}

// Of the 64 queries that a block had on the CPU at that change, which documents may begin in, or which a sequence may
// end in.
bool cuts_query_blocks(const Config& config) {
  constexpr int64_t kQueryBlock = 64;
  return config.run.device == "cpu" && (config.data.mask_documents || config.data.seq_len % kQueryBlock != 0);
}

bool multiplies_in_bf16(const Config& config) {
  return config.run.device == "cuda" && config.run.precision != Precision::kFp32;
}

bool computes_fp32_on_a_gpu(const Config& config) {
  return runs_on_a_gpu(config) && config.run.precision == Precision::kFp32;
}

bool has_relu_squared_experts_on_a_gpu(const Config& config) {
  return runs_on_a_gpu(config) && config.model.activation == Activation::kReluSquared &&
         config.model.moe.num_experts > 0;
}

bool muon_trains_gate_and_up(const Config& config) {
  return std::ranges::any_of(describe_model(config.model).weights, [&](const WeightSpec& weight) {
    return weight.num_matrices > 1 && group_of(config.optim, weight.group).optimizer == OptimizerKind::kMuon;
  });
}

}  // namespace

std::span<const ArithmeticChange> arithmetic_changes() {
  static const std::vector<ArithmeticChange> changes = {
      {"optim.schedule's decay counts what was done before a step, so that its last step has a rate above 0",
       rates_decay},
      {"Muon orthogonalises gate and up projections apart, and scales each by its own shape", muon_trains_gate_and_up},
      {"with data.mask_documents, documents end where the corpus's index says, not behind each end-of-document id",
       masks_documents},
      {"steps without a token to learn, if the run has any, move no weight", any_run},
      {"attention's sums of a row with values of 128 follow its highest score when its own scores ask for it, not "
       "those of the rows beside it",
       has_wide_attention},
      {"on the CPU, attention's sums depend on a token's position in its document, not on where that lies in a "
       "sequence",
       cuts_query_blocks},
      {"on a GPU, cuBLASLt's heuristic may not split the sums of forward products in bf16", multiplies_in_bf16},
      {"on a GPU, norms add up squares by eights, in one order by width, and rotations have one form of fused "
       "multiply-adds",
       runs_on_a_gpu},
      {"on a GPU, a step's logits are FP32 until losses and gradients are made of them", multiplies_in_bf16},
      {"on a GPU in fp32, forward products and attention have generation's order of sums", computes_fp32_on_a_gpu},
      {"on a GPU, exponentials of logits are summed by tiles of 192 ids, and in bf16 on Hopper gradients are made of "
       "rounded ones",
       runs_on_a_gpu},
      {"on a Hopper GPU, gradients of the weights of experts' rows are summed by tiles behind squared ReLU, too",
       has_relu_squared_experts_on_a_gpu},
  };
  return changes;
}

std::string warn_of_changed_arithmetic(std::span<const ArithmeticChange> changes, int64_t before,
                                       const Config& config) {
  const auto count = std::ssize(changes);
  if (before > count) {
    return fmt::format(
        "warning: this checkpoint is of a later nmoe, whose arithmetic has {} more changes than this one's: "
        "from here on this run's bits are not those that it would give",
        before - count);
  }
  std::string list;
  for (const ArithmeticChange& change : changes.subspan(static_cast<size_t>(before))) {
    if (change.affects(config)) list += fmt::format("\n  {}", change.now);
  }
  if (list.empty()) return "";
  return fmt::format(
      "warning: nmoe's arithmetic has changed since this checkpoint was written; the run goes on with the new one, and "
      "its bits are not those of a run that had it from the start:{}",
      list);
}

}  // namespace nmoe
