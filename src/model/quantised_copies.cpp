#include "model/quantised_copies.h"

#include <utility>

namespace nmoe {

void QuantisedCopies::restart() {
  num_rounded_.clear();
  are_current_ = false;
}

OperandRounding QuantisedCopies::of_gradient(OperandFormat rounded_to, Tensor experts) {
  if (in_act) return {};
  if (rounded_to != OperandFormat::kNvFp4) return {.format = rounded_to};
  constexpr uint64_t kMostOfShard = uint64_t{1} << 20;
  const uint64_t number = static_cast<uint64_t>(shard()) * kMostOfShard + num_rounded_[shard()]++;
  return {.format = rounded_to,
          .random = {.key = rounding_key, .stream = stream_ + number, .experts = experts},
          .transform = transforms};
}

const WeightCodes& QuantisedCopies::codes_now(Ops& ops) {
  if (codes.defined() && !std::exchange(are_current_, true)) {
    ops.quantize({.format = OperandFormat::kFp8,
                  .blocks = BlockShape::kTiles,
                  .x = coded,
                  .values = codes.values,
                  .scales = codes.scales,
                  .transposed_values = codes.transposed_values,
                  .transposed_scales = codes.transposed_scales});
  }
  return codes;
}

OperandRounding QuantisedCopies::of_forward(Ops& ops) {
  if (!rounds(ops)) return {};
  return {.format = format, .weight = codes_now(ops)};
}

OperandRounding QuantisedCopies::of_input_gradient(Ops& ops, Tensor experts) {
  OperandRounding rounding = of_gradient(format, experts);
  if (!in_act) rounding.weight = codes_now(ops);
  return rounding;
}

}  // namespace nmoe
