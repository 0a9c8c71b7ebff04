#include "model/spec/operand_formats.h"

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

}  // namespace

ProductFormats product_formats(const WeightSpec& weight, const Config& config) {
  const PrecisionConfig& precision = config.precision;
  const auto num_layers = static_cast<int64_t>(layer_specs(config.model).size());
  // Prediction modules are behind the last layers: in their formats, unless some of those are kept.
  const bool is_last = precision.keep_last > 0 && weight.layer >= num_layers - precision.keep_last;
  const bool is_kept = weight.layer < precision.keep_first || is_last;
  const OperandFormat format =
      is_kept ? OperandFormat::kAct : format_of(precision_of(weight.part, precision), config.run.precision);
  const bool keeps_gradient =
      format == OperandFormat::kFp8 && !(precision.fp8_weight_gradients && weight.part == WeightPart::kExperts);
  return {.operands = format, .weight_gradient = keeps_gradient ? OperandFormat::kAct : format};
}

}  // namespace nmoe
