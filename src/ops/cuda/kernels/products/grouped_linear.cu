// Linear layers over ragged groups of rows: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e, for the rows
// [offsets[e], offsets[e + 1]) of every expert e.
//
// Which kernels multiply, a plan says (plans/grouped_linear.h). Here are those for any operands: each product is a set
// of tiles of gemm_tile.cuh. The two whose rows are ragged run on a grid that fills the device: a block takes every
// gridDim.x-th tile and finds its expert by walking the offsets, 32 experts at a time. In the third, C has the shape of
// a weight and the rows are what is summed over: one block a tile of every expert.
#include <algorithm>

#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8_columns.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm100/grouped_product.h"
#include "ops/cuda/sm100/rounded_products.h"
#include "ops/cuda/sm90/grouped_fp8.h"
#include "ops/cuda/sm90/grouped_fp8_weight.h"
#include "ops/cuda/sm90/grouped_linear.h"

namespace nmoe::cuda {
namespace {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};
constexpr bool kHasSm90 = kKernels.has_sm90(), kHasSm100 = kKernels.has_sm100();
constexpr int kOrderThreads = 256;

// y[r, n] = sum over k of x[r, k] w_e[n, k], or of w_e[k, n] when not kWKMajor.
template <class T>
struct RowsProduct {
  const T* x;  // [R, depth]
  const T* w;  // [E, width, depth], or [E, depth, width]
  const int32_t* offsets;
  T* y;                // = [R, width]
  const float* scale;  // [E], what products are multiplied by; null: 1
  int num_experts, width, depth;
  bool x_vectors, w_vectors, y_pairs;  // accesses of 16 bytes, and of two values
};

template <class T, bool kWKMajor>
__global__ void __launch_bounds__(GemmTile<T>::kThreads, GemmTile<T>::kBlocksPerSm) rows_kernel(RowsProduct<T> p) {
  using Tile = GemmTile<T>;
  extern __shared__ uint4 shared[];
  GroupTileCursor<Tile::kRows> cursor(p.offsets, p.num_experts, ceil_div(p.width, Tile::kCols));
  for (int tile = static_cast<int>(blockIdx.x); cursor.move_to(tile); tile += static_cast<int>(gridDim.x)) {
    const int64_t row_begin = cursor.row_begin(), weight_size = static_cast<int64_t>(p.width) * p.depth;
    const int num_rows = cursor.num_rows();
    const GemmOperand<T, true> a{p.x + row_begin * p.depth, p.depth, num_rows, p.x_vectors};
    const GemmOperand<T, kWKMajor> b{p.w + cursor.expert() * weight_size, kWKMajor ? p.depth : p.width, p.width,
                                     p.w_vectors};
    T* y = p.y + row_begin * p.width;
    const float scale = p.scale == nullptr ? 1.0F : p.scale[cursor.expert()];
    gemm_tile(a, b, p.depth, cursor.row_tile() * Tile::kRows, cursor.col_tile() * Tile::kCols, shared,
              [&](int i, int j, float c0, float c1) {
                if (i >= num_rows || j >= p.width) return;
                T* target = y + static_cast<int64_t>(i) * p.width + j;
                if (p.y_pairs) {
                  store2(target, c0 * scale, c1 * scale);
                } else {
                  target[0] = from_float<T>(c0 * scale);
                  if (j + 1 < p.width) target[1] = from_float<T>(c1 * scale);
                }
              });
  }
}

template <class T>
struct WeightProduct {
  const T* dy;  // [R, rows]
  const T* x;   // [R, cols]
  const int32_t* offsets;
  float* dw;           // += [E, rows, cols]
  const float* scale;  // as above
  int rows, cols;
  bool dy_vectors, x_vectors;
  bool accumulate;
};

// Grid (tiles of a weight, experts).
template <class T>
__global__ void __launch_bounds__(GemmTile<T>::kThreads, GemmTile<T>::kBlocksPerSm) weight_kernel(WeightProduct<T> p) {
  using Tile = GemmTile<T>;
  extern __shared__ uint4 shared[];
  const int64_t expert = blockIdx.y, row_begin = p.offsets[expert];
  const int depth = p.offsets[expert + 1] - static_cast<int>(row_begin);
  if (depth <= 0 && p.accumulate) return;
  const int row_tiles = ceil_div(p.rows, Tile::kRows), tile = static_cast<int>(blockIdx.x);
  const GemmOperand<T, false> a{p.dy + row_begin * p.rows, p.rows, p.rows, p.dy_vectors};
  const GemmOperand<T, false> b{p.x + row_begin * p.cols, p.cols, p.cols, p.x_vectors};
  float* dw = p.dw + expert * p.rows * p.cols;
  const bool pairs = p.cols % 2 == 0;
  const float scale = p.scale == nullptr ? 1.0F : p.scale[expert];
  gemm_tile(a, b, depth, tile % row_tiles * Tile::kRows, tile / row_tiles * Tile::kCols, shared,
            [&](int i, int j, float c0, float c1) {
              if (i >= p.rows || j >= p.cols) return;
              c0 *= scale, c1 *= scale;
              float* target = dw + static_cast<int64_t>(i) * p.cols + j;
              if (pairs) {
                auto* pair = reinterpret_cast<float2*>(target);
                const float2 old = p.accumulate ? *pair : make_float2(0.0F, 0.0F);
                *pair = make_float2(old.x + c0, old.y + c1);
              } else {
                target[0] = (p.accumulate ? target[0] : 0.0F) + c0;
                if (j + 1 < p.cols) target[1] = (p.accumulate ? target[1] : 0.0F) + c1;
              }
            });
}

// rows[r] = source[index[r]] for the first *num_rows. A warp a row.
template <class T>
__global__ void __launch_bounds__(kOrderThreads)
    order_rows_kernel(const T* source, const int32_t* index, T* rows, const int32_t* num_rows, int64_t width) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kOrderThreads + threadIdx.x) / kWarp;
  if (row >= *num_rows) return;
  for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) rows[row * width + i] = source[index[row] * width + i];
}

