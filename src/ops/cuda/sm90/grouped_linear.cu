// Grouped products on Hopper: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e.
//
// A persistent, warp-specialised kernel: one block a multiprocessor works on tiles of 128 x 256 of C, 128 x 192 where
// more warps write, or 256 x 128 where those load less (kNarrow and kTall in grouped_layout.cuh). The producer
// warpgroup has one warp at work, which asks the tile scheduler (tile_scheduler.cuh) for tiles and keeps a pipeline of
// stages (tma_pipeline.cuh), k in steps of 64, filled by TMA. Two consumer warpgroups multiply 64 of every 128 rows
// each by wgmma. Of weights' gradients they write their sums (sum_boxes.cuh). Rows in BF16 they only leave in shared
// memory, and other warps, the writers, do the rest beside the next tile's products (tile_writer.cuh). The loads for
// the next tile are under way while a tile is written, since a tile's description travels with its first stage.
//
// One operand's rows may lie anywhere and be picked by an index: the tokens, instead of copies of them in the experts'
// order. All four warps of the producer warpgroup then copy their part of every stage (row_gather.cuh), and the first
// one tells the others which tiles come.
//
// Rows of a tile beyond the expert's belong to the next expert, or are what was in shared memory: they are multiplied
// and not stored. Where rows are what is summed over, those behind the expert's are made zeros in shared memory.
//
// With an activation (grouped_epilogues.cuh), a tile has all parts of its hidden units: of SwiGLU 128 columns of gates
// and the 128 of what they gate, of squared ReLU 256 of the only part. Backwards, what a tile has is not stored: it
// meets the pre-activations of its rows and columns, and their gradients go where they were. A row weight's gradient is
// a sum over the row, of which a tile has a part; where there are several tiles a row, a second kernel adds them in
// order.
//
// A sum has one order, that of k, whatever the other rows are, and every value of C is written, or added to, once a
// launch. Where an expert has many rows to be summed over, that launch has the first piece of them (kPieceRows), and
// one behind it adds the later pieces, side by side, their sums by turns (turns.cuh).
//
// Bound by tensor cores: a tile's step moves 48 KiB from L2 for 4.2 MFLOP. On one H200 with even groups, a forward of
// 2,048 to 2,816 values reaches 700 TFLOP/s where a product of 8,192 cubed reaches 790; docs/log/experts.md has the
// others.
#include <algorithm>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/grouped_epilogues.cuh"
#include "ops/cuda/sm90/grouped_layout.cuh"
#include "ops/cuda/sm90/grouped_linear.h"
#include "ops/cuda/sm90/grouped_multiply.cuh"
#include "ops/cuda/sm90/row_gather.cuh"
#include "ops/cuda/sm90/sum_boxes.cuh"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tile_writer.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kSumThreads = 256;

template <class L>
__device__ typename L::Scheduler make_scheduler(const GroupedProduct& p) {
  if constexpr (L::kRagged) {
    return {p.offsets, p.num_experts, p.width};
  } else {
    const GroupQueue queue{p.offsets, p.num_experts, p.order, p.tiles_taken, p.rows, p.width};
    if constexpr (L::kLaterPieces) {
      return {queue, p.max_later_pieces};
    } else {
      return {queue, /*skip_empty=*/p.accumulate};
    }
  }
}

template <class L>
__device__ typename L::StagedTile tile_of(const GroupTile& at, const GroupedProduct& p) {
  typename L::StagedTile tile;
  tile.num_cols = p.width - at.col;
  tile.c_col = at.col;
  tile.group = at.group;
  if constexpr (L::kRagged) {
    tile.num_rows = at.group_rows - at.row;
    tile.depth = p.depth;
    tile.a_i = at.group_begin + at.row;
    tile.a_k = 0;
    tile.b_i = at.col;
    tile.b_k = 0;
    tile.c_row = tile.a_i;
  } else {
    tile.num_rows = p.rows - at.row;
    tile.depth = L::kLaterPieces ? at.group_rows : first_piece_rows(at.group_rows);
    tile.a_i = at.row;
    tile.b_i = at.col;
    tile.a_k = tile.b_k = at.group_begin;
    tile.c_row = static_cast<int64_t>(at.group) * p.rows + at.row;
    if constexpr (L::kLaterPieces) tile.turn = at.turn;
  }
  return tile;
}

