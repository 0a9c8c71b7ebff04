// x [R, D] by w [V, D]: tiles of 128 x 192 logits, of which only the exponentials, in BF16, and what a row's are summed
// to reach memory.
//
// A persistent, warp-specialised kernel, one block a multiprocessor. One thread keeps a pipeline of stages filled by
// TMA, k in steps of 64. Two consumer warpgroups multiply 64 rows each by wgmma and leave a tile's sums, in F32, in
// shared memory (the stash). Eight warps, the writers, take 16 rows each of it, four at a time, beside the products of
// the next tile: a row's highest logit, the exponentials, their sum.
//
// What would be written as logits, 4 bytes each, and read again, is 2 bytes each of exponentials, which are right to
// half a unit of BF16 whatever their logits are. Rows follow one another within 32 tiles of rows, so that those stay in
// L2 while the weight comes by once.
//
// Bound by tensor cores: a tile of k = 768 takes some 9,000 cycles of products, beside which writers have some 1,500
// instructions each and 1,500 cycles of exponentials. NOTE: a warp that works alone on its scheduler has an instruction
// in four cycles: four writers took 17,000 (H100, 2026-11-27). A step moves 40 KiB from L2 for 3.1 MFLOP.
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/logit_tiles.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/head_product.h"
#include "ops/cuda/sm90/limits.cuh"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kTileRows = kConsumers * kPanel, kTileCols = kLogitTileCols;
constexpr int kPanelsX = kTileRows / kPanel, kPanelsW = kTileCols / kPanel;
constexpr int kWriterGroups = 2;  // warpgroups
constexpr int kWriters = kWriterGroups * kWarpgroup / kWarp;
constexpr int kWriterRows = kTileRows / kWriters;
constexpr int kRowsAtOnce = 4;         // of a writer
constexpr int kRowTilesTogether = 32;  // whose rows follow one another for each tile of columns
// Columns of a tile by one instruction, and 64 by another: for 192 at once, threads have too few registers at entry.
constexpr int kFirstCols = 128;
static_assert(kFirstCols + kPanel == kTileCols);
using Pipeline = TmaPipeline<3, (kPanelsX + kPanelsW) * kPanelBytes>;
using Registers = WarpgroupRegisters<1, 40, kConsumers, 144, kWriterGroups, 72>;
static_assert(kTileCols % kPanel == 0 && kWriterRows <= kWarp && kWriterRows % kRowsAtOnce == 0);

struct Arguments {
  CUtensorMap x, w;
  const int32_t* targets;       // [rows]
  __nv_bfloat16* exponentials;  // = [rows, vocab]; null: not wanted
  LogitTile* tiles;             // = [tiles of columns, rows]
  int32_t* best;                // = the same; null: not wanted
  float* target_logits;         // = [rows]
  int rows, vocab, depth;

  __host__ __device__ int row_tiles() const { return ceil_div(rows, kTileRows); }
  __host__ __device__ int num_tiles() const { return row_tiles() * ceil_div(vocab, kTileCols); }
};

// The first row and column of a tile. All roles of a block go through the same.
struct TilePlace {
  int row, col;

  __device__ TilePlace(const Arguments& args, int tile) {
    const int of_group = kRowTilesTogether * ceil_div(args.vocab, kTileCols), group = tile / of_group;
    const int first = group * kRowTilesTogether, size = min(args.row_tiles() - first, kRowTilesTogether);
    const int in_group = tile - group * of_group;
    row = (first + in_group % size) * kTileRows;
    col = in_group / size * kTileCols;
  }
};

// A tile's logits in shared memory, between consumers and writers.
class Stash {
 public:
  // Rows begin 8 banks apart: consumers' pairs, of four rows and four columns of them at a time, are in all banks.
  static constexpr int kRowFloats = kTileCols + 8;
  static constexpr int kBytes = kTileRows * kRowFloats * static_cast<int>(sizeof(float));
  static constexpr int kControlBytes = 2 * static_cast<int>(sizeof(uint64_t));

  __device__ Stash(std::byte* logits, std::byte* control)
      : logits_(reinterpret_cast<float*>(logits)), full_(reinterpret_cast<uint64_t*>(control)), empty_(full_ + 1) {}
  __device__ void init() const {
    mbarrier_init(full_, kConsumers * kWarpgroup / kWarp);
    mbarrier_init(empty_, kWriters);
    mbarrier_init_fence();
  }
  __device__ float* row(int i) const { return logits_ + i * kRowFloats; }

  // `parity`: 0 for a side's first tile, 1 for its second, 0 again.
  __device__ void acquire(int parity) const { mbarrier_wait(empty_, parity ^ 1); }
  __device__ void commit() const { arrive(full_); }
  __device__ void wait(int parity) const { mbarrier_wait(full_, parity); }
  __device__ void release() const { arrive(empty_); }

