#include "model/spec/operand_formats.h"

#include <fmt/format.h>

#include "base/error.h"
#include "config/layers.h"

namespace nmoe {
namespace {

OperandFormat format_of(Precision precision) {
  switch (precision) {
    case Precision::kFp8:
      return OperandFormat::kFp8;
    case Precision::kMxFp8:
      return OperandFormat::kMxFp8;
    case Precision::kNvFp4:
      return OperandFormat::kNvFp4;
    case Precision::kDevice:
    case Precision::kBf16:
    case Precision::kFp32:
      break;
  }
  return OperandFormat::kAct;
}

OperandFormat format_of(PartPrecision part, Precision run) {
  switch (part) {
    case PartPrecision::kRun:
      return format_of(run);
    case PartPrecision::kDevice:
      return OperandFormat::kAct;
    case PartPrecision::kFp8:
      return OperandFormat::kFp8;
    case PartPrecision::kMxFp8:
      return OperandFormat::kMxFp8;
    case PartPrecision::kNvFp4:
      return OperandFormat::kNvFp4;
  }
  return OperandFormat::kAct;
}

PartPrecision precision_of(WeightPart part, const PrecisionConfig& precision) {
  switch (part) {
    case WeightPart::kMixer:
      return precision.mixer;
    case WeightPart::kDense:
      return precision.dense;
    case WeightPart::kShared:
      return precision.shared;
    case WeightPart::kExperts:
      return precision.experts;
    case WeightPart::kOther:
      break;
  }
  return PartPrecision::kDevice;
}

// joining: outputs of the weights that join it.
void allocate_codes(Weight& weight, int64_t joining, Ops& ops, Arena& codes) {
  constexpr int64_t kMultiple = 16, n = block_size(OperandFormat::kFp8);
  if (weight.format == OperandFormat::kAct) return;
  const WeightRounding rounding = ops.weight_rounding(weight.format);
  if (rounding == WeightRounding::kNone) {
    throw usage_error(fmt::format("run.precision: {} has no products in the format of {}", ops.device().description(),
                                  weight.spec.name),
                      "remove run.precision, or choose another: the CPU and Hopper (preset 'hopper') have fp8, mxfp8 "
                      "and nvfp4, Blackwell "
                      "(preset 'blackwell') mxfp8 and nvfp4, unless it was built with NMOE_PLAIN_PRODUCTS");
  }
  if (rounding == WeightRounding::kInside) return;
  const int64_t E = weight.shape.rank() == 3 ? weight.shape[0] : 1, in = weight.shape[-1],
                out = weight.shape[-2] + joining;
  if (in % kMultiple != 0 || out % kMultiple != 0) {
    throw usage_error(fmt::format("run.precision: {} has {} outputs of {} inputs; products of FP8 operands on CUDA "
                                  "want multiples of {}",
                                  weight.spec.name, out, in, kMultiple),
                      "choose such sizes in [model], or leave that part as it is in [precision]");
  }
  const auto blocks = [](int64_t size) { return (size + n - 1) / n; };
  weight.coded = Tensor(weight.value.raw(), weight.value.dtype(), {E, out, in});
  weight.codes.values = codes.allocate(DType::kU8, {E, out, in});
  weight.codes.scales = codes.allocate(DType::kU8, {E, blocks(out), blocks(in)});
  weight.codes.transposed_values = codes.allocate(DType::kU8, {E, in, out});
  weight.codes.transposed_scales = codes.allocate(DType::kU8, {E, blocks(in), blocks(out)});
}

}  // namespace

void set_operand_formats(WeightSet& weights, const Config& config, Tensor rounding_key) {
  const PrecisionConfig& precision = config.precision;
  const auto num_layers = static_cast<int64_t>(layer_specs(config.model).size());
  for (Weight& weight : weights.all()) {
    const int64_t layer = weight.spec.layer;
    const bool is_kept = layer < precision.keep_first || layer >= num_layers - precision.keep_last;
    const OperandFormat format =
        is_kept ? OperandFormat::kAct : format_of(precision_of(weight.spec.part, precision), config.run.precision);
    const bool keeps_gradient =
        format == OperandFormat::kFp8 && !(precision.fp8_weight_gradients && weight.spec.part == WeightPart::kExperts);
    weight.format = format;
    weight.grad_format = keeps_gradient ? OperandFormat::kAct : format;
    weight.rounding_key = precision.nvfp4_random_rounding ? rounding_key : Tensor();
    weight.transforms = precision.nvfp4_transform;
  }
}

void allocate_weight_codes(WeightSet& weights, Ops& ops, Arena& codes) {
  std::deque<Weight>& all = weights.all();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].spec.joins_previous) continue;
    int64_t joining = 0;
    for (size_t next = i + 1; next < all.size() && all[next].spec.joins_previous; ++next) joining += all[next].shape[0];
    allocate_codes(all[i], joining, ops, codes);
  }
}

void allocate_weight_codes(Weight& weight, Ops& ops, Arena& codes) { allocate_codes(weight, 0, ops, codes); }

}  // namespace nmoe