// `matrix`: the number of one of several, of a map of those.
template <bool kKMajor, class... Matrix>
__device__ void load_panel(const CUtensorMap& map, int i, int k, Matrix... matrix, void* panel, uint64_t* barrier) {
  tma_load(map, kKMajor ? k : i, kKMajor ? i : k, matrix..., panel, barrier);
}

// A stage's part that comes by TMA, of k from `k` on. By one thread or, where rows are gathered, by the first of each
// warp, which have the panels in turn: starting a load takes a thread some 100 cycles.
template <class L>
__device__ void load_stage(const GroupedProduct& p, const Tile& tile, int k, const typename L::Pipeline& pipeline,
                           const typename L::Pipeline::Position& at, int warp) {
  constexpr int kPartPanels = L::kPanelsB / L::kParts, kWarps = kWarpgroup / kWarp;
  const auto is_own = [&](int panel) { return !L::kGathers || panel % kWarps == warp; };
  const int panels_a = L::kLoadsA ? min(ceil_div(tile.num_rows, kPanel), L::kPanelsA) : 0;
  const int panels_b = L::kLoadsB ? min(ceil_div(tile.num_cols, kPanel), kPartPanels) : 0;  // of each part
  std::byte* const stage = pipeline.stage(at);
  if (is_own(0)) pipeline.expect(at, (panels_a + L::kParts * panels_b) * kPanelBytes);
  for (int i = 0; i < panels_a; ++i) {
    if (!is_own(i)) continue;
    load_panel<L::kAKMajor>(p.a, tile.a_i + i * kPanel, tile.a_k + k, stage + i * kPanelBytes, pipeline.full(at));
  }
#pragma unroll
  for (int part = 0; part < L::kParts; ++part) {
    for (int i = 0; i < panels_b; ++i) {
      if (!is_own(part * kPartPanels + i)) continue;
      const int b_i = tile.b_i + part * p.width + i * kPanel;
      std::byte* const panel = stage + (L::kPanelsA + part * kPartPanels + i) * kPanelBytes;
      if constexpr (L::kRagged) {
        load_panel<L::kBKMajor, int>(p.b, b_i, tile.b_k + k, tile.group, panel, pipeline.full(at));
      } else {
        load_panel<L::kBKMajor>(p.b, b_i, tile.b_k + k, panel, pipeline.full(at));
      }
    }
  }
}

// A stage's part that is gathered. By all producers. Which rows it needs was found before, and here for the next stage.
template <class L>
__device__ void gather_stage(const GroupedProduct& p, const Tile& tile, int k, RowGather<L::kGatheredRows>& rows,
                             std::byte* stage) {
  if constexpr (L::kRagged) {
    rows.template copy<1>(p.gathered, k, stage);  // the same rows in all stages of a tile
  } else {
    if constexpr (L::kLoadsB) {
      rows.template copy<L::kPanelsA>(p.gathered, tile.a_i, stage);
    } else {
      rows.template copy<L::kPanelsB>(p.gathered, tile.b_i, stage + L::kPanelsA * kPanelBytes);
    }
    rows.find(p.gathered, tile.a_k + k + kStepK, tile.depth - k - kStepK);
  }
}

