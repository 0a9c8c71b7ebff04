// Logits by tiles of columns (LogitSums in contracts/head.h): their exponentials, relative to the highest of a tile,
// and what a tile's are summed to; then a kernel that makes of a row's tiles its losses, its prediction and its
// gradient g = grad_scale * weight * (softmax - onehot(target)) + z_scale * 2 log(sum of exp) * softmax, in act, where
// the exponentials are; then, for all rows of a chunk, two products of the gradient.
//
// On Hopper, in BF16, exponentials and sums come out of the product itself (sm90/head_product.h). Elsewhere a product
// writes logits in F32, of which a kernel makes the same. All but the products is memory-bound.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/logit_tiles.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/head_product.h"

namespace nmoe::cuda {
namespace {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};

// --- tiles of logits that are in memory
template <class T>
struct TileArgs {
  const float* logits;     // [rows, V]
  const int32_t* targets;  // [rows]; null: none
  T* exponentials;         // = [rows, V]; null: not wanted
  LogitTile* tiles;        // = [tiles, rows]
  int32_t* best;           // = the same, the lowest id of the highest logit; null: not wanted
  float* target_logits;    // = [rows], where the row has a target; null: not wanted
  int num_rows, vocab;

  __host__ __device__ int num_tiles() const { return ceil_div(vocab, kLogitTileCols); }
};

constexpr int kTileWarps = 8;  // of a block, with neighbouring tiles of a row

template <class T>
__global__ void __launch_bounds__(kTileWarps* kWarp) tile_kernel(TileArgs<T> args) {
  begin_behind_work_before();
  const int row = static_cast<int>(blockIdx.x);
  const int tile = static_cast<int>(blockIdx.y) * kTileWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (tile >= args.num_tiles()) return;
  const int begin = tile * kLogitTileCols, num_cols = min(args.vocab - begin, kLogitTileCols);
  const float* const logits = args.logits + static_cast<int64_t>(row) * args.vocab + begin;
  LogitRows<1> rows;
#pragma unroll
  for (int i = 0; i < kLogitLaneCols; ++i) {
    const int column = logit_column(i / 2) + i % 2;
    rows.values[0][i] = column < num_cols ? logits[column] : -INFINITY;
  }
  float highest[1], sums[1];
  rows.highest(highest);
  if (args.targets != nullptr) {
    const int target = args.targets[row] - begin;
    if (target >= 0 && target < num_cols) rows.write_logit(0, target, args.target_logits + row);
  }
  const int best = args.best != nullptr ? rows.column_of(0, highest[0]) : 0;
  rows.exponentials(highest, sums);
  if (args.exponentials != nullptr) {
    T* const out = args.exponentials + static_cast<int64_t>(row) * args.vocab + begin;
#pragma unroll
    for (int i = 0; i < kLogitLaneCols; ++i) {
      const int column = logit_column(i / 2) + i % 2;
      if (column < num_cols) out[column] = from_float<T>(rows.values[0][i]);
    }
  }
  if (threadIdx.x % kWarp != 0) return;
  const int64_t at = static_cast<int64_t>(tile) * args.num_rows + row;
  args.tiles[at] = {highest[0], sums[0]};
  if (args.best != nullptr) args.best[at] = best == INT_MAX ? INT_MAX : begin + best;
}

template <class T>
void sum_tiles(Context& ctx, const TileArgs<T>& args) {
  const dim3 grid(grid_size(args.num_rows), short_grid_size(ceil_div(args.num_tiles(), kTileWarps)));
  launch_early(ctx, tile_kernel<T>, grid, kTileWarps * kWarp, 0, args);
}

// --- what is made of a row's tiles
struct RowArgs {
  const LogitTile* tiles;      // [tiles, rows]
  const int32_t* best;         // the same; null: no predictions
  const float* target_logits;  // [rows]
  const int32_t* targets;      // [rows]; null: none
  const double* grad_scale;    // [1]; null without gradients
  const double* z_scale;       // [1]; null: no gradients of z losses
  const float* weights;        // [rows]; null: 1
  float* losses;               // = [rows]; null: not wanted
  float* z_losses;             // = [rows]; null: not wanted
  int32_t* predictions;        // = [rows]; null: not wanted
  float* sums;                 // = [rows, 3], LogitSums; null: not wanted
  int num_rows, vocab;

  __host__ __device__ int num_tiles() const { return ceil_div(vocab, kLogitTileCols); }
};

// The lowest id of the highest logit, for all lanes of a warp.
template <class TileOf>
__device__ int prediction_of(const RowArgs& args, int row, float highest, const TileOf& tile_of) {
  int best = INT_MAX;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < args.num_tiles(); i += kWarp) {
    if (tile_of(i).highest == highest) best = min(best, args.best[static_cast<int64_t>(i) * args.num_rows + row]);
  }
  best = __reduce_min_sync(kAllLanes, best);
  return best < args.vocab ? best : 0;
}

