#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

void check_blocks(OperandFormat format, BlockShape blocks) {
  NMOE_CHECK(format != OperandFormat::kAct && !(blocks == BlockShape::kTiles && format == OperandFormat::kMxFp8),
             "there are no such blocks");
}

}  // namespace

void check(const AbsMax& args) {
  NMOE_CHECK(args.x.shape().rank() == 3 && is_act(args.x.dtype()) && args.amax.shape() == Shape({args.x.dim(0)}) &&
                 is_stat(args.amax.dtype()) && is_one_if_defined(args.num_rows, DType::kI32) &&
                 (!args.num_rows.defined() || args.x.dim(0) == 1),
             "largest magnitudes {} of {}, number of rows {}", args.amax.shape(), args.x.shape(),
             args.num_rows.shape());
}

void check(const Quantize& args) {
  NMOE_CHECK(args.x.shape().rank() == 3 && is_act(args.x.dtype()), "rounding of {} {}", dtype_name(args.x.dtype()),
             args.x.shape());
  const int64_t G = args.x.dim(0), N = args.x.dim(1), C = args.x.dim(2), n = block_size(args.format);
  const bool is_nvfp4 = args.format == OperandFormat::kNvFp4, tiles = args.blocks == BlockShape::kTiles;
  check_blocks(args.format, args.blocks);
  NMOE_CHECK(args.amax.defined() == is_nvfp4 && (!is_nvfp4 || args.amax.shape() == Shape({G})),
             "NVFP4 alone has a scale of the tensor, from its largest magnitude");
  NMOE_CHECK(!args.random.key.defined() || (is_nvfp4 && !tiles), "E2M1 in rows alone is rounded at random");
  NMOE_CHECK(!args.num_rows.defined() || (G == 1 && !tiles && is_one(args.num_rows, DType::kI32)),
             "a number of rows {} for {} matrices", args.num_rows.shape(), G);
  const int64_t across = (C + n - 1) / n;
  NMOE_CHECK(is(args.values, DType::kU8, {G, N, is_nvfp4 ? (C + 1) / 2 : C}) &&
                 is(args.scales, DType::kU8, {G, tiles ? (N + n - 1) / n : N, across}),
             "values {} and scales {} of {}", args.values.shape(), args.scales.shape(), args.x.shape());
  if (!args.transposed_values.defined()) return;
  NMOE_CHECK(args.format == OperandFormat::kFp8 && tiles && is(args.transposed_values, DType::kU8, {G, C, N}) &&
                 is(args.transposed_scales, DType::kU8, {G, across, (N + n - 1) / n}),
             "transposed values {} and scales {} of {}", args.transposed_values.shape(), args.transposed_scales.shape(),
             args.x.shape());
}

void check(const WidenRows& args) {
  NMOE_CHECK(args.codes.defined() && is_act(args.x.dtype()) && is_one_if_defined(args.num_rows, DType::kI32),
             "codes {} widened to {} {}, number of rows {}", args.codes.values.shape(), dtype_name(args.x.dtype()),
             args.x.shape(), args.num_rows.shape());
  check_codes(args.codes, args.x.shape());
}

void check(const MeasureRounding& args) {
  const bool tiles = args.blocks == BlockShape::kTiles;
  NMOE_CHECK(args.x.shape().rank() == 3 && is_act(args.x.dtype()) && is(args.counts, DType::kF64, {5}),
             "counts {} of {} {}", args.counts.shape(), dtype_name(args.x.dtype()), args.x.shape());
  check_blocks(args.format, args.blocks);
  NMOE_CHECK(args.offsets.defined() ? args.x.dim(0) == 1 && !tiles : !args.index.defined(),
             "experts' rows, or picked ones, of {} matrices", args.x.dim(0));
}

}  // namespace nmoe
