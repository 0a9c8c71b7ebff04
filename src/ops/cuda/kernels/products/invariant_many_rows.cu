// Batch-invariant products of more rows than a warp's columns: tiles whose weights and tokens come through a ring of
// stages in shared memory, which a block's warps share. A warp's tiles of 16 x 8 are chains of instructions that do not
// wait for one another. Bound: for few tiles a chain's length, some 33 cycles for 16 k; else reading shared memory, at
// about half of what tensor cores could do.
#include "ops/cuda/kernels/products/invariant_product.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"

namespace nmoe::cuda::invariant {
namespace {

constexpr int kTurn = 64;  // consecutive k of a stage
constexpr int kChunks = kTurn / 8;

// kColumns rows of weights and kRows of x, kColumnWarps x kRowWarps warps, each with 16 kColumnTiles x 8 kRowTiles.
template <int kColumnWarps, int kRowWarps, int kColumnTiles, int kRowTiles>
struct Tile {
  static constexpr int kThreads = kColumnWarps * kRowWarps * kWarp;
  static constexpr int kColumns = kColumnWarps * kColumnTiles * 16, kRows = kRowWarps * kRowTiles * 8;
  static constexpr int kStageElements = (kColumns + kRows) * kTurn;
  static constexpr int kStageBytes = kStageElements * static_cast<int>(sizeof(Bf16));
  // Two blocks a multiprocessor, but of the largest one.
  static constexpr int kStages = std::clamp((96 << 10) / kStageBytes, 4, 12);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kBlocksPerSm = kSharedBytes <= 112 << 10 ? 2 : 1;
};

// Where the `chunk`th 16 bytes of a row of a turn lie in a stage: in turn with the row, so that eight rows' meet no
// bank twice.
__device__ int staged(int row, int chunk) { return row * kTurn + (chunk ^ row % 8) * 8; }

template <class Block, int kColumnWarps, int kColumnTiles, int kRowTiles, class A, class Out>
__global__ void __launch_bounds__(Block::kThreads, Block::kBlocksPerSm) many_rows_kernel(Product<Bf16, Out> all) {
  constexpr int kStages = Block::kStages, kLoadRows = Block::kThreads / kChunks;  // rows of one round
  constexpr int kWeightLoads = Block::kColumns / kLoadRows, kLoads = kWeightLoads + Block::kRows / kLoadRows;
  static_assert(Block::kColumns % kLoadRows == 0 && Block::kRows % kLoadRows == 0 && kLoadRows % 8 == 0);
  extern __shared__ uint4 shared[];
  const Product<Bf16, Out> p = own_batch(all);
  const bool is_plain = p.offsets == nullptr;
  let_next_start();
  if (!is_plain) wait_for_work_before();
  const Work<Bf16> work = find_work(p, Block::kRows);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_column = warp % kColumnWarps * kColumnTiles, warp_row = warp / kColumnWarps * kRowTiles;  // in tiles
  const int first_tile = work.column_tile * (Block::kColumns / 16);
  const int num_turns = ceil_div(p.depth, kTurn);
  const uint32_t stages = shared_address(shared);
  const auto stage_of = [](int turn) { return static_cast<unsigned>(turn) % kStages * Block::kStageBytes; };

  // A thread loads the same 16 bytes of every kLoadRows-th row of a stage.
  const int load_row = static_cast<int>(threadIdx.x) / kChunks, load_k = static_cast<int>(threadIdx.x) % kChunks * 8;
  const uint32_t load_target = stages + staged(load_row, load_k / 8) * sizeof(Bf16);
  const Bf16* sources[kLoads];
  unsigned there = 0;  // a bit for each
#pragma unroll
  for (int i = 0; i < kWeightLoads; ++i) {
    const int local = i * kLoadRows + load_row, row = weight_row<A>(p, first_tile + local / 16, local % 16);
    sources[i] = work.w + (row < p.width ? static_cast<int64_t>(row) * p.depth : 0) + load_k;
    there |= row < p.width ? 1U << i : 0;
  }
  const auto load_turn = [&]<int kFirst, int kEnd>(int turn) {
    if (turn >= num_turns) return;
    const int k = turn * kTurn;
    const unsigned wanted = load_k + k < p.depth ? there : 0;
    const uint32_t target = load_target + stage_of(turn);
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const uint32_t own_target = target + i * kLoadRows * kTurn * sizeof(Bf16);
      if (i < kWeightLoads) {
        copy_async16_ahead(own_target, sources[i] + k, (wanted >> i & 1) != 0);
      } else {
        copy_async16(own_target, sources[i] + k, (wanted >> i & 1) != 0);
      }
    }
  };
  const auto load_first_weights = [&] {
#pragma unroll 1
    for (int turn = 0; turn < kStages - 1; ++turn) load_turn.template operator()<0, kWeightLoads>(turn);
  };
  bool loaded = is_plain;  // nobody writes weights, and these are known
  if (loaded) {
    load_first_weights();
    wait_for_work_before();
  }

