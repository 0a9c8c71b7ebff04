// Grouped products on Hopper: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e.
//
// One block a multiprocessor works on tiles of 128 x 256. One warp keeps the copy engine filling a ring
// of stages (k in steps of 64), each tile's description with its first; two warpgroups multiply 64 x 256 each out of
// it, so that the copies for the next tile are under way while a tile is written. Rows of a tile beyond the expert's
// belong to the next: they are multiplied and not stored. Where rows are what is summed over, those of the next expert
// are made zeros in shared memory.
//
// With SwiGLU, a tile is 128 columns of gates and the 128 of what they gate, so that one thread has both of a pair.
//
// A sum has one order, that of k, whatever the other rows are, and every value of C is written by one thread once.
//
// Bound by tensor cores: a tile's step moves 48 KiB from L2 for 4.2 MFLOP. On one H200 with even groups, a forward of
// 2,048 to 2,816 values reaches 700 TFLOP/s where a product of 8,192 cubed reaches 790; docs/log.md has the others.
#include <algorithm>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/sm90_grouped_linear.h"
#include "ops/cuda/sm90_instructions.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/tile_cursor.cuh"

namespace nmoe::cuda {
namespace {

using namespace sm90;

enum class Form { kForward, kForwardSwiGlu, kInputGradient, kWeightGradient };

constexpr int kTileRows = 128, kTileCols = 256;
constexpr int kStepK = kPanel;
constexpr int kPanelsA = kTileRows / kPanel, kPanelsB = kTileCols / kPanel;
constexpr int kStageBytes = (kPanelsA + kPanelsB) * kPanelBytes;
constexpr int kConsumers = 2;  // warpgroups, each with a panel of A
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;  // of 168 that each thread begins with

// Rows of C wait in shared memory for the copy engine, 16 a warp; 16 bytes apart in banks.
constexpr int kStagedRows = 16;
constexpr int kStagedRowBytes = kTileCols * 2 + 16;

// One tile of C, and where its operands lie.
struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int depth;               // negative: there are no more tiles
  int a_i, a_k, b_i, b_k;  // first coordinates in the operands
  int c_col;               // first column and row in C
  int64_t c_row;
};

// A sum of nothing takes a step, of zeros.
__device__ int steps_of(const Tile& tile) { return max(1, ceil_div(tile.depth, kStepK)); }

template <Form kForm>
struct Layout {
  static constexpr bool kRagged = kForm != Form::kWeightGradient;  // rows of C are the groups'
  static constexpr bool kAKMajor = kRagged;
  static constexpr bool kSwiGlu = kForm == Form::kForwardSwiGlu;
  static constexpr bool kBKMajor = kForm == Form::kForward || kSwiGlu;
  static constexpr int kParts = kSwiGlu ? 2 : 1;
  static constexpr int kCols = kTileCols / kParts;  // of each part
  static constexpr int kStages = kRagged ? 3 : 4;
  static constexpr int kStagedBytes = kRagged ? kConsumerWarps * kStagedRows * kStagedRowBytes : 0;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kStagedBytes + kStages * (sizeof(Tile) + 2 * sizeof(uint64_t));
};

struct Product {
  CUtensorMap a, b;
  const int32_t* offsets;
  const int* order;  // of the experts; ragged: not used, nor is tiles_taken
  int* tiles_taken;
  void* c;
  int num_experts;
  int rows;                 // of an expert's C; ragged: not used
  int width;                // of C; with SwiGLU: of the hidden units, half of C
  int depth;                // ragged: k; else not used
  const float* row_weight;  // of C's rows; with SwiGLU only, as is
  void* hidden;             // = [R, width]
  bool accumulate;          // weights' gradients: whether C is added to
};

// The tiles a block works on. A warp calls together.
//
// Where C's rows are ragged, tiles take equally long and a block has every gridDim.x-th. Of weights' gradients, those
// of experts with more rows take longer: they come first, and a block takes the next whenever it is free.
template <Form kForm>
class Tiles {
  using L = Layout<kForm>;