 private:
  __device__ static void arrive(uint64_t* barrier) {
    __syncwarp();  // all lanes have written or read
    if (threadIdx.x % kWarp == 0) mbarrier_arrive(barrier);
  }

  float* logits_;
  uint64_t *full_, *empty_;
};

constexpr int kStageBytes = Pipeline::kStages * Pipeline::kStageBytes;
constexpr int kSharedBytes = kStageBytes + Stash::kBytes + Pipeline::kBarrierBytes + Stash::kControlBytes;
static_assert(kSharedBytes <= kMaxSharedBytes);

__device__ int steps_of(const Arguments& args) { return max(1, ceil_div(args.depth, kPanel)); }

// By one thread. What lies beyond the rows, the columns and the depth comes as zeros.
__device__ void load_tiles(const Arguments& args, const Pipeline& pipeline) {
  Pipeline::Position at;
  for (int tile = static_cast<int>(blockIdx.x); tile < args.num_tiles(); tile += static_cast<int>(gridDim.x)) {
    const TilePlace place(args, tile);
    for (int step = 0; step < steps_of(args); ++step) {
      pipeline.acquire(at);
      pipeline.expect(at, Pipeline::kStageBytes);
      std::byte* const stage = pipeline.stage(at);
#pragma unroll
      for (int i = 0; i < kPanelsX; ++i) {
        tma_load(args.x, step * kPanel, place.row + i * kPanel, stage + i * kPanelBytes, pipeline.full(at));
      }
#pragma unroll
      for (int i = 0; i < kPanelsW; ++i) {
        tma_load(args.w, step * kPanel, place.col + i * kPanel, stage + (kPanelsX + i) * kPanelBytes,
                 pipeline.full(at));
      }
      at.advance();
    }
  }
}

// By the `consumer`th warpgroup, its 64 rows of every tile.
__device__ void multiply_tiles(const Arguments& args, const Pipeline& pipeline, const Stash& stash, int consumer) {
  const bool elected = threadIdx.x % kWarp == 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = consumer * kPanel + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + lane / 4;
  Pipeline::Position at;
  int parity = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < args.num_tiles(); tile += static_cast<int>(gridDim.x)) {
    float c[kTileCols / 2];
    int in_use = -1;  // the stage that is being read
    for (int step = 0; step < steps_of(args); ++step) {
      pipeline.wait(at);
      const uint64_t x = wgmma_descriptor(pipeline.stage(at) + consumer * kPanelBytes);
      const uint64_t w = wgmma_descriptor(pipeline.stage(at) + kPanelsX * kPanelBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kPanel / kProductDepth; ++k) {
        const uint64_t further = k * wgmma_descriptor_step</*kKMajor=*/true>();
        wgmma_n128</*kTransA=*/false, /*kTransB=*/false>(c, x + further, w + further, step > 0 || k > 0);
        wgmma_n64</*kTransA=*/false, /*kTransB=*/false>(part_of<kFirstCols / 2, 32>(c), x + further,
                                                        w + further + kFirstCols / kPanel * kPanelBytes / 16,
                                                        step > 0 || k > 0);
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (in_use >= 0 && elected) pipeline.release(in_use);
      in_use = at.stage;
      at.advance();
    }
    wgmma_wait_group<0>();
    if (elected) pipeline.release(in_use);
    stash.acquire(parity);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const target = stash.row(row + 8 * half) + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kTileCols / 8; ++j) store2(target + 8 * j, c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
    }
    stash.commit();
    parity ^= 1;
  }
}

// What a lane of a writer keeps of its row of a tile.
struct OwnRow {
  LogitTile tile;
  int best;  // column of the highest logit
};

// By a writer, its rows of a tile from `first` on, of which some exist; `num_cols` of its columns do. Lane r keeps what
// its row r comes to. kFull: all columns exist.
template <bool kFull, bool kBest>
__device__ void write_rows(const Arguments& args, const Stash& stash, int writer, int first, int num_rows, int num_cols,
                           __nv_bfloat16* out, OwnRow& own) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LogitRows<kRowsAtOnce> rows;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const float* const logits = stash.row(writer * kWriterRows + first + r);
#pragma unroll
    for (int i = 0; i < kLogitPairs; ++i) {
      const float2 pair = *reinterpret_cast<const float2*>(logits + logit_column(i));
      const bool inside = kFull || logit_column(i) < num_cols;
      rows.values[r][2 * i] = inside ? pair.x : -INFINITY;
      rows.values[r][2 * i + 1] = inside ? pair.y : -INFINITY;
    }
  }
  float highest[kRowsAtOnce], sums[kRowsAtOnce];
  rows.highest(highest);
  if constexpr (kBest) {
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int best = rows.column_of(r, highest[r]);
      if (lane == first + r) own.best = best;
    }
  }
  rows.exponentials(highest, sums);
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    if (lane == first + r) own.tile = {highest[r], sums[r]};
    if (out == nullptr || first + r >= num_rows) continue;
    __nv_bfloat16* const row = out + static_cast<int64_t>(first + r) * args.vocab;