// The rows in order, in `ordered` if they are picked.
Tensor in_order(Context& ctx, const OperandRows& rows, Tensor offsets, Tensor ordered) {
  if (!rows.index.defined()) return rows.source;
  if (ordered.num_elements() == 0) return ordered;
  const auto run = [&]<class T>(const T* source) {
    order_rows_kernel<<<grid_size(ceil_div<int64_t>(rows.num_rows(), kOrderThreads / kWarp)), kOrderThreads, 0,
                        ctx.stream>>>(source, rows.index.data<int32_t>(), ordered.data<T>(),
                                      offsets.data<int32_t>() + offsets.dim(0) - 1, rows.width());
    NMOE_CUDA_CHECK(cudaGetLastError());
  };
  if (ordered.dtype() == DType::kBF16) {
    run(rows.source.data<__nv_bfloat16>());
  } else {
    run(rows.source.data<float>());
  }
  return ordered;
}

// Whether rows of `width` values may be read by 16 bytes from `tensor`.
bool vector_rows(Tensor tensor, int64_t width) { return width % 8 == 0 && aligned16(tensor.raw()); }

void check_groups(const OperandRows& rows, Tensor w, Tensor offsets, const OperandRows& other_rows, int64_t width,
                  int64_t other_width) {
  const Tensor source = rows.source, other = other_rows.source;
  const int64_t num_rows = rows.num_rows();
  NMOE_CHECK(w.shape().rank() == 3 && source.shape() == Shape({source.dim(0), width}) &&
                 other.shape() == Shape({other.dim(0), other_width}) && other_rows.num_rows() == num_rows &&
                 offsets.dim(0) == w.dim(0) + 1 && source.dtype() == other.dtype(),
             "grouped linear: {} rows of {} {} and {} of {} {}, weights {}, offsets {}", num_rows,
             dtype_name(source.dtype()), source.shape(), other_rows.num_rows(), dtype_name(other.dtype()),
             other.shape(), w.shape(), offsets.shape());
  NMOE_CHECK(!rows.index.defined() || !other_rows.index.defined(),
             "grouped linear whose rows are picked on both sides");
  // Tiles and rows are counted in 32 bits.
  NMOE_CHECK(num_rows <= INT32_MAX && width <= INT32_MAX / 2 && other_width <= INT32_MAX / 2 && w.dim(0) <= 65535,
             "grouped linear over {} of {} and {} values, {} experts", num_rows, width, other_width, w.dim(0));
}