 public:
  __device__ explicit Tiles(const Product& p) : p_(p), cursor_(p.offsets, p.num_experts, ceil_div(p.width, L::kCols)) {
    if constexpr (L::kRagged) {
      next_ = static_cast<int>(blockIdx.x);
    } else {
      next_ = take();
    }
  }

  __device__ bool next(Tile& tile) {
    if constexpr (L::kRagged) {
      if (!cursor_.move_to(next_)) return false;
      next_ += static_cast<int>(gridDim.x);
      const int row = cursor_.row_tile() * kTileRows, col = cursor_.col_tile() * L::kCols;
      tile.num_rows = cursor_.num_rows() - row;
      tile.num_cols = p_.width - col;
      tile.depth = p_.depth;
      tile.a_i = cursor_.row_begin() + row;
      tile.a_k = 0;
      tile.b_i = L::kBKMajor ? cursor_.expert() * L::kParts * p_.width + col : col;
      tile.b_k = L::kBKMajor ? 0 : cursor_.expert() * p_.depth;
      tile.c_row = tile.a_i;
      tile.c_col = col;
    } else {
      const int row_tiles = ceil_div(p_.rows, kTileRows), tiles = row_tiles * ceil_div(p_.width, kTileCols);
      const int place = next_ / tiles, in_expert = next_ % tiles;
      if (place >= p_.num_experts) return false;
      next_ = take();  // ahead of its use
      const int expert = p_.order[place], begin = p_.offsets[expert];
      tile.depth = p_.offsets[expert + 1] - begin;
      if (tile.depth <= 0 && p_.accumulate) return false;
      const int row = in_expert % row_tiles * kTileRows, col = in_expert / row_tiles * kTileCols;
      tile.num_rows = p_.rows - row;
      tile.num_cols = p_.width - col;
      tile.a_i = row;
      tile.b_i = col;
      tile.a_k = tile.b_k = begin;
      tile.c_row = static_cast<int64_t>(expert) * p_.rows + row;
      tile.c_col = col;
    }
    return true;
  }

 private:
  __device__ int take() const {
    const int tile = threadIdx.x % kWarp == 0 ? atomicAdd(p_.tiles_taken, 1) : 0;
    return __shfl_sync(kAllLanes, tile, 0);
  }

  struct NoCursor {
    __device__ NoCursor(const int32_t*, int, int) {}
  };

  const Product& p_;
  std::conditional_t<L::kRagged, TileCursor<kTileRows>, NoCursor> cursor_;
  int next_;
};

// The experts' indices by falling number of rows, a warp each; equal ones by index. Sets `tiles_taken` to 0.
constexpr int kOrderThreads = 256;
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const int32_t* offsets, int num_experts, int* order, int* tiles_taken) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *tiles_taken = 0;
  const int expert = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  if (expert >= num_experts) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, rows = offsets[expert + 1] - offsets[expert];
  int place = 0;
  for (int other = lane; other < num_experts; other += kWarp) {
    const int other_rows = offsets[other + 1] - offsets[other];
    place += other_rows > rows || (other_rows == rows && other < expert);
  }
  place = __reduce_add_sync(kAllLanes, place);
  if (lane == 0) order[place] = expert;
}