// The producers: one warp, of which one thread loads, or the warpgroup, where rows are gathered.
template <class L>
__device__ void load_tiles(const GroupedProduct& p, const typename L::Pipeline& pipeline,
                           typename L::StagedTile* told) {
  // Which of the warps that gather; known to be alike in all lanes.
  const int warp = L::kGathers ? __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0) : 0;
  const bool elected = threadIdx.x == 0, fills = elected || L::kGathers,
             loads = L::kGathers ? threadIdx.x % kWarp == 0 : elected;
  typename L::Scheduler scheduler = make_scheduler<L>(p);
  typename L::Pipeline::Position at;
  for (int count = 0;; ++count) {
    typename L::StagedTile tile;
    GroupTile group_tile;
    if (threadIdx.x < kWarp && scheduler.next(group_tile)) {
      tile = tile_of<L>(group_tile, p);
    } else {
      tile.depth = -1;
    }
    if constexpr (L::kGathers) {
      typename L::StagedTile& shared = told[count % kTilesTold];
      if (elected) shared = tile;
      named_barrier_sync(kProducerBarrier, kWarpgroup);
      tile = shared;
    }
    if (tile.depth < 0) break;
    RowGather<L::kGatheredRows> rows;
    if constexpr (L::kGathers) {
      rows.find(p.gathered, L::kRagged ? tile.a_i : tile.a_k, L::kRagged ? tile.num_rows : tile.depth);
    }
    const int num_steps = num_steps_of(tile);
    for (int step = 0; step < num_steps; ++step) {
      const int k = step * kStepK;
      if (fills) pipeline.acquire(at);
      if (loads) {
        if (step == 0 && (!L::kGathers || warp == 0)) pipeline.header(at) = tile;
        load_stage<L>(p, tile, k, pipeline, at, warp);
      }
      if constexpr (L::kGathers) {
        gather_stage<L>(p, tile, k, rows, pipeline.stage(at));
        pipeline.commit_copies(at);
      }
      at.advance();
    }
  }
  if (fills) pipeline.acquire(at);
  if (elected) {
    pipeline.header(at).depth = -1;
    pipeline.commit_header(at);
  }
  if constexpr (L::kGathers) pipeline.commit_copies(at);
}

// The consumers: a warpgroup's 64 rows of every strip, of which each warp writes 16, or leaves them to the writers.
template <class L>
__device__ void multiply_tiles(const GroupedProduct& p, const typename L::Pipeline& pipeline, std::byte* staging,
                               const typename L::Stash& stash) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int warp_row = consumer * kPanel + warp * kWarpRows;
  std::byte* const staged = staging + (consumer * (kWarpgroup / kWarp) + warp) * Boxes::kWarpBytes;  // sums
  typename L::Pipeline::Position at;
  int parity = 0;  // of the stash, where whole tiles go through it
  typename L::Sums c;
  HalfStasher<typename L::Stash> stasher(stash, consumer, warp_row);
  const auto beside = [&] {
    if constexpr (L::kHalves) stasher.try_flush();
  };
  for (;;) {
    pipeline.wait(at);  // a tile comes with its first stage
    const Tile tile = read_by_warp(pipeline.header(at));
    if (tile.depth < 0) break;
    const int num_rows = tile.num_rows - warp_row;
    const int64_t first_row = tile.c_row + warp_row;
    float row_weight = 0.0F;  // of a row for each of the warp's first lanes; asked for ahead of its use
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (L::kWeighted && lane < min(num_rows, kWarpRows)) row_weight = p.row_weight[first_row + lane];
    PieceTurn turn{};  // the first lane's
    if constexpr (L::kLaterPieces) {
      if (lane == 0) turn = pipeline.header(at).turn;
    }
    if (L::has_few(tile)) {
      multiply_tile<L, 1, L::kFewCols>(tile, pipeline, consumer, at, c, p.scale, beside);
    } else {
      multiply_tile<L, L::kStrips, L::kTileCols>(tile, pipeline, consumer, at, c, p.scale, beside);
    }
    if constexpr (L::kHalves) {
      stasher.leave(c[0], tile);
    } else if constexpr (L::kWeighted) {
      stash.acquire(consumer, parity);
      if (threadIdx.x == kWarpgroup) stash.header() = tile;
      stage_columns<L::kTileCols, 0, L::kTileCols>(c[0], L::kParts > 1 ? L::kTileCols : tile.num_cols,
                                                   stash.row(warp_row));
      if (lane < kWarpRows) stash.row_weight(warp_row + lane) = row_weight;
      stash.commit(consumer);
      parity ^= 1;
    } else {
      const auto boxes_of = [&](int strip) {
        const int below = strip * kStripRows;
        return Boxes{.map = &p.sums,
                     .col = tile.c_col,
                     .row = static_cast<int>(first_row - static_cast<int64_t>(tile.group) * p.rows) + below,
                     .group = tile.group,
                     .num_rows = num_rows - below,
                     .num_cols = tile.num_cols,
                     .staged = staged};
      };
      const auto store = [&]<bool kAccumulate>() {
#pragma unroll
        for (int strip = 0; strip < L::kStrips; ++strip) {
          const Boxes boxes = boxes_of(strip);
          if (!kAccumulate && p.squares != nullptr) {
            boxes.store_squares<L::kTileCols>(c[strip], p.squares, p.rows, p.width);
          }
          boxes.store<L::kTileCols, kAccumulate>(c[strip]);
        }
      };
      if constexpr (L::kLaterPieces) {
        const int any_warp = consumer * (kWarpgroup / kWarp) + warp;
        if (lane == 0) turn.wait(p.turns, any_warp);
        store.template operator()<true>();
        if (lane == 0) turn.pass(p.turns, any_warp);
        __syncwarp();
        if (p.squares != nullptr && __shfl_sync(kAllLanes, turn.is_last, 0) != 0) {
          const auto* const dw = static_cast<const float*>(p.c);
          for (int strip = 0; strip < L::kStrips; ++strip) {
            boxes_of(strip).template store_squares_of<L::kTileCols>(dw, p.squares, p.rows, p.width);
          }
        }
      } else if (p.accumulate) {
        store.template operator()<true>();
      } else {
        store.template operator()<false>();
      }
    }
  }
  if constexpr (!L::kRagged) Boxes::finish();
  if constexpr (L::kHalves) {
    stasher.flush();
    parity = stasher.parity();
  }
  if constexpr (L::kHasWriters) {
    if (consumer == 0) {
      stash.acquire(consumer, parity);
      if (threadIdx.x == kWarpgroup) stash.header().depth = -1;
      stash.commit(consumer);
    }
  }
}