// y = the product of x [R, depth] with the experts' weights.
template <class T, bool kWKMajor>
void rows_product(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y, Tensor scale) {
  using Tile = GemmTile<T>;
  const int64_t num_experts = w.dim(0), width = y.dim(1), depth = x.dim(1);
  const RowsProduct<T> product{.x = x.data<T>(),
                               .w = w.data<T>(),
                               .offsets = offsets.data<int32_t>(),
                               .y = y.data<T>(),
                               .scale = scale.defined() ? scale.data<float>() : nullptr,
                               .num_experts = static_cast<int>(num_experts),
                               .width = static_cast<int>(width),
                               .depth = static_cast<int>(depth),
                               .x_vectors = vector_rows(x, depth),
                               .w_vectors = vector_rows(w, kWKMajor ? depth : width),
                               .y_pairs = width % 2 == 0};
  // Every expert has at most one row tile that is not full.
  const int64_t row_tiles = x.dim(0) / Tile::kRows + std::min(num_experts, x.dim(0));
  const int64_t max_tiles = row_tiles * ceil_div<int64_t>(width, Tile::kCols);
  NMOE_CHECK(max_tiles <= INT32_MAX / 2, "grouped linear of {} tiles", max_tiles);
  const int64_t blocks = std::min<int64_t>(max_tiles, static_cast<int64_t>(ctx.num_sms) * Tile::kBlocksPerSm);
  allow_dynamic_shared(rows_kernel<T, kWKMajor>, Tile::kSharedBytes);
  rows_kernel<T, kWKMajor><<<static_cast<unsigned>(blocks), Tile::kThreads, Tile::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

template <bool kWKMajor>
void tile_product(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y, Tensor scale) {
  if (x.dtype() == DType::kBF16) {
    rows_product<__nv_bfloat16, kWKMajor>(ctx, x, w, offsets, y, scale);
  } else {
    rows_product<float, kWKMajor>(ctx, x, w, offsets, y, scale);
  }
}

template <class T>
void weight_product(Context& ctx, Tensor x, Tensor dy, const GroupedLinearBackwardWeight& args) {
  using Tile = GemmTile<T>;
  const Tensor dw = args.dw, scale = args.rounding.product_scale;
  const int64_t num_experts = dw.dim(0), rows = dw.dim(1), cols = dw.dim(2);
  const WeightProduct<T> product{.dy = dy.data<T>(),
                                 .x = x.data<T>(),
                                 .offsets = args.offsets.data<int32_t>(),
                                 .dw = dw.data<float>(),
                                 .scale = scale.defined() ? scale.data<float>() : nullptr,
                                 .rows = static_cast<int>(rows),
                                 .cols = static_cast<int>(cols),
                                 .dy_vectors = vector_rows(dy, rows),
                                 .x_vectors = vector_rows(x, cols),
                                 .accumulate = args.accumulate};
  const int64_t tiles = ceil_div<int64_t>(rows, Tile::kRows) * ceil_div<int64_t>(cols, Tile::kCols);
  NMOE_CHECK(tiles <= INT32_MAX, "grouped linear of {} tiles a weight", tiles);
  allow_dynamic_shared(weight_kernel<T>, Tile::kSharedBytes);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(num_experts));
  weight_kernel<T><<<grid, Tile::kThreads, Tile::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// The number of rows, as a tensor.
Tensor num_rows_of(Tensor offsets) { return offsets.rows(offsets.dim(0) - 1, offsets.dim(0)); }

// y = the product of x with the experts' weights in codes.
void fp8_product(Context& ctx, const OperandRounding& rounding, const OperandRows& x, const RowCodes& room, Tensor w,
                 Tensor w_scales, Tensor offsets, Tensor y) {
  if constexpr (kHasSm90) {
    sm90::grouped_fp8(ctx, {.x = product_codes(ctx, rounding, x, num_rows_of(offsets), room),
                            .w = w,
                            .w_scales = w_scales,
                            .offsets = offsets,
                            .y = y,
                            .addend = {}});
  }
}

// dw from codes of its operands' columns.
void fp8_weight_gradient(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  const bool has_x = args.x_columns.defined(), has_dy = args.dy_columns.defined();
  if (!has_x) quantize_fp8_columns(ctx, args.x, args.offsets, plan.x_columns);
  if (!has_dy) quantize_fp8_columns(ctx, args.dy, args.offsets, plan.dy_columns);
  if constexpr (kHasSm90) {
    sm90::grouped_fp8_weight(ctx, {.x = has_x ? args.x_columns : plan.x_columns,
                                   .dy = has_dy ? args.dy_columns : plan.dy_columns,
                                   .num_rows = args.dy.num_rows(),
                                   .offsets = args.offsets,
                                   .order = plan.order,
                                   .dw = args.dw,
                                   .accumulate = args.accumulate,
                                   .squares = args.squares});
  }
}

// Codes of what an operation made, where they are wanted.
void write_codes(Context& ctx, Tensor x, Tensor offsets, const RowCodes& codes) {
  if (codes.defined()) quantize(ctx, quantize_rows(x, codes, num_rows_of(offsets)));
}
void write_columns(Context& ctx, Tensor x, Tensor offsets, const ColumnCodes& columns) {
  if (columns.defined()) quantize_fp8_columns(ctx, x, offsets, columns);
}

// Kernels of tensor cores read by 16 bytes. Arenas align what they hold, so only a bug can fail here.
void check_aligned(GroupedEngine engine, std::initializer_list<Tensor> tensors) {
  if (engine != GroupedEngine::kSm90 && engine != GroupedEngine::kSm100) return;
  for (const Tensor& tensor : tensors) {
    NMOE_CHECK(aligned16(tensor.raw()), "a grouped product of {} at {}", tensor.shape(), tensor.raw());
  }
}

}  // namespace