// The ring of stages: where a side of it is.
template <int kStages>
struct RingPosition {
  int stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <bool kKMajor>
__device__ void load_panel(const CUtensorMap& map, int i, int k, void* panel, uint64_t* barrier) {
  if constexpr (kKMajor) {
    load_box(map, k, i, panel, barrier);
  } else {
    load_box(map, i, k, panel, barrier);
  }
}

// Zeros for the rows of k from `first` on, of the first `num_panels` panels of a stage, by all consumers.
__device__ void clear_rows(std::byte* stage, int first, int num_panels) {
  constexpr int kVectorsPerRow = kPanel * 2 / 16;
  const int vectors = (kPanel - first) * kVectorsPerRow;
  for (int panel = 0; panel < num_panels; ++panel) {
    auto* rows = reinterpret_cast<uint4*>(stage + panel * kPanelBytes) + first * kVectorsPerRow;
    for (int i = static_cast<int>(threadIdx.x) - kWarpgroup; i < vectors; i += kConsumers * kWarpgroup) {
      rows[i] = make_uint4(0, 0, 0, 0);
    }
  }
  fence_async_proxy();
  sync_threads(1, kConsumers * kWarpgroup);
}

__device__ uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Columns [first, first + kCols) of the warpgroup's 64 rows of C, rounded, to the warp's staged rows.
template <int kFirst, int kCols>
__device__ void stage_columns(const float (&c)[128], int num_cols, std::byte* staged) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::byte* const corner = staged + lane % kStagedRows * kStagedRowBytes + lane / kStagedRows * 16;
#pragma unroll
  for (int i = kFirst / 16; i < (kFirst + kCols) / 16; ++i) {
    if (16 * i - kFirst < num_cols) {
      store_matrices(corner + 32 * i, bf16_pair(c[8 * i], c[8 * i + 1]), bf16_pair(c[8 * i + 2], c[8 * i + 3]),
                     bf16_pair(c[8 * i + 4], c[8 * i + 5]), bf16_pair(c[8 * i + 6], c[8 * i + 7]));
    }
  }
}

// The warp's staged rows to `target`, rows of `width`: those that exist.
__device__ void store_staged(const std::byte* staged, int num_rows, int num_cols, __nv_bfloat16* target,
                             int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  fence_async_proxy();
  __syncwarp();
  if (lane < min(num_rows, kStagedRows)) {
    store_bytes(target + lane * width, staged + lane * kStagedRowBytes, num_cols * 2);
  }
}

// Before the warp's staged rows are written again.
__device__ void reuse_staged() {
  wait_stores_read<0>();
  __syncwarp();
}

// The warpgroup's 64 rows of C: a warp's 16 are its own.
__device__ void write_rows(const float (&c)[128], const Product& p, const Tile& tile, int warp_row, std::byte* staged) {
  const int num_cols = min(tile.num_cols, kTileCols);
  reuse_staged();
  stage_columns<0, kTileCols>(c, num_cols, staged);
  store_staged(staged, tile.num_rows - warp_row, num_cols,
               static_cast<__nv_bfloat16*>(p.c) + (tile.c_row + warp_row) * p.width + tile.c_col, p.width);
  commit_stores();
}

__device__ float rounded(float x) { return to_float(from_float<__nv_bfloat16>(x)); }

// c[j] = silu(c[j]) * c[j + 64] * weight, of values rounded as they are stored.
__device__ void apply_swiglu(float (&c)[128], float upper_weight, float lower_weight) {
#pragma unroll
  for (int j = 0; j < 64; ++j) {
    const float gate = rounded(c[j]), up = rounded(c[j + 64]);
    c[j] = swiglu<__nv_bfloat16>(gate, up) * (j % 4 < 2 ? upper_weight : lower_weight);
  }
}

// Gates and what they gate are C's two halves; then the hidden units.
__device__ void write_swiglu_rows(float (&c)[128], const Product& p, const Tile& tile, int warp_row, float upper_weight,
                                  float lower_weight, std::byte* staged) {
  constexpr int kCols = kTileCols / 2;
  const int num_cols = min(tile.num_cols, kCols), num_rows = tile.num_rows - warp_row;
  const int64_t row = tile.c_row + warp_row;
  auto* const pre = static_cast<__nv_bfloat16*>(p.c) + row * 2 * p.width + tile.c_col;
  reuse_staged();
  stage_columns<0, kCols>(c, num_cols, staged);
  stage_columns<kCols, kCols>(c, num_cols, staged);
  store_staged(staged, num_rows, num_cols, pre, 2 * p.width);
  store_staged(staged + kCols * 2, num_rows, num_cols, pre + p.width, 2 * p.width);
  commit_stores();
  apply_swiglu(c, upper_weight, lower_weight);
  reuse_staged();
  stage_columns<0, kCols>(c, num_cols, staged);
  store_staged(staged, num_rows, num_cols, static_cast<__nv_bfloat16*>(p.hidden) + row * p.width + tile.c_col, p.width);
  commit_stores();
}