// The writers: all rows of every tile that consumers leave in the stash.
template <class L>
__device__ void write_tiles(const GroupedProduct& p, const typename L::Stash& stash, std::byte* rings) {
  constexpr int kFirst = L::kWritersApart ? (1 + kConsumers) * kWarpgroup / kWarp : 1;  // of the block's warps
  const int writer = static_cast<int>(threadIdx.x) / kWarp - kFirst;
  for (int parity = 0;; parity ^= 1) {
    stash.wait(0, parity);
    const Tile tile = read_by_warp(stash.header());
    if (tile.depth < 0) break;
    L::Epilogue::template write<L>(p, tile, stash, writer, parity, rings);
  }
}

template <class L>
__global__ void __launch_bounds__(L::Registers::kThreads, 1) grouped_kernel(const __grid_constant__ GroupedProduct p) {
  if constexpr (L::kLaterPieces) {
    if (!L::Scheduler::has_work(p.offsets, p.order)) return;
  }
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const staging = shared + L::kStageBytes;
  std::byte* const control = staging + L::kStagedBytes;
  const typename L::Pipeline pipeline(shared, control);
  const typename L::Stash stash(staging, control + L::Pipeline::kBarrierBytes);
  if (threadIdx.x == 0) {
    if constexpr (L::kLoadsA) tma_prefetch_map(p.a);
    if constexpr (L::kLoadsB) tma_prefetch_map(p.b);
    if constexpr (!L::kRagged) tma_prefetch_map(p.sums);
    pipeline.init(/*num_copiers=*/L::kGathers ? kWarpgroup : 0, /*num_releases=*/kConsumerWarps);
    if constexpr (L::kHasWriters) stash.init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (warpgroup == 0) {
    setmaxnreg_dec<L::Registers::kProducer>();
    if (L::kGathers || threadIdx.x < kWarp) {
      load_tiles<L>(p, pipeline, reinterpret_cast<typename L::StagedTile*>(control + L::kControlBytes));
    } else if constexpr (L::kHasWriters && !L::kWritersApart) {
      write_tiles<L>(p, stash, staging + L::Stash::kBytes);
    }
  } else if (!L::kWritersApart || warpgroup <= kConsumers) {
    setmaxnreg_inc<L::Registers::kConsumer>();
    multiply_tiles<L>(p, pipeline, staging, stash);
  } else {
    if constexpr (L::kWritersApart) {
      setmaxnreg_dec<L::Registers::kWriter>();
      write_tiles<L>(p, stash, staging + L::Stash::kBytes);
    }
  }
}

template <class L>
void launch(Context& ctx, const GroupedProduct& product, int64_t max_tiles) {
  NMOE_CHECK(max_tiles <= INT32_MAX / 2, "grouped linear of {} tiles", max_tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(max_tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_kernel<L>, L::kSharedBytes);
  grouped_kernel<L><<<blocks, L::Registers::kThreads, L::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// What activations have beside C.
struct ActivationOperands {
  const float* row_weight = nullptr;
  __nv_bfloat16* hidden = nullptr;
  const __nv_bfloat16* pre = nullptr;
  float* row_sums = nullptr;
};

const float* scale_of(const OperandRounding& rounding) { return rounding.product_scale.data_or_null<float>(); }

// --- the epilogues of activations that plans fuse (fuses_activation() in plans/grouped_linear.h)
template <class A>
using Forward = Activate<A, StorePre, StoreHidden>;
template <class A>
using Backward = ActivateBackward<A, StorePreGradients, StoreHidden>;

GatheredRows gathered_rows(const OperandRows& rows) {
  NMOE_CHECK(rows.source.num_elements() / 8 < UINT32_MAX, "picked rows of {}", rows.source.shape());
  return {.rows = rows.source.data<__nv_bfloat16>(),
          .index = rows.index.data<int32_t>(),
          .width = static_cast<int>(rows.width())};
}

// How many columns tiles of an activation's gradients have, of `width`: few if fewer that do not exist are multiplied
// then.
// NOTE: whatever else rows are, so that the gradients of row weights have the same bits.
int64_t activation_gradient_tile_cols(int64_t width) {
  const auto multiplied = [&](int64_t cols) { return ceil_div<int64_t>(width, cols) * cols; };
  return multiplied(kNarrowTileCols) < multiplied(kWideTileCols) ? kNarrowTileCols : kWideTileCols;
}

template <class L>
void launch_rows_product(Context& ctx, const GroupedProduct& product) {
  // Every expert has at most one row tile that is not full.
  const int64_t row_tiles = product.capacity / L::kTileRows + std::min(product.num_experts, product.capacity);
  launch<L>(ctx, product, row_tiles * ceil_div<int64_t>(product.width, L::kPartCols));
}

template <Operands kOperands, Gathered kGathered, class E, bool kIsScaled>
void launch_rows(Context& ctx, const GroupedProduct& product) {
  if constexpr (E::kPreParts > 0) {
    if (activation_gradient_tile_cols(product.width) == kNarrowTileCols) {
      return launch_rows_product<Layout<kOperands, kGathered, E, kIsScaled, kNarrowTileCols>>(ctx, product);
    }
  }
  launch_rows_product<Layout<kOperands, kGathered, E, kIsScaled>>(ctx, product);
}

// C [R, parts of `width`] = the product of x [R, depth] with the experts' weights. Where kGathers, x's rows may be
// picked.
template <Operands kOperands, class E, bool kGathers = false>
void rows_product(Context& ctx, const OperandRows& x, Tensor w, Tensor offsets, Tensor c, int64_t width,
                  const float* scale, const ActivationOperands& activation = {}) {
  const int64_t num_experts = w.dim(0), R = x.num_rows(), depth = x.width();
  const bool gathers = x.index.defined();
  NMOE_CHECK(kGathers || !gathers, "rows that are picked in a product that does not gather");
  const GroupedProduct product{.a = gathers ? CUtensorMap{} : panel_map(x.source.raw(), R, depth),
                               .b = panels_map(w.raw(), num_experts, w.dim(1), w.dim(2)),
                               .sums = CUtensorMap{},
                               .gathered = gathers ? gathered_rows(x) : GatheredRows{},
                               .offsets = offsets.data<int32_t>(),
                               .order = nullptr,
                               .tiles_taken = nullptr,
                               .c = c.raw(),
                               .num_experts = static_cast<int>(num_experts),
                               .rows = 0,
                               .width = static_cast<int>(width),
                               .depth = static_cast<int>(depth),
                               .row_weight = activation.row_weight,
                               .hidden = activation.hidden,
                               .pre = activation.pre,
                               .row_sums = activation.row_sums,
                               .capacity = static_cast<int>(R),
                               .accumulate = false,
                               .squares = nullptr,
                               .scale = scale,
                               .max_later_pieces = 0,
                               .turns = nullptr};
  if constexpr (kGathers) {
    if (gathers) {
      NMOE_CHECK(scale == nullptr, "rows that are picked, and sums that are scaled");
      return launch_rows<kOperands, Gathered::kA, E, /*kIsScaled=*/false>(ctx, product);
    }
  }
  if (scale != nullptr) return launch_rows<kOperands, Gathered::kNone, E, /*kIsScaled=*/true>(ctx, product);
  launch_rows<kOperands, Gathered::kNone, E, /*kIsScaled=*/false>(ctx, product);
}

// dw by the experts' first pieces of rows, then what later ones add to it.
template <Gathered kGathered, bool kIsScaled, int kCols>
void launch_pieces(Context& ctx, GroupedProduct product, const TileOrder& order, int64_t tiles) {
  const int64_t num_counters = order.counters.num_elements();
  NMOE_CHECK(num_counters >= num_piece_counters(product.max_later_pieces, tiles),
             "a gradient of {} later pieces of {} tiles, with {} counters", product.max_later_pieces, tiles,
             num_counters);
  launch<Layout<Operands::kWeightGradient, kGathered, SumWeights, kIsScaled, kCols>>(ctx, product,
                                                                                     product.num_experts * tiles);
  if (product.max_later_pieces == 0) return;
  product.tiles_taken = later_pieces_taken(order);
  product.turns = later_pieces_turns(order);
  launch<Layout<Operands::kLaterPieces, kGathered, SumWeights, kIsScaled, kCols>>(ctx, product,
                                                                                  product.max_later_pieces * tiles);
}

template <Gathered kGathered, bool kIsScaled = false>
void launch_weight_gradient(Context& ctx, const GroupedProduct& product, const TileOrder& order) {
  const GradientTile tile = gradient_tile(product.rows, product.width);
  const int64_t tiles = tile.count(product.rows, product.width);
  if (tile == kTallGradientTile) {
    launch_pieces<kGathered, kIsScaled, kTallTileCols>(ctx, product, order, tiles);
  } else {
    launch_pieces<kGathered, kIsScaled, kWideTileCols>(ctx, product, order, tiles);
  }
}

// total [capacity] = the sums of the rows of `sums` [tiles, capacity], in order, for the first *num_rows.
__global__ void __launch_bounds__(kSumThreads)
    add_row_sums_kernel(const float* sums, int num_tiles, const int32_t* num_rows, int64_t capacity, float* total) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (row >= *num_rows) return;
  float sum = sums[row];
#pragma unroll 8  // that many loads at once
  for (int tile = 1; tile < num_tiles; ++tile) sum += sums[tile * capacity + row];
  total[row] = sum;
}

}  // namespace

void add_row_sums(Context& ctx, Tensor sums, Tensor num_rows, Tensor total) {
  const int64_t num_tiles = sums.dim(0), R = sums.dim(1);
  add_row_sums_kernel<<<grid_size(ceil_div<int64_t>(R, kSumThreads)), kSumThreads, 0, ctx.stream>>>(
      sums.data<float>(), static_cast<int>(num_tiles), num_rows.data<int32_t>(), R, total.data<float>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void grouped_product(Context& ctx, const ExpertProduct& p) {
  const float* const scale = scale_of(p.rounding);
  if (p.over_out) {
    rows_product<Operands::kInputGradient, StoreRows>(ctx, p.rows, p.w, p.offsets, p.result, p.result.dim(1), scale);
  } else {
    rows_product<Operands::kForward, StoreRows>(ctx, p.rows, p.w, p.offsets, p.result, p.result.dim(1), scale);
  }
}

void grouped_activation(Context& ctx, const GroupedActivationForward& args) {
  dispatch_fused_activation(args.kind, [&]<class A>(A) {
    rows_product<Operands::kForward, Forward<A>, /*kGathers=*/true>(ctx, args.x, args.w, args.offsets, args.pre,
                                                                    args.h.dim(1), scale_of(args.rounding),
                                                                    {.row_weight = args.row_weight.data<float>(),
                                                                     .hidden = args.h.data<__nv_bfloat16>(),
                                                                     .pre = nullptr,
                                                                     .row_sums = nullptr});
  });
}

void grouped_activation_backward(Context& ctx, const GroupedActivationBackward& args, Tensor row_sums) {
  const int64_t num_experts = args.w.dim(0), width = args.w.dim(2);
  const int64_t num_tiles = ceil_div<int64_t>(width, activation_gradient_tile_cols(width));
  float* const dweights = args.drow_weight.data<float>();
  dispatch_fused_activation(args.kind, [&]<class A>(A) {
    rows_product<Operands::kInputGradient, Backward<A>, /*kGathers=*/true>(
        ctx, args.dy, args.w, args.offsets, args.dpre, width, scale_of(args.rounding),
        {.row_weight = args.row_weight.data<float>(),
         .hidden = args.h.data_or_null<__nv_bfloat16>(),
         .pre = args.pre.data<__nv_bfloat16>(),
         .row_sums = num_tiles > 1 ? row_sums.data<float>() : dweights});
  });
  if (num_tiles > 1) {
    add_row_sums(ctx, row_sums.rows(0, num_tiles), args.offsets.rows(num_experts, num_experts + 1), args.drow_weight);
  }
}

void grouped_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const TileOrder& order) {
  const OperandRows &x = args.x, &dy = args.dy;
  const int64_t num_experts = args.dw.dim(0), rows = args.dw.dim(1), cols = args.dw.dim(2);
  order_longest_first(ctx, args.offsets, order);
  const bool gathers_a = dy.index.defined(), gathers_b = x.index.defined();
  const GroupedProduct product{
      .a = gathers_a ? CUtensorMap{} : panel_map(dy.source.raw(), dy.num_rows(), rows),
      .b = gathers_b ? CUtensorMap{} : panel_map(x.source.raw(), x.num_rows(), cols),
      .sums = sum_map(args.dw.raw(), num_experts, rows, cols, kSumBoxRows),
      .gathered = gathers_a ? gathered_rows(dy) : (gathers_b ? gathered_rows(x) : GatheredRows{}),
      .offsets = args.offsets.data<int32_t>(),
      .order = order.order.data<int32_t>(),
      .tiles_taken = first_pieces_taken(order),
      .c = args.dw.raw(),
      .num_experts = static_cast<int>(num_experts),
      .rows = static_cast<int>(rows),
      .width = static_cast<int>(cols),
      .depth = 0,
      .row_weight = nullptr,
      .hidden = nullptr,
      .pre = nullptr,
      .row_sums = nullptr,
      .capacity = 0,
      .accumulate = args.accumulate,
      .squares = args.squares.data_or_null<double>(),
      .scale = scale_of(args.rounding),
      .max_later_pieces = static_cast<int>(max_later_pieces(dy.num_rows())),
      .turns = nullptr};
  NMOE_CHECK(product.scale == nullptr || !(gathers_a || gathers_b), "rows that are picked, and sums that are scaled");
  if (gathers_a) {
    launch_weight_gradient<Gathered::kA>(ctx, product, order);
  } else if (gathers_b) {
    launch_weight_gradient<Gathered::kB>(ctx, product, order);
  } else if (product.scale != nullptr) {
    launch_weight_gradient<Gathered::kNone, /*kIsScaled=*/true>(ctx, product, order);
  } else {
    launch_weight_gradient<Gathered::kNone>(ctx, product, order);
  }
}

}  // namespace nmoe::cuda::sm90