void grouped_linear_forward(Context& ctx, const GroupedLinearForward& args, const GroupedLinearPlan& plan) {
  const Tensor x = args.x, w = args.w, offsets = args.offsets, y = args.y;
  check_groups(x, w, offsets, y, w.dim(2), w.dim(1));
  if (y.num_elements() == 0) return;
  check_aligned(plan.engine, {x, w, y});
  switch (plan.engine) {
    case GroupedEngine::kCodes: {
      const WeightCodes& codes = args.rounding.weight;
      return fp8_product(ctx, args.rounding, x, plan.codes, codes.values, codes.scales, offsets, y);
    }
    case GroupedEngine::kBlocks:
      if constexpr (kHasSm100) sm100::rounded_product(ctx, args, plan.blocks);
      return;
    case GroupedEngine::kSm100:
      if constexpr (kHasSm100) sm100::grouped_forward(ctx, x, w, offsets, y);
      return;
    case GroupedEngine::kSm90:
      if constexpr (kHasSm90) sm90::grouped_forward(ctx, args);
      return;
    case GroupedEngine::kTiles:
      return tile_product</*kWKMajor=*/true>(ctx, x, w, offsets, y, args.rounding.product_scale);
  }
}

namespace {

// The product and SwiGLU in one kernel.
void fused_activation_forward(Context& ctx, const GroupedActivationForward& args, const GroupedLinearPlan& product) {
  const Tensor w = args.w, offsets = args.offsets, row_weight = args.row_weight, pre = args.pre, h = args.h;
  check_groups(args.x, w, offsets, pre, w.dim(2), w.dim(1));
  if (pre.num_elements() == 0) return;
  if constexpr (kHasSm90) {
    if (product.engine == GroupedEngine::kCodes) {
      static_assert(sm90::kFp8SwiGluCols == block_size(OperandFormat::kFp8));
      const WeightCodes& codes = args.rounding.weight;
      return sm90::grouped_fp8_swiglu(
          ctx, {.x = product_codes(ctx, args.rounding, args.x, num_rows_of(offsets), product.codes),
                .w = codes.values,
                .w_scales = codes.scales,
                .offsets = offsets,
                .row_weight = row_weight,
                .pre = pre,
                .pre_codes = args.pre_codes,
                .h = args.keeps_h ? h : Tensor(),
                .h_codes = args.h_codes,
                .h_columns = args.h_columns});
    }
    NMOE_CHECK(h.shape() == Shape({pre.dim(0), w.dim(1) / 2}) && h.dtype() == pre.dtype() && w.dtype() == pre.dtype() &&
                   row_weight.dim(0) == pre.dim(0),
               "grouped activation of {} into {} {}, weights {} {} and of rows {}", pre.shape(), dtype_name(h.dtype()),
               h.shape(), dtype_name(w.dtype()), w.shape(), row_weight.shape());
    check_aligned(product.engine, {args.x.source, w, pre, h});
    sm90::grouped_swiglu(ctx, args);
    write_codes(ctx, pre, offsets, args.pre_codes);
    write_codes(ctx, h, offsets, args.h_codes);
  }
}

}  // namespace

