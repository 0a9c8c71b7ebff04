// Linear layers over ragged groups of rows: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e, for the rows
// [offsets[e], offsets[e + 1]) of every expert e.
//
// Which kernels multiply, a plan says (plans/grouped_linear.h): an engine, whose functions are a row of kEngineRuns.
// Here are the kernels for any operands, too: each product is a set of tiles of gemm_tile.cuh, but forward ones of F32,
// which have generation's kernel and bits (invariant_products.h). The two whose rows are ragged run on a grid that
// fills the device: a block takes every gridDim.x-th tile and finds its expert by walking the offsets, 32 experts at a
// time. In the third, C has the shape of a weight and the rows are what is summed over: one block a tile of every
// expert.
#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "ops/cuda/kernels/experts/expert_bias.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8_columns.h"
#include "ops/cuda/kernels/products/invariant_products.h"
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

// y = the product of x [R, depth] with the experts' weights.
template <class T, bool kWKMajor>
void rows_product(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y, Tensor scale) {
  using Tile = GemmTile<T>;
  const int64_t num_experts = w.dim(0), width = y.dim(1), depth = x.dim(1);
  const RowsProduct<T> product{.x = x.data<T>(),
                               .w = w.data<T>(),
                               .offsets = offsets.data<int32_t>(),
                               .y = y.data<T>(),
                               .scale = scale.data_or_null<float>(),
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

template <class T>
void weight_product(Context& ctx, Tensor x, Tensor dy, const GroupedLinearBackwardWeight& args) {
  using Tile = GemmTile<T>;
  const Tensor dw = args.dw, scale = args.rounding.product_scale;
  const int64_t num_experts = dw.dim(0), rows = dw.dim(1), cols = dw.dim(2);
  const WeightProduct<T> product{.dy = dy.data<T>(),
                                 .x = x.data<T>(),
                                 .offsets = args.offsets.data<int32_t>(),
                                 .dw = dw.data<float>(),
                                 .scale = scale.data_or_null<float>(),
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

// Codes of what an operation made, where they are wanted.
void write_codes(Context& ctx, Tensor x, Tensor offsets, const RowCodes& codes) {
  if (codes.defined()) quantize(ctx, quantize_rows(x, codes, num_rows_of(offsets)));
}
void write_columns(Context& ctx, Tensor x, Tensor offsets, const ColumnCodes& columns) {
  if (columns.defined()) quantize_fp8_columns(ctx, x, offsets, columns);
}

// Kernels of tensor cores read by 16 bytes. Arenas align what they hold, so only a bug can fail here.
void check_aligned(std::initializer_list<Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    NMOE_CHECK(aligned16(tensor.raw()), "a grouped product of {} at {}", tensor.shape(), tensor.raw());
  }
}

// --- products of rows by weights, of each engine
void tiles_product(Context& ctx, const ExpertProduct& p, const GroupedLinearPlan&) {
  const bool is_f32_forward = p.w.dtype() == DType::kF32 && !p.over_out;
  if (is_f32_forward && !p.rounding.product_scale.defined()) {
    return invariant_grouped_product(ctx, p.rows, p.w, p.offsets, p.result);
  }
  const auto run = [&]<class T, bool kWKMajor>() {
    rows_product<T, kWKMajor>(ctx, p.rows.source, p.w, p.offsets, p.result, p.rounding.product_scale);
  };
  const auto of_dtype = [&]<class T>(T) {
    p.over_out ? run.template operator()<T, /*kWKMajor=*/false>() : run.template operator()<T, /*kWKMajor=*/true>();
  };
  dispatch_act(p.w.dtype(), of_dtype);
}

void sm90_product(Context& ctx, const ExpertProduct& p, const GroupedLinearPlan&) {
  if constexpr (kHasSm90) sm90::grouped_product(ctx, p);
}

void sm100_product(Context& ctx, const ExpertProduct& p, const GroupedLinearPlan&) {
  if constexpr (kHasSm100) {
    const auto product = p.over_out ? sm100::grouped_backward_input : sm100::grouped_forward;
    product(ctx, p.rows.source, p.w, p.offsets, p.result);
  }
}

void codes_product(Context& ctx, const ExpertProduct& p, const GroupedLinearPlan& plan) {
  if constexpr (kHasSm90) {
    const WeightCodes& w = p.rounding.weight;
    sm90::grouped_fp8(ctx, {.x = product_codes(ctx, p.rounding, p.rows, num_rows_of(p.offsets), plan.codes),
                            .w = p.over_out ? w.transposed_values : w.values,
                            .w_scales = p.over_out ? w.transposed_scales : w.scales,
                            .offsets = p.offsets,
                            .y = p.result,
                            .addend = {}});
  }
}

void blocks_product(Context& ctx, const ExpertProduct& p, const GroupedLinearPlan& plan) {
  if constexpr (kHasSm100) sm100::rounded_product(ctx, p, plan.blocks);
}

// --- with an activation in the same kernel
void sm90_activation(Context& ctx, const GroupedActivationForward& args, const GroupedActivationForwardPlan& plan) {
  if constexpr (kHasSm90) {
    GroupedActivationForward product = args;
    if (args.h_columns.defined()) product.h = plan.h;
    check_aligned({args.x.source, args.w, args.pre, product.h});
    sm90::grouped_activation(ctx, product);
    write_codes(ctx, args.pre, args.offsets, args.pre_codes);
    write_codes(ctx, product.h, args.offsets, args.h_codes);
    write_columns(ctx, product.h, args.offsets, args.h_columns);
  }
}

void codes_activation(Context& ctx, const GroupedActivationForward& args, const GroupedActivationForwardPlan& plan) {
  if constexpr (kHasSm90) {
    static_assert(sm90::kFp8ActivationCols == block_size(OperandFormat::kFp8));
    const WeightCodes& w = args.rounding.weight;
    sm90::grouped_fp8_activation(
        ctx, {.kind = args.kind,
              .x = product_codes(ctx, args.rounding, args.x, num_rows_of(args.offsets), plan.product.codes),
              .w = w.values,
              .w_scales = w.scales,
              .offsets = args.offsets,
              .row_weight = args.row_weight,
              .pre = args.pre,
              .pre_codes = args.pre_codes,
              .h = args.keeps_h ? args.h : Tensor(),
              .h_codes = args.h_codes,
              .h_columns = args.h_columns});
  }
}

void sm90_activation_backward(Context& ctx, const GroupedActivationBackward& args,
                              const GroupedActivationBackwardPlan& plan) {
  if constexpr (kHasSm90) {
    check_aligned({args.dy.source, args.w, args.pre, args.dpre, args.h});
    sm90::grouped_activation_backward(ctx, args, plan.row_sums);
    write_codes(ctx, args.dpre, args.offsets, args.dpre_codes);
    write_columns(ctx, args.dpre, args.offsets, args.dpre_columns);
  }
}

// args.pre_codes: where they are read in place of pre.
void codes_activation_backward(Context& ctx, const GroupedActivationBackward& args,
                               const GroupedActivationBackwardPlan& plan) {
  if constexpr (kHasSm90) {
    const WeightCodes& w = args.rounding.weight;
    const Tensor offsets = args.offsets;
    const bool codes_alone = args.dpre_columns.defined() && !args.keeps_dpre;
    if (args.h.defined()) {
      activation_forward(ctx, {.kind = args.kind,
                               .pre = args.pre,
                               .row_weight = args.row_weight,
                               .h = args.h,
                               .num_rows = num_rows_of(offsets)});
    }
    sm90::grouped_fp8_activation_backward(
        ctx, {.kind = args.kind,
              .x = product_codes(ctx, args.rounding, args.dy, num_rows_of(offsets), plan.product.codes),
              .w = w.transposed_values,
              .w_scales = w.transposed_scales,
              .offsets = offsets,
              .pre = args.pre,
              .pre_codes = args.pre_codes,
              .row_weight = args.row_weight,
              .dpre = args.dpre,
              .dpre_codes = args.dpre_codes,
              .dpre_columns = codes_alone ? args.dpre_columns : ColumnCodes{},
              .row_sums = plan.row_sums,
              .drow_weight = args.drow_weight});
    if (!codes_alone) write_columns(ctx, args.dpre, offsets, args.dpre_columns);
  }
}

// --- weights' gradients
void tiles_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  const Tensor x = in_order(ctx, args.x, args.offsets, plan.x), dy = in_order(ctx, args.dy, args.offsets, plan.dy);
  dispatch_act(x.dtype(), [&]<class T>(T) { weight_product<T>(ctx, x, dy, args); });
}

void sm90_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  check_aligned({args.x.source, args.dy.source, args.dw});
  if constexpr (kHasSm90) sm90::grouped_backward_weight(ctx, args, plan.order);
}

void sm100_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  check_aligned({args.x.source, args.dy.source, args.dw});
  const Tensor x = in_order(ctx, args.x, args.offsets, plan.x), dy = in_order(ctx, args.dy, args.offsets, plan.dy);
  if constexpr (kHasSm100) {
    sm100::grouped_backward_weight(ctx, x, dy, args.offsets, args.dw, args.accumulate, plan.order);
  }
}