#pragma unroll
    for (int i = 0; i < kLogitPairs; ++i) {
      if (kFull || logit_column(i) < num_cols) {
        store2(row + logit_column(i), rows.values[r][2 * i], rows.values[r][2 * i + 1]);
      }
    }
  }
}

// By a writer, its 16 rows of every tile.
template <bool kBest>
__device__ void write_tiles(const Arguments& args, const Stash& stash, int writer) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int parity = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < args.num_tiles(); tile += static_cast<int>(gridDim.x)) {
    const TilePlace place(args, tile);
    const int first_row = place.row + writer * kWriterRows, own_row = first_row + lane;
    const int num_rows = min(args.rows - first_row, kWriterRows), num_cols = min(args.vocab - place.col, kTileCols);
    const bool exists = lane < num_rows;
    const int target = exists ? args.targets[own_row] - place.col : -1;
    __nv_bfloat16* const out = args.exponentials == nullptr
                                   ? nullptr
                                   : args.exponentials + static_cast<int64_t>(first_row) * args.vocab + place.col;
    OwnRow own{};
    stash.wait(parity);
    if (target >= 0 && target < num_cols) {
      args.target_logits[own_row] = stash.row(writer * kWriterRows + lane)[target];
    }
    const auto write = [&]<bool kFull>() {
      for (int first = 0; first < num_rows; first += kRowsAtOnce) {
        write_rows<kFull, kBest>(args, stash, writer, first, num_rows, num_cols, out, own);
      }
    };
    if (num_cols == kTileCols) {
      write.template operator()<true>();
    } else {
      write.template operator()<false>();
    }
    stash.release();
    parity ^= 1;
    if (!exists) continue;
    const int64_t at = static_cast<int64_t>(place.col / kTileCols) * args.rows + own_row;
    args.tiles[at] = own.tile;
    if constexpr (kBest) args.best[at] = own.best == INT_MAX ? INT_MAX : place.col + own.best;
  }
}

template <bool kBest>
__global__ void __launch_bounds__(Registers::kThreads, 1) head_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const control = shared + kStageBytes + Stash::kBytes;
  const Pipeline pipeline(shared, control);
  const Stash stash(shared + kStageBytes, control + Pipeline::kBarrierBytes);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.x);
    tma_prefetch_map(args.w);
    pipeline.init(/*num_copiers=*/0, /*num_releases=*/kConsumers * kWarpgroup / kWarp);
    stash.init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (warpgroup == 0) {
    setmaxnreg_dec<Registers::kProducer>();
    if (threadIdx.x == 0) load_tiles(args, pipeline);
  } else if (warpgroup <= kConsumers) {
    setmaxnreg_inc<Registers::kConsumer>();
    multiply_tiles(args, pipeline, stash, warpgroup - 1);
  } else {
    setmaxnreg_dec<Registers::kWriter>();
    write_tiles<kBest>(args, stash, static_cast<int>(threadIdx.x) / kWarp - (1 + kConsumers) * kWarpgroup / kWarp);
  }
}

}  // namespace

void head_product(Context& ctx, const HeadProduct& p) {
  const int64_t rows = p.x.dim(0), vocab = p.w.dim(0), depth = p.x.dim(1);
  NMOE_CHECK(ceil_div<int64_t>(rows, kTileRows) * ceil_div<int64_t>(vocab, kTileCols) <= INT32_MAX / 2,
             "{} rows of {} logits", rows, vocab);
  const Arguments args{.x = panel_map(p.x.raw(), rows, depth),
                       .w = panel_map(p.w.raw(), vocab, depth),
                       .targets = p.targets.data<int32_t>(),
                       .exponentials = p.exponentials.data_or_null<__nv_bfloat16>(),
                       .tiles = reinterpret_cast<LogitTile*>(p.tiles.sums.data<float>()),
                       .best = p.tiles.best.data_or_null<int32_t>(),
                       .target_logits = p.tiles.targets.data<float>(),
                       .rows = static_cast<int>(rows),
                       .vocab = static_cast<int>(vocab),
                       .depth = static_cast<int>(depth)};
  const int blocks = std::min(args.num_tiles(), ctx.num_sms);
  const auto launch = [&](auto kernel) {
    allow_dynamic_shared(kernel, kSharedBytes);
    kernel<<<static_cast<unsigned>(blocks), Registers::kThreads, kSharedBytes, ctx.stream>>>(args);
    NMOE_CUDA_CHECK(cudaGetLastError());
  };
  if (args.best != nullptr) {
    launch(head_kernel</*kBest=*/true>);
  } else {
    launch(head_kernel</*kBest=*/false>);
  }
}

}  // namespace nmoe::cuda::sm90
