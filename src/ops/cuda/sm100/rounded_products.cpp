#include "ops/cuda/sm100/rounded_products.h"

#include <algorithm>

#include "ops/cuda/kernels/low_precision/nvfp4.h"
#include "ops/cuda/plans/linear.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/sm100/block_operands.h"
#include "ops/cuda/sm100/grouped_product.h"
#include "ops/cuda/vendor/cublaslt.h"

namespace nmoe::cuda::sm100 {
namespace {

// Whether a dense product is cuBLASLt's, which wants sizes of C in multiples of this. Others are the grouped kernel's,
// as those of experts are.
constexpr int64_t kVendorMultiple = 16;
bool is_vendors(Tensor c) { return c.dim(0) % kVendorMultiple == 0 && c.dim(1) % kVendorMultiple == 0; }

// C [M, N] = a b^T, + addend, which may be C.
void dense_product(Context& ctx, const BlockProductScratch& room, int64_t depth, Tensor c, Tensor addend) {
  const BlockOperand &a = room.a, &b = room.b;
  if (!is_vendors(c)) {
    return block_rows_product(
        ctx, {.a = a, .b = b, .depth = depth, .offsets = {}, .tile_offsets = {}, .c = c, .addend = addend});
  }
  const bool is_nvfp4 = a.format == OperandFormat::kNvFp4;
  if (is_nvfp4) nvfp4_dense_scale(ctx, a.amax, b.amax, addend.defined(), room.product_scale);
  const void* const added = addend.defined() ? addend.raw() : nullptr;
  ctx.cublas_lt.multiply(
      {.rows = c.dim(0),
       .cols = c.dim(1),
       .depth = a.values.dim(1) * (is_nvfp4 ? 2 : 1),  // with zeros behind the last
       .input = DType::kU8,
       .blocks = a.format,
       .output = c.dtype(),
       .transpose_b = true,
       .device_scales = is_nvfp4,
       .align_a = address_alignment(a.values.raw()),
       .align_b = address_alignment(b.values.raw()),
       .align_d = std::min(address_alignment(c.raw()), address_alignment(addend.defined() ? added : c.raw())),
       .workspace_bytes = kProductWorkspaceBytes},
      {.a = a.values.raw(),
       .b = b.values.raw(),
       .c = added,
       .d = c.raw(),
       .workspace = room.workspace.raw(),
       .beta = addend.defined() ? 1.0F : 0.0F,
       .scales = is_nvfp4 ? room.product_scale.data<float>() : nullptr,
       .a_scales = a.scales.raw(),
       .b_scales = b.scales.raw()},
      ctx.stream);
}

// y = rows times weights, + addend.
struct RowsProduct {
  OperandRows rows;
  Tensor w;
  bool over_out = false;  // which of the weights' dimensions is summed over
  Tensor offsets = {};
  Tensor y;
  Tensor addend = {};
  OperandRounding rounding;
};

void multiply(Context& ctx, const BlockProductScratch& room, const RowsProduct& p) {
  if (p.y.num_elements() == 0) return;
  if (p.offsets.defined()) count_tiles(ctx, p.offsets, room.tile_offsets);
  encode_rows(ctx, p.rows, p.offsets, p.rounding.random, room.a);
  if (p.over_out) {
    encode_weight_columns(ctx, p.w, room.b);
  } else {
    encode_weights(ctx, p.w, room.b);
  }
  if (!p.offsets.defined()) return dense_product(ctx, room, p.rows.width(), p.y, p.addend);
  block_rows_product(ctx, {.a = room.a,
                           .b = room.b,
                           .b_is_columns = p.over_out,
                           .depth = p.rows.width(),
                           .offsets = p.offsets,
                           .tile_offsets = room.tile_offsets,
                           .c = p.y,
                           .addend = {}});
}

void multiply_weights(Context& ctx, const BlockProductScratch& room, const OperandRows& x, const OperandRows& dy,
                      Tensor offsets, Tensor dw, bool accumulate, const OperandRounding& rounding) {
  if (dw.num_elements() == 0) return;
  if (x.num_rows() == 0) {  // the sums of nothing
    if (!accumulate) NMOE_CUDA_CHECK(cudaMemsetAsync(dw.raw(), 0, static_cast<size_t>(dw.num_bytes()), ctx.stream));
    return;
  }
  encode_columns(ctx, x, offsets, rounding.transform, /*random=*/{}, room.b);
  encode_columns(ctx, dy, offsets, rounding.transform, rounding.random, room.a);
  if (offsets.defined()) {
    count_tiles(ctx, offsets, room.tile_offsets);
    return block_weight_product(ctx,
                                {.a = room.a,
                                 .b = room.b,
                                 .offsets = offsets,
                                 .tile_offsets = room.tile_offsets,
                                 .c = dw,
                                 .accumulate = accumulate},
                                room.order);
  }
  dense_product(ctx, room, x.num_rows(), dw, accumulate ? dw : Tensor());
}

}  // namespace

void rounded_product(Context& ctx, const LinearForward& args, const BlockProductScratch& room) {
  multiply(ctx, room, {.rows = args.x, .w = args.w, .y = args.y, .addend = args.addend, .rounding = args.rounding});
}

void rounded_product(Context& ctx, const LinearBackwardInput& args, const BlockProductScratch& room) {
  multiply(ctx, room,
           {.rows = args.dy,
            .w = args.w,
            .over_out = true,
            .y = args.dx,
            .addend = args.accumulate ? args.dx : Tensor(),
            .rounding = args.rounding});
}

void rounded_product(Context& ctx, const LinearBackwardWeight& args, const BlockProductScratch& room) {
  multiply_weights(ctx, room, args.x, args.dy, /*offsets=*/{}, args.dw, args.accumulate, args.rounding);
}

void rounded_product(Context& ctx, const ExpertProduct& product, const BlockProductScratch& room) {
  multiply(ctx, room,
           {.rows = product.rows,
            .w = product.w,
            .over_out = product.over_out,
            .offsets = product.offsets,
            .y = product.result,
            .rounding = product.rounding});
}

void rounded_product(Context& ctx, const GroupedLinearBackwardWeight& args, const BlockProductScratch& room) {
  multiply_weights(ctx, room, args.x, args.dy, args.offsets, args.dw, args.accumulate, args.rounding);
}

}  // namespace nmoe::cuda::sm100