// From codes of its operands' columns.
void codes_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  const bool has_x = args.x_columns.defined(), has_dy = args.dy_columns.defined();
  if (!has_x) quantize_fp8_columns(ctx, args.x, args.offsets, plan.x_columns);
  if (!has_dy) quantize_fp8_columns(ctx, args.dy, args.offsets, plan.dy_columns);
  if constexpr (kHasSm90) {
    sm90::grouped_fp8_weight(ctx, {.x = has_x ? args.x_columns : plan.x_columns,
                                   .dy = has_dy ? args.dy_columns : plan.dy_columns,
                                   .num_rows = args.num_rows(),
                                   .offsets = args.offsets,
                                   .order = plan.order,
                                   .dw = args.dw,
                                   .accumulate = args.accumulate,
                                   .squares = args.squares});
  }
}

void blocks_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedWeightPlan& plan) {
  if constexpr (kHasSm100) sm100::rounded_product(ctx, args, plan.blocks);
}

// --- what runs for an engine. Plans choose none that this program has no kernels for, and fuse no activation where
// there is no function for it.
struct EngineRuns {
  void (*product)(Context&, const ExpertProduct&, const GroupedLinearPlan&);
  void (*weight)(Context&, const GroupedLinearBackwardWeight&, const GroupedWeightPlan&);
  bool leaves_squares;  // of weights' gradients
  bool wants_16_bytes;  // at which rows, weights and result begin
  void (*activation)(Context&, const GroupedActivationForward&, const GroupedActivationForwardPlan&) = nullptr;
  void (*activation_backward)(Context&, const GroupedActivationBackward&,
                              const GroupedActivationBackwardPlan&) = nullptr;
};
constexpr EngineRuns kEngineRuns[] = {
    /*kTiles=*/{tiles_product, tiles_weight, /*leaves_squares=*/false, /*wants_16_bytes=*/false},
    /*kSm90=*/{sm90_product, sm90_weight, true, true, sm90_activation, sm90_activation_backward},
    /*kSm100=*/{sm100_product, sm100_weight, false, true},
    /*kCodes=*/{codes_product, codes_weight, true, false, codes_activation, codes_activation_backward},
    /*kBlocks=*/{blocks_product, blocks_weight, false, false},
};
const EngineRuns& runs_of(GroupedEngine engine) { return kEngineRuns[static_cast<size_t>(engine)]; }
static_assert(std::size(kEngineRuns) == kNumGroupedEngines);