void grouped_activation_forward(Context& ctx, const GroupedActivationForward& args,
                                const GroupedActivationForwardPlan& plan) {
  if (plan.fused) return fused_activation_forward(ctx, args, plan.product);
  const Tensor w = args.w, offsets = args.offsets, pre = args.pre;
  const GroupedLinearPlan& product = plan.product;
  check_groups(args.x, w, offsets, pre, w.dim(2), w.dim(1));
  if (pre.num_elements() > 0 && product.engine == GroupedEngine::kCodes) {
    const WeightCodes& codes = args.rounding.weight;
    fp8_product(ctx, args.rounding, args.x, product.codes, codes.values, codes.scales, offsets, pre);
  } else if (product.engine == GroupedEngine::kBlocks) {
    if constexpr (kHasSm100) sm100::rounded_product(ctx, args, product.blocks);
  } else {
    const Tensor x = in_order(ctx, args.x, offsets, plan.x);
    grouped_linear_forward(ctx, {.x = x, .w = w, .offsets = offsets, .y = pre, .rounding = args.rounding}, product);
  }
  const Tensor hidden = args.h_columns.defined() ? plan.h : args.h;
  activation_forward(ctx, {.kind = args.kind,
                           .pre = pre,
                           .row_weight = args.row_weight,
                           .h = hidden,
                           .num_rows = num_rows_of(offsets),
                           .h_codes = args.h_codes,
                           .keeps_h = args.keeps_h || args.h_columns.defined(),
                           .pre_codes = args.pre_codes});
  write_columns(ctx, hidden, offsets, args.h_columns);
}

void grouped_linear_backward_input(Context& ctx, const GroupedLinearBackwardInput& args,
                                   const GroupedLinearPlan& plan) {
  const Tensor dy = args.dy, w = args.w, offsets = args.offsets, dx = args.dx;
  check_groups(dy, w, offsets, dx, w.dim(1), w.dim(2));
  if (dx.num_elements() == 0) return;
  check_aligned(plan.engine, {dy, w, dx});
  switch (plan.engine) {
    case GroupedEngine::kCodes: {
      const WeightCodes& codes = args.rounding.weight;
      return fp8_product(ctx, args.rounding, dy, plan.codes, codes.transposed_values, codes.transposed_scales, offsets,
                         dx);
    }
    case GroupedEngine::kBlocks:
      if constexpr (kHasSm100) sm100::rounded_product(ctx, args, plan.blocks);
      return;
    case GroupedEngine::kSm100:
      if constexpr (kHasSm100) sm100::grouped_backward_input(ctx, dy, w, offsets, dx);
      return;
    case GroupedEngine::kSm90:
      if constexpr (kHasSm90) sm90::grouped_backward_input(ctx, args);
      return;
    case GroupedEngine::kTiles:
      return tile_product</*kWKMajor=*/false>(ctx, dy, w, offsets, dx, args.rounding.product_scale);
  }
}