__device__ void add_pair(float* target, float c0, float c1) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};\n" ::"l"(target), "f"(c0), "f"(c1) : "memory");
}

// The warpgroup's 64 rows of C in fp32.
template <bool kAccumulate>
__device__ void write_sums(const float (&c)[128], const Product& p, const Tile& tile, int warp_row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    if (row >= tile.num_rows) return;
    float* const target = static_cast<float*>(p.c) + (tile.c_row + row) * p.width + tile.c_col + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTileCols / 8; ++j) {
      if (8 * j >= tile.num_cols) continue;
      if constexpr (kAccumulate) {
        add_pair(target + 8 * j, c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
      } else {
        *reinterpret_cast<float2*>(target + 8 * j) = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
      }
    }
  }
}

template <Form kForm>
__device__ void copy_operands(const Product& p, std::byte* stages, Tile* stage_tiles, uint64_t* full, uint64_t* empty) {
  using L = Layout<kForm>;
  const bool elected = threadIdx.x == 0;
  Tiles<kForm> tiles(p);
  RingPosition<L::kStages> at;
  Tile tile;
  while (tiles.next(tile)) {
    const int panels_a = min(ceil_div(tile.num_rows, kPanel), kPanelsA);
    const int panels_b = min(ceil_div(tile.num_cols, kPanel), kPanelsB / L::kParts);  // of each part
    const int num_steps = steps_of(tile);
    for (int step = 0; step < num_steps; ++step) {
      const int k = step * kStepK;
      if (elected) {
        wait_phase(&empty[at.stage], at.parity ^ 1);
        if (step == 0) stage_tiles[at.stage] = tile;
        arrive_expecting(&full[at.stage], (panels_a + L::kParts * panels_b) * kPanelBytes);
        std::byte* const stage = stages + at.stage * kStageBytes;
        for (int i = 0; i < panels_a; ++i) {
          load_panel<L::kAKMajor>(p.a, tile.a_i + i * kPanel, tile.a_k + k, stage + i * kPanelBytes, &full[at.stage]);
        }
#pragma unroll
        for (int part = 0; part < L::kParts; ++part) {
          for (int i = 0; i < panels_b; ++i) {
            load_panel<L::kBKMajor>(p.b, tile.b_i + part * p.width + i * kPanel, tile.b_k + k,
                                    stage + (kPanelsA + part * (kPanelsB / L::kParts) + i) * kPanelBytes,
                                    &full[at.stage]);
          }
        }
      }
      at.advance();
    }
  }
  if (elected) {
    wait_phase(&empty[at.stage], at.parity ^ 1);
    stage_tiles[at.stage].depth = -1;
    arrive(&full[at.stage]);
  }
}

// k's 64 of a stage. kCols: 256, or 128 where a tile has no more.
template <Form kForm, int kCols>
__device__ void multiply_stage(const std::byte* stage, int consumer, bool accumulate, float (&c)[128]) {
  using L = Layout<kForm>;
  const uint64_t a = operand(stage + consumer * kPanelBytes), b = operand(stage + kPanelsA * kPanelBytes);
  begin_products();
#pragma unroll
  for (int k = 0; k < kStepK / 16; ++k) {
    const uint64_t a_k = a + k * operand_step<L::kAKMajor>(), b_k = b + k * operand_step<L::kBKMajor>();
    if constexpr (kCols == kTileCols) {
      wgmma_n256<!L::kAKMajor, !L::kBKMajor>(c, a_k, b_k, accumulate || k > 0);
    } else {
      wgmma_n128<!L::kAKMajor, !L::kBKMajor>(c, a_k, b_k, accumulate || k > 0);
    }
  }
  commit_products();
}