void multiply(Context& ctx, const ExpertProduct& p, const GroupedLinearPlan& plan) {
  if (p.result.num_elements() == 0) return;
  const EngineRuns& runs = runs_of(plan.engine);
  if (runs.wants_16_bytes) check_aligned({p.rows.source, p.w, p.result});
  runs.product(ctx, p, plan);
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

void grouped_linear_forward(Context& ctx, const GroupedLinearForward& args, const GroupedLinearPlan& plan) {
  multiply(ctx, product_of(args), plan);
  add_expert_bias(ctx, args.bias, args.offsets, args.y);
}

void grouped_linear_backward_input(Context& ctx, const GroupedLinearBackwardInput& args,
                                   const GroupedLinearPlan& plan) {
  multiply(ctx, product_of(args), plan);
}

void grouped_activation_forward(Context& ctx, const GroupedActivationForward& given,
                                const GroupedActivationForwardPlan& plan) {
  GroupedActivationForward args = given;
  args.pre = plan.pre.defined() ? plan.pre : pre_of(given);  // without memory where no kernel touches it
  if (plan.fused) {
    if (args.pre.num_elements() > 0) runs_of(plan.product.engine).activation(ctx, args, plan);
    return;
  }
  ExpertProduct product = product_of(args);
  if (plan.x.defined()) product.rows = in_order(ctx, args.x, args.offsets, plan.x);
  multiply(ctx, product, plan.product);
  add_expert_bias(ctx, args.bias, args.offsets, args.pre);
  const Tensor hidden = args.h_columns.defined() ? plan.h : args.h;
  activation_forward(ctx, {.kind = args.kind,
                           .pre = args.pre,
                           .row_weight = args.row_weight,
                           .h = hidden,
                           .num_rows = num_rows_of(args.offsets),
                           .h_codes = args.h_codes,
                           .keeps_h = args.keeps_h || args.h_columns.defined(),
                           .pre_codes = args.pre_codes});
  write_columns(ctx, hidden, args.offsets, args.h_columns);
}

void grouped_activation_backward(Context& ctx, const GroupedActivationBackward& given,
                                 const GroupedActivationBackwardPlan& plan) {
  const GroupedEngine engine = plan.product.engine;
  // Whether nothing reads pre-activations but as codes.
  const bool reads_codes = stays_in_codes(plan, given);
  GroupedActivationBackward args = given;
  args.pre = plan.pre.defined() ? plan.pre : pre_of(given);  // without memory where no kernel touches it
  if (!args.dpre.defined()) args.dpre = args.pre;
  if (given.pre_codes.defined() && !reads_codes) {
    widen_rows(ctx, {.codes = given.pre_codes, .x = args.pre, .num_rows = num_rows_of(given.offsets)});
    args.pre_codes = {};
  }
  if (args.h_columns.defined()) {
    activation_fp8_columns(ctx, {.kind = args.kind,
                                 .pre = args.pre,
                                 .pre_codes = args.pre_codes,
                                 .row_weight = args.row_weight,
                                 .offsets = args.offsets,
                                 .columns = args.h_columns});
  }
  if (plan.fused) {
    if (args.pre.num_elements() > 0) runs_of(engine).activation_backward(ctx, args, plan);
    return;
  }
  ExpertProduct product = product_of(args, plan.dh);
  if (plan.dy.defined()) product.rows = in_order(ctx, args.dy, args.offsets, plan.dy);
  multiply(ctx, product, plan.product);
  activation_backward(ctx, {.kind = args.kind,
                            .pre = args.pre,
                            .row_weight = args.row_weight,
                            .dh = plan.dh,
                            .dpre = args.dpre,
                            .drow_weight = args.drow_weight,
                            .num_rows = num_rows_of(args.offsets),
                            .dpre_codes = args.dpre_codes,
                            .h = args.h});
  write_columns(ctx, args.dpre, args.offsets, args.dpre_columns);
}

void grouped_linear_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args,
                                    const GroupedWeightPlan& plan) {
  const Tensor dw = args.dw, squares = args.squares;
  if (dw.num_elements() == 0) return;
  const EngineRuns& runs = runs_of(plan.engine);
  runs.weight(ctx, args, plan);
  if (runs.leaves_squares || !squares.defined()) return;
  const dim3 parts(grid_size(squares.dim(2)), short_grid_size(squares.dim(1)), short_grid_size(squares.dim(0)));
  squares_kernel<<<parts, kSquareCols, 0, ctx.stream>>>(dw.data<float>(), static_cast<int>(dw.dim(1)),
                                                        static_cast<int>(dw.dim(2)), squares.data<double>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