  // As instructions want them: a tile of weights is 16 rows by 16 k, lane l's row l % 16; one of x 8 rows by 32 k.
  const uint32_t own_weights = stages + (warp_column * 16 + lane % 16) * kTurn * sizeof(Bf16);
  const uint32_t own_x = stages + (Block::kColumns + warp_row * 8 + lane % 8) * kTurn * sizeof(Bf16);
  const uint32_t weight_chunk = (lane / 16 ^ lane % 8) * 16, x_chunk = (lane / 8 ^ lane % 8) * 16;

  for (int tile = work.row_begin; tile < work.row_end; tile += Block::kRows) {
    there &= (1U << kWeightLoads) - 1;
#pragma unroll
    for (int i = kWeightLoads; i < kLoads; ++i) {
      const int row = tile + (i - kWeightLoads) * kLoadRows + load_row;
      sources[i] = (row < work.row_end ? row_of_x(p, row) : p.x) + load_k;
      there |= row < work.row_end ? 1U << i : 0;
    }
    if (!loaded) load_first_weights();
    loaded = false;
#pragma unroll 1
    for (int turn = 0; turn < kStages - 1; ++turn) {
      load_turn.template operator()<kWeightLoads, kLoads>(turn);
      commit_copies();
    }

    float sums[kColumnTiles][kRowTiles][4] = {};
    for (int turn = 0; turn < num_turns; ++turn) {
      wait_copies<kStages - 2>();
      __syncthreads();  // the turn is there for all, and the one before it has been read
      load_turn.template operator()<0, kLoads>(turn + kStages - 1);
      commit_copies();
      const uint32_t stage = stage_of(turn);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned a[2][kColumnTiles][4], b[kRowTiles][4];
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          load_matrices<false>(own_x + stage + j * 8 * kTurn * sizeof(Bf16) + (x_chunk ^ (half * 64)), b[j]);
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int i = 0; i < kColumnTiles; ++i) {
            load_matrices<false>(
                own_weights + stage + i * 16 * kTurn * sizeof(Bf16) + (weight_chunk ^ (half * 64 + step * 32)),
                a[step][i]);
          }
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              gemm::multiply_add(sums[i][j], a[step][i], b[j][step * 2], b[j][step * 2 + 1]);
            }
          }
        }
      }
    }
    wait_copies<0>();
    __syncthreads();  // the stages are overwritten
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = tile + (warp_row + j) * 8 + lane % 4 * 2 + c;
        if (row >= work.row_end) continue;
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) {
          store_pair<A>(p, row, first_tile + warp_column + i, lane / 4, sums[i][j][c], sums[i][j][c + 2]);
        }
      }
    }
  }
}

}  // namespace

template <class A, class Out>
void many_rows(Context& ctx, const Product<Bf16, Out>& p) {
  const auto launch = [&]<int kColumnWarps, int kRowWarps, int kColumnTiles, int kRowTiles>() {
    using Block = Tile<kColumnWarps, kRowWarps, kColumnTiles, kRowTiles>;
    const auto kernel = many_rows_kernel<Block, kColumnWarps, kColumnTiles, kRowTiles, A, Out>;
    allow_dynamic_shared(kernel, Block::kSharedBytes);
    prefer_shared(kernel);
    launch_early(ctx, kernel, grid_of(p, Block::kColumns, Block::kRows), Block::kThreads, Block::kSharedBytes, p);
  };
  if (p.offsets != nullptr) {  // by how many rows an expert has on average: it may have more
    if (p.num_rows <= 32 * p.num_experts) return launch.template operator()<8, 1, 1, 4>();
    return launch.template operator()<4, 2, 2, 4>();
  }
  // The largest tile, which reads least, of which there are enough for three of four multiprocessors.
  const auto suffices = [&](int columns, int rows) {
    return int64_t{4} * p.num_batches * ceil_div(p.width, columns) * ceil_div(p.num_rows, rows) >= 3 * ctx.num_sms;
  };
  if (p.num_rows <= 32) {
    if (suffices(128, 32)) return launch.template operator()<8, 1, 1, 4>();
    return launch.template operator()<1, 4, 1, 1>();
  }
  if (p.num_rows > 64 && suffices(128, 128)) return launch.template operator()<4, 2, 2, 8>();
  if (suffices(128, 64)) return launch.template operator()<4, 2, 2, 4>();
  if (suffices(64, 64)) return launch.template operator()<4, 2, 1, 4>();
  if (suffices(32, 64)) return launch.template operator()<2, 4, 1, 2>();
  launch.template operator()<1, 4, 1, 2>();
}

template void many_rows<NoActivation>(Context&, const Product<Bf16, Bf16>&);
template void many_rows<NoActivation>(Context&, const Product<Bf16, float>&);
template void many_rows<SwiGlu>(Context&, const Product<Bf16, Bf16>&);
template void many_rows<ReluSquared>(Context&, const Product<Bf16, Bf16>&);
template void many_rows<ClampedSwiGlu>(Context&, const Product<Bf16, Bf16>&);

}  // namespace nmoe::cuda::invariant