// The products of a tile's rows, which `consumer` has 64 of. Every stage is released once it is read.
template <Form kForm, int kCols>
__device__ void multiply_tile(const Tile& tile, std::byte* stages, uint64_t* full, uint64_t* empty, int consumer,
                              RingPosition<Layout<kForm>::kStages>& at, float (&c)[128]) {
  using L = Layout<kForm>;
  const bool elected = threadIdx.x % kWarp == 0;
  int before = -1;  // the stage that is being read
  const int num_steps = steps_of(tile);
  for (int step = 0; step < num_steps; ++step) {
    const int k = step * kStepK;
    wait_phase(&full[at.stage], at.parity);
    std::byte* const stage = stages + at.stage * kStageBytes;
    if constexpr (!L::kRagged) {
      if (k + kStepK > tile.depth) clear_rows(stage, tile.depth - k, kPanelsA + kPanelsB);
    }
    multiply_stage<kForm, kCols>(stage, consumer, step > 0, c);
    wait_products<1>();
    if (before >= 0 && elected) arrive(&empty[before]);
    before = at.stage;
    at.advance();
  }
  wait_products<0>();
  if (elected) arrive(&empty[before]);
}

template <Form kForm>
__device__ void multiply_tiles(const Product& p, std::byte* stages, std::byte* staged, const Tile* stage_tiles,
                               uint64_t* full, uint64_t* empty) {
  using L = Layout<kForm>;
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int warp_row = consumer * kPanel + warp * kStagedRows;
  staged += (consumer * (kWarpgroup / kWarp) + warp) * kStagedRows * kStagedRowBytes;
  RingPosition<L::kStages> at;
  float c[128];
  for (;;) {
    wait_phase(&full[at.stage], at.parity);  // a tile comes with its first stage
    const Tile tile = stage_tiles[at.stage];
    __syncwarp();  // all lanes have read it before one releases the stage
    if (tile.depth < 0) break;
    float upper_weight = 0.0F, lower_weight = 0.0F;  // of rows lane / 4 and 8 further, asked for ahead of their use
    if constexpr (L::kSwiGlu) {
      const int row = warp_row + static_cast<int>(threadIdx.x) % kWarp / 4;
      if (row < tile.num_rows) upper_weight = p.row_weight[tile.c_row + row];
      if (row + 8 < tile.num_rows) lower_weight = p.row_weight[tile.c_row + row + 8];
    }
    if (L::kSwiGlu || tile.num_cols > kTileCols / 2) {
      multiply_tile<kForm, kTileCols>(tile, stages, full, empty, consumer, at, c);
    } else {
      multiply_tile<kForm, kTileCols / 2>(tile, stages, full, empty, consumer, at, c);
    }
    if constexpr (L::kSwiGlu) {
      write_swiglu_rows(c, p, tile, warp_row, upper_weight, lower_weight, staged);
    } else if constexpr (L::kRagged) {
      write_rows(c, p, tile, warp_row, staged);
    } else if (p.accumulate) {
      write_sums<true>(c, p, tile, warp_row);
    } else {
      write_sums<false>(c, p, tile, warp_row);
    }
  }
  wait_stores_read<0>();
}

template <Form kForm>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Product p) {
  using L = Layout<kForm>;
  extern __shared__ __align__(1024) std::byte shared[];
  std::byte* const staged = shared + L::kStages * kStageBytes;
  auto* const stage_tiles = reinterpret_cast<Tile*>(staged + L::kStagedBytes);
  auto* const full = reinterpret_cast<uint64_t*>(stage_tiles + L::kStages);
  uint64_t* const empty = full + L::kStages;
  if (threadIdx.x == 0) {
    prefetch_map(p.a);
    prefetch_map(p.b);
    for (int i = 0; i < L::kStages; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], kConsumerWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x < kWarp) copy_operands<kForm>(p, shared, stage_tiles, full, empty);
  } else {
    take_registers<kConsumerRegisters>();
    multiply_tiles<kForm>(p, shared, staged, stage_tiles, full, empty);
  }
}