// A row's losses, prediction and sums, by one warp. Returns its tile.
template <class TileOf>
__device__ LogitTile end_row(const RowArgs& args, int row, const TileOf& tile_of) {
  const LogitTile whole = merge_logit_tiles(args.num_tiles(), tile_of);
  const int prediction = args.predictions != nullptr ? prediction_of(args, row, whole.highest, tile_of) : 0;
  if (threadIdx.x % kWarp != 0) return whole;
  if (args.predictions != nullptr) args.predictions[row] = prediction;
  const float log_sum = logf(whole.sum);
  if (args.targets != nullptr) {
    const int target = args.targets[row];
    const bool has_target = target >= 0 && target < args.vocab;
    float loss = 0.0F;
    if (has_target) loss = log_sum - (args.target_logits[row] - whole.highest);
    if (target >= args.vocab) loss = nanf("");
    const float weight = args.weights != nullptr && has_target ? args.weights[row] : 1.0F;
    if (args.losses != nullptr) args.losses[row] = weight * loss;
    if (args.z_losses != nullptr) {
      const float log_z = log_sum + whole.highest;
      args.z_losses[row] = has_target ? log_z * log_z : 0.0F;
    }
  }
  if (args.sums != nullptr) {
    float* const sums = args.sums + static_cast<int64_t>(row) * 3;
    sums[0] = whole.highest, sums[1] = whole.sum, sums[2] = log_sum;
  }
  return whole;
}

constexpr int kRowWarps = 8;  // of a block, with a row each

__global__ void __launch_bounds__(kRowWarps* kWarp) row_kernel(RowArgs args) {
  begin_behind_work_before();
  const int row = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= args.num_rows) return;
  end_row(args, row, [&](int i) { return args.tiles[static_cast<int64_t>(i) * args.num_rows + row]; });
}

constexpr int kGradientThreads = 512;  // of a block, which has a row

// gradients [rows, V]: of exponentials, in place. kValues: that a thread takes at a time, 16 bytes or more where rows
// are a multiple of that, and then all of one tile.
template <class T, int kValues>
__global__ void __launch_bounds__(kGradientThreads) gradient_kernel(RowArgs args, T* gradients) {
  static_assert(kLogitTileCols % kValues == 0);
  extern __shared__ LogitTile tiles[];  // of the row
  __shared__ LogitTile whole;
  auto* const factors = reinterpret_cast<float*>(tiles);  // later: of each tile's exponentials
  const int row = static_cast<int>(blockIdx.x), target = args.targets[row];
  const bool has_target = target >= 0 && target < args.vocab;
  for (int i = static_cast<int>(threadIdx.x); i < args.num_tiles(); i += kGradientThreads) {
    tiles[i] = args.tiles[static_cast<int64_t>(i) * args.num_rows + row];
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const LogitTile of_row = end_row(args, row, [&](int i) { return tiles[i]; });
    if (threadIdx.x == 0) whole = of_row;
  }
  __syncthreads();
  const float weight = args.weights != nullptr && has_target ? args.weights[row] : 1.0F;
  const float scale = has_target ? weight * static_cast<float>(*args.grad_scale) : 0.0F;
  float pull = scale;  // of the softmax
  if (args.z_scale != nullptr) pull += 2.0F * static_cast<float>(*args.z_scale) * (logf(whole.sum) + whole.highest);
  const float factor = pull / whole.sum;
  const auto factor_of = [&](float highest) { return flushed_exp(highest - whole.highest) * factor; };
  for (int first = 0; first < args.num_tiles(); first += kGradientThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const float of_tile = i < args.num_tiles() ? factor_of(tiles[i].highest) : 0.0F;
    __syncthreads();  // a factor takes the place of half a tile, one that was read
    if (i < args.num_tiles()) factors[i] = of_tile;
  }
  __syncthreads();
  T* const gradient = gradients + static_cast<int64_t>(row) * args.vocab;
  for (int i = static_cast<int>(threadIdx.x) * kValues; i < args.vocab; i += kGradientThreads * kValues) {
    float values[kValues];
    load_values(gradient + i, values);
    const float of_tile = factors[i / kLogitTileCols];
#pragma unroll
    for (int j = 0; j < kValues; ++j) values[j] = has_target ? values[j] * of_tile : 0.0F;
    if (const int at = target - i; has_target && at >= 0 && at < kValues) {  // seldom
      const float made = factor_of(args.target_logits[row]) - scale;
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        if (j == at) values[j] = made;
      }
    }
    store_values(gradient + i, values);
  }
}

void end_rows(Context& ctx, const RowArgs& args) {
  launch_early(ctx, row_kernel, grid_size(ceil_div(args.num_rows, kRowWarps)), kRowWarps * kWarp, 0, args);
}

template <class T>
void make_gradients(Context& ctx, const RowArgs& args, T* gradients) {
  const auto shared = static_cast<int>(args.num_tiles() * sizeof(LogitTile));
  const auto launch = [&](auto kernel) {
    allow_dynamic_shared(kernel, shared);
    kernel<<<grid_size(args.num_rows), kGradientThreads, static_cast<size_t>(shared), ctx.stream>>>(args, gradients);
    NMOE_CUDA_CHECK(cudaGetLastError());
  };
  if (args.vocab % 8 == 0) {
    launch(gradient_kernel<T, 8>);
  } else {
    launch(gradient_kernel<T, 1>);
  }
}

