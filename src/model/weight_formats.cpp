#include "model/weight_formats.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/spec/operand_formats.h"

namespace nmoe {
namespace {

// joining: outputs of the weights that join it.
void allocate_codes(Weight& weight, int64_t joining, Ops& ops, Arena& codes) {
  constexpr int64_t kMultiple = 16, n = block_size(OperandFormat::kFp8);
  if (weight.copies.format == OperandFormat::kAct) return;
  const WeightRounding rounding = ops.weight_rounding(weight.copies.format);
  if (rounding == WeightRounding::kNone) {
    throw usage_error(fmt::format("run.precision: {} has no products in the format of {}", ops.device().description(),
                                  weight.spec.name),
                      "remove run.precision, or choose another: the CPU and Hopper (preset 'hopper') have fp8, mxfp8 "
                      "and nvfp4, Blackwell "
                      "(preset 'blackwell') mxfp8 and nvfp4, unless it was built with NMOE_PLAIN_PRODUCTS");
  }
  if (rounding == WeightRounding::kInside) return;
  const int64_t E = weight.shard.shape.rank() == 3 ? weight.shard.shape[0] : 1, in = weight.shard.shape[-1],
                out = weight.shard.shape[-2] + joining;
  if (in % kMultiple != 0 || out % kMultiple != 0) {
    throw usage_error(fmt::format("run.precision: {} has {} outputs of {} inputs; products of FP8 operands on CUDA "
                                  "want multiples of {}",
                                  weight.spec.name, out, in, kMultiple),
                      "choose such sizes in [model], or leave that part as it is in [precision]");
  }
  const auto blocks = [](int64_t size) { return (size + n - 1) / n; };
  weight.copies.coded = Tensor(weight.value.raw(), weight.value.dtype(), {E, out, in});
  weight.copies.codes.values = codes.allocate(DType::kU8, {E, out, in});
  weight.copies.codes.scales = codes.allocate(DType::kU8, {E, blocks(out), blocks(in)});
  weight.copies.codes.transposed_values = codes.allocate(DType::kU8, {E, in, out});
  weight.copies.codes.transposed_scales = codes.allocate(DType::kU8, {E, blocks(in), blocks(out)});
}

}  // namespace

void set_operand_formats(WeightSet& weights, const Config& config, Tensor rounding_key) {
  const PrecisionConfig& precision = config.precision;
  for (Weight& weight : weights.all()) {
    const ProductFormats formats = product_formats(weight.spec, config);
    weight.copies.format = formats.operands;
    weight.copies.grad_format = formats.weight_gradient;
    weight.copies.rounding_key = precision.nvfp4_random_rounding ? rounding_key : Tensor();
    weight.copies.transforms = precision.nvfp4_transform;
  }
}

void allocate_weight_codes(WeightSet& weights, Ops& ops, Arena& codes) {
  std::deque<Weight>& all = weights.all();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].spec.joins_previous) continue;
    int64_t joining = 0;
    for (size_t next = i + 1; next < all.size() && all[next].spec.joins_previous; ++next)
      joining += all[next].shard.shape[0];
    allocate_codes(all[i], joining, ops, codes);
  }
}

void allocate_weight_codes(Weight& weight, Ops& ops, Arena& codes) { allocate_codes(weight, 0, ops, codes); }

}  // namespace nmoe