namespace {

// The product and SwiGLU's backward in one kernel. pre_codes: args.pre_codes where they are read in place of pre.
void fused_activation_backward(Context& ctx, const GroupedActivationBackward& args,
                               const GroupedActivationBackwardPlan& plan, const RowCodes& pre_codes) {
  const Tensor w = args.w, offsets = args.offsets, pre = args.pre, dpre = args.dpre;
  check_groups(args.dy, w, offsets, pre, w.dim(1), 2 * w.dim(2));
  if (pre.num_elements() == 0) return;
  if constexpr (kHasSm90) {
    if (plan.product.engine == GroupedEngine::kCodes) {
      const WeightCodes& codes = args.rounding.weight;
      const bool codes_alone = args.dpre_columns.defined() && !args.keeps_dpre;
      if (args.h.defined()) {
        activation_forward(ctx, {.kind = args.kind,
                                 .pre = pre,
                                 .row_weight = args.row_weight,
                                 .h = args.h,
                                 .num_rows = num_rows_of(offsets)});
      }
      sm90::grouped_fp8_swiglu_backward(
          ctx, {.x = product_codes(ctx, args.rounding, args.dy, num_rows_of(offsets), plan.product.codes),
                .w = codes.transposed_values,
                .w_scales = codes.transposed_scales,
                .offsets = offsets,
                .pre = pre,
                .pre_codes = pre_codes,
                .row_weight = args.row_weight,
                .dpre = dpre,
                .dpre_codes = args.dpre_codes,
                .dpre_columns = codes_alone ? args.dpre_columns : ColumnCodes{},
                .row_sums = plan.row_sums,
                .drow_weight = args.drow_weight});
      return codes_alone ? void() : write_columns(ctx, dpre, offsets, args.dpre_columns);
    }
    NMOE_CHECK(dpre.shape() == pre.shape() && dpre.dtype() == pre.dtype() && w.dtype() == pre.dtype() &&
                   args.row_weight.dim(0) == pre.dim(0) && args.drow_weight.shape() == args.row_weight.shape(),
               "gradients {} {} of {}, weights {} {}, of rows {} and {}", dtype_name(dpre.dtype()), dpre.shape(),
               pre.shape(), dtype_name(w.dtype()), w.shape(), args.row_weight.shape(), args.drow_weight.shape());
    check_aligned(plan.product.engine, {args.dy.source, w, pre, dpre, args.h});
    sm90::grouped_swiglu_backward(ctx, args, plan.row_sums);
    write_codes(ctx, dpre, offsets, args.dpre_codes);
  }
}

}  // namespace

void grouped_activation_backward(Context& ctx, const GroupedActivationBackward& args,
                                 const GroupedActivationBackwardPlan& plan) {
  const Tensor w = args.w, offsets = args.offsets, pre = args.pre, dpre = args.dpre, dh = plan.dh;
  NMOE_CHECK(!args.h.defined() || (args.h.shape() == Shape({pre.dim(0), w.dim(2)}) && args.h.dtype() == pre.dtype()),
             "an activation {} {} of {}", dtype_name(args.h.dtype()), args.h.shape(), pre.shape());
  const GroupedLinearPlan& product = plan.product;
  // Whether nothing reads pre-activations but as codes.
  const bool reads_codes = plan.fused && product.engine == GroupedEngine::kCodes && args.pre_codes.defined() &&
                           args.dpre_columns.defined() && !args.keeps_dpre && !args.h.defined();
  const RowCodes pre_codes = reads_codes ? args.pre_codes : RowCodes{};
  if (args.pre_codes.defined() && !reads_codes) {
    widen_rows(ctx, {.codes = args.pre_codes, .x = pre, .num_rows = num_rows_of(offsets)});
  }
  if (args.h_columns.defined()) {
    activation_fp8_columns(ctx, {.kind = args.kind,
                                 .pre = pre,
                                 .pre_codes = pre_codes,
                                 .row_weight = args.row_weight,
                                 .offsets = offsets,
                                 .columns = args.h_columns});
  }
  if (plan.fused) return fused_activation_backward(ctx, args, plan, pre_codes);
  check_groups(args.dy, w, offsets, dh, w.dim(1), w.dim(2));
  if (dh.num_elements() > 0 && product.engine == GroupedEngine::kCodes) {
    const WeightCodes& codes = args.rounding.weight;
    fp8_product(ctx, args.rounding, args.dy, product.codes, codes.transposed_values, codes.transposed_scales, offsets,
                dh);
  } else if (product.engine == GroupedEngine::kBlocks) {
    if constexpr (kHasSm100) sm100::rounded_product(ctx, args, product.blocks, dh);
  } else {
    const Tensor dy = in_order(ctx, args.dy, offsets, plan.dy);
    grouped_linear_backward_input(ctx, {.dy = dy, .w = w, .offsets = offsets, .dx = dh, .rounding = args.rounding},
                                  product);
  }
  activation_backward(ctx, {.kind = args.kind,
                            .pre = pre,
                            .row_weight = args.row_weight,
                            .dh = dh,
                            .dpre = dpre,
                            .drow_weight = args.drow_weight,
                            .num_rows = num_rows_of(offsets),
                            .dpre_codes = args.dpre_codes,
                            .h = args.h});
  write_columns(ctx, dpre, offsets, args.dpre_columns);
}