// T: of gradients, or of what they would be.
template <class T>
void head_loss_of(Context& ctx, const HeadLoss& args, const HeadLossPlan& plan) {
  const bool want_gradient = args.dx.defined(), in_memory = plan.logits.defined();
  auto* const tiles = reinterpret_cast<LogitTile*>(plan.tiles.sums.data<float>());
  int32_t* const best = plan.tiles.best.data_or_null<int32_t>();
  const auto num_ids = static_cast<int>(args.w.dim(0));
  // What is made of rows [begin, end); gradients: theirs, undefined if not wanted.
  const auto run_rows = [&](int64_t begin, int64_t end, const Tensor& gradients) {
    T* const exponentials = want_gradient ? gradients.data<T>() : nullptr;
    const Tensor x = args.x.rows(begin, end), targets = args.targets.rows(begin, end);
    if (in_memory) {
      const Tensor logits = plan.logits.rows(0, end - begin);
      linear_forward(ctx, {.x = x, .w = args.w, .y = logits}, plan.product);
      sum_tiles<T>(ctx, {.logits = logits.data<float>(),
                         .targets = targets.data<int32_t>(),
                         .exponentials = exponentials,
                         .tiles = tiles,
                         .best = best,
                         .target_logits = plan.tiles.targets.data<float>(),
                         .num_rows = static_cast<int>(end - begin),
                         .vocab = num_ids});
    } else if constexpr (kKernels.has_sm90()) {
      sm90::head_product(ctx,
                         {.x = x, .w = args.w, .targets = targets, .exponentials = gradients, .tiles = plan.tiles});
    }
    const RowArgs rows{.tiles = tiles,
                       .best = best,
                       .target_logits = plan.tiles.targets.data<float>(),
                       .targets = targets.data<int32_t>(),
                       .grad_scale = want_gradient ? args.grad_scale.data<double>() : nullptr,
                       .z_scale = want_gradient ? args.z_scale.data_or_null<double>() : nullptr,
                       .weights = args.weights.defined() ? args.weights.data<float>() + begin : nullptr,
                       .losses = args.losses.data<float>() + begin,
                       .z_losses = args.z_losses.defined() ? args.z_losses.data<float>() + begin : nullptr,
                       .predictions = args.predictions.defined() ? args.predictions.data<int32_t>() + begin : nullptr,
                       .sums = nullptr,
                       .num_rows = static_cast<int>(end - begin),
                       .vocab = num_ids};
    if (want_gradient) {
      make_gradients(ctx, rows, exponentials);
    } else {
      end_rows(ctx, rows);
    }
  };
  const int64_t num_tokens = args.x.dim(0), part_rows = plan.tiles.num_rows();
  const int64_t chunk_rows = want_gradient ? plan.gradients.dim(0) : num_tokens;
  for (int64_t begin = 0; begin < num_tokens; begin += chunk_rows) {
    const int64_t end = std::min(begin + chunk_rows, num_tokens);
    for (int64_t first = begin; first < end; first += part_rows) {
      const int64_t last = std::min(first + part_rows, end);
      run_rows(first, last, want_gradient ? plan.gradients.rows(first - begin, last - begin) : Tensor());
    }
    if (!want_gradient) continue;
    const Tensor gradients = plan.gradients.rows(0, end - begin);
    linear_backward_input(ctx, {.dy = gradients, .w = args.w, .dx = args.dx.rows(begin, end)}, plan.product);
    if (!args.dw.defined()) continue;
    linear_backward_weight(
        ctx,
        {.x = args.x.rows(begin, end), .dy = gradients, .dw = args.dw, .accumulate = args.accumulate_dw || begin > 0},
        plan.product);
  }
}

}  // namespace

void head_loss(Context& ctx, const HeadLoss& args, const HeadLossPlan& plan) {
  if (args.x.dtype() == DType::kF32) {
    head_loss_of<float>(ctx, args, plan);
  } else {
    head_loss_of<__nv_bfloat16>(ctx, args, plan);
  }
}

void logit_sums(Context& ctx, const LogitSums& args, const LogitSumsPlan& plan) {
  const auto num_rows = static_cast<int>(args.logits.dim(0)), num_ids = static_cast<int>(args.logits.dim(1));
  if (num_rows == 0) return;
  auto* const tiles = reinterpret_cast<LogitTile*>(plan.tiles.sums.data<float>());
  sum_tiles<float>(ctx, {.logits = args.logits.data<float>(),
                         .targets = nullptr,
                         .exponentials = nullptr,
                         .tiles = tiles,
                         .best = nullptr,
                         .target_logits = nullptr,
                         .num_rows = num_rows,
                         .vocab = num_ids});
  RowArgs rows{};
  rows.tiles = tiles;
  rows.sums = args.sums.data<float>();
  rows.num_rows = num_rows;
  rows.vocab = num_ids;
  end_rows(ctx, rows);
}

}  // namespace nmoe::cuda