template <Form kForm>
void launch(Context& ctx, const Product& product, int64_t max_tiles) {
  using L = Layout<kForm>;
  NMOE_CHECK(max_tiles <= INT32_MAX / 2, "grouped linear of {} tiles", max_tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(max_tiles, ctx.num_sms));
  NMOE_CUDA_CHECK(
      cudaFuncSetAttribute(grouped_kernel<kForm>, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kSharedBytes));
  grouped_kernel<kForm><<<blocks, kThreads, L::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// C [R, parts of `width`] = the product of x [R, depth] with the experts' weights.
template <Form kForm>
void rows_product(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor c, int64_t width, const float* row_weight,
                  void* hidden) {
  const int64_t num_experts = w.dim(0), R = x.dim(0), depth = x.dim(1);
  const Product product{.a = panel_map(x.raw(), R, depth),
                        .b = panel_map(w.raw(), num_experts * w.dim(1), w.dim(2)),
                        .offsets = offsets.data<int32_t>(),
                        .order = nullptr,
                        .tiles_taken = nullptr,
                        .c = c.raw(),
                        .num_experts = static_cast<int>(num_experts),
                        .rows = 0,
                        .width = static_cast<int>(width),
                        .depth = static_cast<int>(depth),
                        .row_weight = row_weight,
                        .hidden = hidden,
                        .accumulate = false};
  // Every expert has at most one row tile that is not full.
  const int64_t row_tiles = R / kTileRows + std::min(num_experts, R);
  launch<kForm>(ctx, product, row_tiles * ceil_div<int64_t>(width, Layout<kForm>::kCols));
}

}  // namespace

bool sm90_grouped_takes(Tensor rows, Tensor w, Tensor other_rows) {
  const bool aligned =
      aligned16(rows.raw()) && aligned16(other_rows.raw()) && (w.dtype() != DType::kBF16 || aligned16(w.raw()));
  return rows.dtype() == DType::kBF16 && rows.dim(1) % 8 == 0 && other_rows.dim(1) % 8 == 0 && aligned;
}

void sm90_grouped_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y) {
  rows_product<Form::kForward>(ctx, x, w, offsets, y, y.dim(1), nullptr, nullptr);
}

void sm90_grouped_swiglu(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor row_weight, Tensor pre, Tensor h) {
  rows_product<Form::kForwardSwiGlu>(ctx, x, w, offsets, pre, h.dim(1), row_weight.data<float>(), h.raw());
}

void sm90_grouped_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx) {
  rows_product<Form::kInputGradient>(ctx, dy, w, offsets, dx, dx.dim(1), nullptr, nullptr);
}

void sm90_grouped_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate) {
  const int64_t num_experts = dw.dim(0), rows = dw.dim(1), cols = dw.dim(2);
  ArenaScope scope(ctx.scratch);
  const Tensor order = scope.allocate(DType::kI32, {num_experts}), tiles_taken = scope.allocate(DType::kI32, {1});
  if (ctx.counting()) return;
  order_kernel<<<grid_size(ceil_div<int64_t>(num_experts, kOrderThreads / kWarp)), kOrderThreads, 0, ctx.stream>>>(
      offsets.data<int32_t>(), static_cast<int>(num_experts), order.data<int32_t>(), tiles_taken.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
  const Product product{.a = panel_map(dy.raw(), dy.dim(0), rows),
                        .b = panel_map(x.raw(), x.dim(0), cols),
                        .offsets = offsets.data<int32_t>(),
                        .order = order.data<int32_t>(),
                        .tiles_taken = tiles_taken.data<int32_t>(),
                        .c = dw.raw(),
                        .num_experts = static_cast<int>(num_experts),
                        .rows = static_cast<int>(rows),
                        .width = static_cast<int>(cols),
                        .depth = 0,
                        .row_weight = nullptr,
                        .hidden = nullptr,
                        .accumulate = accumulate};
  const int64_t tiles = ceil_div<int64_t>(rows, kTileRows) * ceil_div<int64_t>(cols, kTileCols);
  launch<Form::kWeightGradient>(ctx, product, num_experts * tiles);
}

}  // namespace nmoe::cuda