namespace {

// Whether the product has left the squares too.
bool weight_gradient(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  NMOE_CHECK(args.rounding.format == OperandFormat::kFp8 || !(args.x_columns.defined() || args.dy_columns.defined()),
             "codes of columns are operands of products in FP8");
  const Tensor offsets = args.offsets, dw = args.dw;
  if (plan.engine == GroupedEngine::kBlocks) {
    if constexpr (kHasSm100) sm100::rounded_product(ctx, args, plan.blocks);
    return false;
  }
  if (plan.engine == GroupedEngine::kCodes) {
    fp8_weight_gradient(ctx, args, plan);
    return true;
  }
  check_groups(args.dy, dw, offsets, args.x, dw.dim(1), dw.dim(2));
  check_aligned(plan.engine, {args.x.source, args.dy.source, dw});
  if (plan.engine == GroupedEngine::kSm90) {
    if constexpr (kHasSm90) sm90::grouped_backward_weight(ctx, args, plan.order);
    return true;
  }
  const Tensor x = in_order(ctx, args.x, offsets, plan.x), dy = in_order(ctx, args.dy, offsets, plan.dy);
  if (plan.engine == GroupedEngine::kSm100) {
    if constexpr (kHasSm100) {
      sm100::grouped_backward_weight(ctx, x, dy, offsets, dw, args.accumulate, plan.order);
    }
  } else if (x.dtype() == DType::kBF16) {
    weight_product<__nv_bfloat16>(ctx, x, dy, args);
  } else {
    weight_product<float>(ctx, x, dy, args);
  }
  return false;
}

// By a block for each part, a thread for each of its columns.
__global__ void __launch_bounds__(kSquareCols) squares_kernel(const float* dw, int rows, int cols, double* squares) {
  const auto at = (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * kSquareRows),
            col = static_cast<int>(blockIdx.x * kSquareCols + threadIdx.x);
  double total = 0;
  for (int row = first; col < cols && row < min(first + static_cast<int>(kSquareRows), rows); ++row) {
    const double value = dw[(static_cast<int64_t>(blockIdx.z) * rows + row) * cols + col];
    total += value * value;
  }
  total = block_sum(total);
  if (threadIdx.x == 0) squares[at] = total;
}

}  // namespace

void grouped_linear_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args,
                                    const GroupedWeightPlan& plan) {
  const Tensor dw = args.dw, squares = args.squares;
  if (dw.num_elements() == 0) return;
  NMOE_CHECK(!squares.defined() || (!args.accumulate && squares.shape() == square_parts(dw.shape())),
             "squares {} of gradients {}, added to: {}", squares.shape(), dw.shape(), args.accumulate);
  const bool has_squares = weight_gradient(ctx, args, plan);
  if (has_squares || !squares.defined()) return;
  const dim3 parts(grid_size(squares.dim(2)), short_grid_size(squares.dim(1)), short_grid_size(squares.dim(0)));
  squares_kernel<<<parts, kSquareCols, 0, ctx.stream>>>(dw.data<float>(), static_cast<int>(dw.dim(1)),
                                                        static_cast<int>(dw.dim(2)), squares.data<double>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
