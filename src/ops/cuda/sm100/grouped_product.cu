// Grouped products on Blackwell: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e, in BF16, MXFP8 and NVFP4.
//
// A persistent, warp-specialised kernel as Hopper's (sm90/grouped_linear.cu), whose tile schedulers and pipeline serve
// here too. One block a multiprocessor works on tiles of C:
//
//   warp 0     asks for tiles and keeps a ring of stages filled by TMA, 128 bytes of k each (sm90/tma_pipeline.cuh)
//   warp 1     one lane starts the products, whose sums are in tensor memory; a stage is free when its products are
//   done warp 2     has allocated tensor memory and gives it back warps 4-7  take the sums, 32 rows of the tile each,
//   and write C
//
// There are two sets of sums, so that a tile is written while the next is multiplied: 128 x 256 in BF16, which is all
// of tensor memory's 512 columns, and 128 x 128 where scales need columns too. A tile's description goes with its first
// stage, and on with its sums.
//
// Scales come in blocks of 128 rows by 4 (descriptors.h), by bulk copies into the stage and by tcgen05.cp into tensor
// memory, in order with the products that read them. A stage has 4 scales of k in MXFP8, 16 in NVFP4.
//
// Rows of a tile beyond the expert's are multiplied and not stored. Where rows are what is summed over, BF16 rows
// behind the expert's are made zeros in shared memory; blocks have zeros there (block_operands.h).
//
// A sum has one order, that of k, whatever the other rows are, and every value of C is written by one thread once.
//
// Bound by tensor cores: 2,250 TFLOP/s in BF16, 4,500 in MXFP8, 9,000 in NVFP4 (NVIDIA's figures of a B200, dense). Not
// measured: nobody has run it.
#include <algorithm>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm100/grouped_product.h"
#include "ops/cuda/sm100/tcgen05.cuh"
#include "ops/cuda/sm90/limits.cuh"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/vendor/tensor_map.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm100 {
namespace {

using sm90::DynamicTileScheduler, sm90::GroupTile, sm90::StaticTileScheduler, sm90::TmaPipeline;
using sm90::mbarrier_arrive, sm90::mbarrier_init, sm90::mbarrier_wait;

// The rows of C are the groups' rows, or C is a matrix for each group, summed over its rows. kRowsOfK: as kRows, but
// rows of B are of k (BF16).
enum class Form { kRows, kRowsOfK, kWeights };

constexpr int kTileRows = 128, kRowBytes = 128;
constexpr int kPanel = 64, kPanelBytes = kPanel * kRowBytes;
constexpr int kAlignment = 1024;  // of what is swizzled by 128 bytes
constexpr int kEpilogueWarps = 4, kFirstEpilogueWarp = 4;
constexpr int kLoadWarp = 0, kProductWarp = 1, kMemoryWarp = 2;
constexpr int kThreads = (kFirstEpilogueWarp + kEpilogueWarps) * kWarp;
constexpr int kSums = 2;                                          // sets of sums
constexpr int kChunkCols = 32;                                    // that go through shared memory at once
constexpr int kStagedRowBytes = kChunkCols * sizeof(float) + 16;  // rows begin 16 bytes apart in banks
constexpr int kStagedBytes = kEpilogueWarps * kWarp * kStagedRowBytes;
static_assert(kFirstEpilogueWarp % 4 == 0, "a warp reads the lanes of tensor memory that its number names");

// One tile of C, and where its operands lie.
struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int depth;               // negative: there are no more tiles
  int group;
  int a_i, a_k, b_i, b_k;            // first coordinates in the operands
  int a_scale_block, b_scale_block;  // of 128 rows
  int c_col;                         // first column and row in C
  int64_t c_row;
};

template <Kind kOf, Form kForm, class T>
struct Layout {
  static constexpr Kind kKind = kOf;
  using Element = T;  // of C
  static constexpr bool kIsBf16 = kKind == Kind::kBf16, kWeights = kForm == Form::kWeights;
  static constexpr bool kARowsOfK = kIsBf16 && kWeights, kBRowsOfK = kIsBf16 && kForm != Form::kRows;
  static_assert(kIsBf16 || kForm != Form::kRowsOfK, "blocks have k along their rows");

  static constexpr int kTileCols = kIsBf16 ? 256 : 128;
  static constexpr int kDepth = product_depth(kKind), kProducts = kRowBytes / 32, kStepK = kProducts * kDepth;
  // Blocks of scales that a stage has of each operand.
  static constexpr int kScaleSpan = kScalesAcross * scale_block(kKind);  // of k, a block
  static constexpr int kScaleBlocks = kIsBf16 ? 0 : kStepK / kScaleSpan;
  static constexpr int kBytesA = kTileRows * kRowBytes, kBytesB = kTileCols * kRowBytes;
  static constexpr int kScaleBytes = kScaleBlocks * kScaleBlockBytes;
  static constexpr int kScaleColumnsAll = kScaleBlocks * kScaleColumns;  // of each operand
  static constexpr int kFirstScaleColumn = kSums * kTileCols;
  static_assert(kIsBf16 || kTileCols == kScaleRows, "a tile's rows and columns are a block of scales each");
  static_assert(kFirstScaleColumn + 2 * kScaleColumnsAll <= kTensorColumns);

  static constexpr int kStages = kIsBf16 ? 4 : 5;
  using Pipeline = TmaPipeline<kStages, kBytesA + kBytesB + 2 * kScaleBytes, Tile>;
  using Scheduler = std::conditional_t<kWeights, DynamicTileScheduler<kTileRows, kTileCols>,  //
                                       StaticTileScheduler<kTileRows, kTileCols>>;
  static constexpr int kStageBytes = kStages * Pipeline::kStageBytes;
};

// The mbarriers and headers of sums, and tensor memory's address.
struct SumsControl {
  Tile tile[kSums];
  uint64_t full[kSums], empty[kSums];
  uint32_t address;
};
static_assert(alignof(Tile) >= alignof(uint64_t));

template <class L>
constexpr int kSharedBytes = L::kStageBytes + kStagedBytes + L::Pipeline::kBarrierBytes +
                             static_cast<int>(sizeof(SumsControl));

struct Product {
  CUtensorMap a, b;
  const uint8_t* a_scales;  // blocks; null in BF16
  const uint8_t* b_scales;
  const float* a_amax;  // of groups; null: there are no tensors' scales
  const float* b_amax;
  int a_scales_across, b_scales_across;  // blocks of scales along k
  GroupBounds bounds;
  bool one_weight;              // which all groups share
  const int32_t* tile_offsets;  // or null: groups begin at multiples of 128 rows
  const int* order;             // of groups, and
  int* tiles_taken;             // for C a matrix for each group
  void* c;
  const void* addend;  // or null; may be c
  int num_groups;
  int rows, width, depth;                 // of C; rows of a group's C, and k, where those are the same for all
  int b_step_i, b_step_k, b_step_scales;  // from an expert's B to the next: rows, k, blocks of scales
  bool skip_empty, vectors;               // vectors: rows of C are whole 16 bytes
};

template <class L>
__device__ typename L::Scheduler make_scheduler(const Product& p) {
  if constexpr (L::kWeights) {
    return {{p.bounds.offsets, p.num_groups, p.order, p.tiles_taken, p.rows, p.width}, p.skip_empty};
  } else {
    return {p.bounds, p.num_groups, p.width};
  }
}

template <class L>
__device__ Tile tile_of(const GroupTile& at, const Product& p) {
  Tile tile{};
  tile.num_cols = p.width - at.col;
  tile.c_col = at.col;
  tile.group = p.one_weight ? 0 : at.group;
  if constexpr (L::kWeights) {
    tile.num_rows = p.rows - at.row;
    tile.depth = at.group_rows;
    tile.a_i = at.row;
    tile.b_i = at.col;
    tile.a_k = tile.b_k = L::kIsBf16 ? at.group_begin : p.tile_offsets[at.group] * kTileRows;
    tile.a_scale_block = at.row / kScaleRows;
    tile.b_scale_block = at.col / kScaleRows;
    tile.c_row = static_cast<int64_t>(at.group) * p.rows + at.row;
  } else {
    tile.num_rows = at.group_rows - at.row;
    tile.depth = p.depth;
    tile.a_i = at.group_begin + at.row;
    tile.b_i = tile.group * p.b_step_i + at.col;
    tile.b_k = tile.group * p.b_step_k;
    tile.a_scale_block =
        p.tile_offsets == nullptr ? tile.a_i / kScaleRows : p.tile_offsets[at.group] + at.row / kScaleRows;
    tile.b_scale_block = tile.group * p.b_step_scales + at.col / kScaleRows;
    tile.c_row = tile.a_i;
  }
  return tile;
}

// 16 bytes and more from global to shared memory; they count towards those that the phase of `barrier` expects.
__device__ void bulk_load(const void* source, int bytes, void* target, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Panels of 64 rows of BF16 with k along them, or of rows of k with 64 of i along them.
template <bool kRowsOfK>
__device__ void load_panels(const CUtensorMap& map, int i, int k, int panels, std::byte* target, uint64_t* barrier) {
  for (int panel = 0; panel < panels; ++panel) {
    if constexpr (kRowsOfK) {
      sm90::tma_load(map, i + panel * kPanel, k, target + panel * kPanelBytes, barrier);
    } else {
      sm90::tma_load(map, k, i + panel * kPanel, target + panel * kPanelBytes, barrier);
    }
  }
}

// By one thread: a stage, of k from `k` on.
template <class L>
__device__ void load_stage(const Product& p, const Tile& tile, int k, const typename L::Pipeline& pipeline,
                           const typename L::Pipeline::Position& at) {
  std::byte* const a = pipeline.stage(at);
  std::byte* const b = a + L::kBytesA;
  uint64_t* const full = pipeline.full(at);
  if constexpr (L::kIsBf16) {
    const int panels_a = min(ceil_div(tile.num_rows, kPanel), kTileRows / kPanel);
    const int panels_b = min(ceil_div(tile.num_cols, kPanel), L::kTileCols / kPanel);
    pipeline.expect(at, (panels_a + panels_b) * kPanelBytes);
    load_panels<L::kARowsOfK>(p.a, tile.a_i, tile.a_k + k, panels_a, a, full);
    load_panels<L::kBRowsOfK>(p.b, tile.b_i, tile.b_k + k, panels_b, b, full);
  } else {
    std::byte* const a_scales = b + L::kBytesB;
    std::byte* const b_scales = a_scales + L::kScaleBytes;
    const int blocks = min(L::kScaleBlocks, ceil_div(tile.depth - k, L::kScaleSpan));
    const int scale_bytes = blocks * kScaleBlockBytes;
    pipeline.expect(at, L::kBytesA + L::kBytesB + 2 * scale_bytes);
    sm90::tma_load(p.a, static_cast<int>(value_bytes(L::kKind, tile.a_k + k)), tile.a_i, a, full);
    sm90::tma_load(p.b, static_cast<int>(value_bytes(L::kKind, tile.b_k + k)), tile.b_i, b, full);
    const auto block_at = [](const uint8_t* scales, int row_block, int across, int first_k) {
      return scales + (static_cast<int64_t>(row_block) * across + first_k / L::kScaleSpan) * kScaleBlockBytes;
    };
    bulk_load(block_at(p.a_scales, tile.a_scale_block, p.a_scales_across, tile.a_k + k), scale_bytes, a_scales, full);
    bulk_load(block_at(p.b_scales, tile.b_scale_block, p.b_scales_across, tile.b_k + k), scale_bytes, b_scales, full);
  }
}

// By the warp of loads. The sum of nothing has a stage that is nothing but its header.
template <class L>
__device__ void load_tiles(const Product& p, const typename L::Pipeline& pipeline) {
  const bool elected = elect_one();
  typename L::Scheduler scheduler = make_scheduler<L>(p);
  typename L::Pipeline::Position at;
  GroupTile next;
  while (scheduler.next(next)) {
    const Tile tile = tile_of<L>(next, p);
    const int num_steps = max(1, ceil_div(tile.depth, L::kStepK));
    for (int step = 0; step < num_steps; ++step) {
      if (elected) {
        pipeline.acquire(at);
        if (step == 0) pipeline.header(at) = tile;
        if (tile.depth > 0) {
          load_stage<L>(p, tile, step * L::kStepK, pipeline, at);
        } else {
          pipeline.commit_header(at);
        }
      }
      at.advance();
    }
  }
  if (elected) {
    pipeline.acquire(at);
    pipeline.header(at).depth = -1;
    pipeline.commit_header(at);
    // Until the products of all stages are done, which arrive on mbarriers of this block.
    for (int i = 1; i < L::kStages; ++i) {
      at.advance();
      pipeline.acquire(at);
    }
  }
  __syncwarp();
}

// Zeros for the rows of k from `first` on, up to a whole instruction's, of all panels of a stage. By a warp.
template <class L>
__device__ void clear_rows(std::byte* stage, int first) {
  constexpr int kPanels = (kTileRows + L::kTileCols) / kPanel, kRowVectors = kRowBytes / 16;
  const int rows = ceil_div(first, L::kDepth) * L::kDepth - first;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < kPanels * rows * kRowVectors; i += kWarp) {
    const int panel = i / (rows * kRowVectors), vector = i % (rows * kRowVectors);
    reinterpret_cast<uint4*>(stage + panel * kPanelBytes + first * kRowBytes)[vector] = make_uint4(0, 0, 0, 0);
  }
  sm90::fence_proxy_async();
  __syncwarp();
}

// By one thread: the products of a stage, whose first begins the sums unless they are to be added to.
template <class L>
__device__ void multiply_stage(std::byte* stage, int num_products, Instruction instruction, uint32_t sums,
                               uint32_t scale_columns, bool accumulate) {
  const uint32_t address = shared_address(stage);
  const uint64_t a = operand_descriptor(address, L::kARowsOfK ? kPanelBytes : 0);
  const uint64_t b = operand_descriptor(address + L::kBytesA, L::kBRowsOfK ? kPanelBytes : 0);
  const uint32_t a_columns = scale_columns, b_columns = scale_columns + L::kScaleColumnsAll;
  if constexpr (!L::kIsBf16) {
    const uint32_t a_scales = address + L::kBytesA + L::kBytesB, b_scales = a_scales + L::kScaleBytes;
#pragma unroll
    for (int block = 0; block < L::kScaleBlocks; ++block) {
      if (block * L::kScaleSpan >= num_products * L::kDepth) break;
      copy_scales(a_columns + block * kScaleColumns, scale_descriptor(a_scales + block * kScaleBlockBytes));
      copy_scales(b_columns + block * kScaleColumns, scale_descriptor(b_scales + block * kScaleBlockBytes));
    }
  }
#pragma unroll
  for (int i = 0; i < L::kProducts; ++i) {
    if (i >= num_products) break;
    const uint64_t a_k = a + i * operand_step(L::kARowsOfK), b_k = b + i * operand_step(L::kBRowsOfK);
    const bool adds = accumulate || i > 0;
    if constexpr (L::kKind == Kind::kBf16) {
      multiply_bf16(sums, a_k, b_k, instruction_descriptor(instruction), adds);
    } else if constexpr (L::kKind == Kind::kMxFp8) {
      instruction.scale_id = i;  // four products read one block's four scales
      multiply_mxfp8(sums, a_k, b_k, instruction_descriptor(instruction), a_columns, b_columns, adds);
    } else {  // a product reads all of a block's
      multiply_nvfp4(sums, a_k, b_k, instruction_descriptor(instruction), a_columns + i * kScaleColumns,
                     b_columns + i * kScaleColumns, adds);
    }
  }
}

// By the warp of products, whose elected lane starts them all.
template <class L>
__device__ void multiply_tiles(const typename L::Pipeline& pipeline, SumsControl& sums) {
  const bool elected = elect_one();
  const uint32_t memory = sums.address;
  typename L::Pipeline::Position at;
  for (int count = 0;; ++count) {
    const int set = count % kSums, parity = count / kSums % 2;
    pipeline.wait(at);
    const Tile tile = pipeline.header(at);
    mbarrier_wait(&sums.empty[set], parity ^ 1);
    tcgen05_fence_after();
    __syncwarp();  // all lanes have read the description before a stage is released
    if (elected) sums.tile[set] = tile;
    if (tile.depth < 0) {
      if (elected) {
        mbarrier_arrive(&sums.full[set]);
        mbarrier_arrive(&sums.full[set]);
      }
      break;
    }
    const Instruction instruction{.kind = L::kKind,
                                  .rows = kTileRows,
                                  .cols = min(L::kTileCols, ceil_div(tile.num_cols, 16) * 16),
                                  .a_rows_of_k = L::kARowsOfK,
                                  .b_rows_of_k = L::kBRowsOfK,
                                  .scale_id = 0};
    const int num_steps = max(1, ceil_div(tile.depth, L::kStepK));
    for (int step = 0; step < num_steps; ++step) {
      const int left = tile.depth - step * L::kStepK;
      pipeline.wait(at);
      tcgen05_fence_after();
      if constexpr (L::kIsBf16 && L::kWeights) {
        if (left < L::kStepK && left % L::kDepth != 0) clear_rows<L>(pipeline.stage(at), left);
      }
      if (elected) {
        const int num_products = min(L::kProducts, ceil_div(left, L::kDepth));
        multiply_stage<L>(pipeline.stage(at), num_products, instruction, memory + set * L::kTileCols,
                          memory + L::kFirstScaleColumn, step > 0);
        tcgen05_commit(pipeline.empty(at.stage));
      }
      __syncwarp();
      at.advance();
    }
    if (elected) {
      mbarrier_arrive(&sums.full[set]);  // the tile's description is there
      tcgen05_commit(&sums.full[set]);   // and so are its sums
    }
    __syncwarp();
  }
}

// 32 rows of kChunkCols sums from a warp's staging to C. `c`, `addend`: the first row's, at the chunk's columns;
// num_rows and num_cols exist from there on.
template <class T>
__device__ void write_chunk(const std::byte* staged, T* c, const T* addend, int64_t stride, int num_rows, int num_cols,
                            bool vectors) {
  constexpr int kVector = 16 / sizeof(T), kRowVectors = kChunkCols / kVector, kRowsAtOnce = kWarp / kRowVectors;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, col = lane % kRowVectors * kVector;
#pragma unroll 4
  for (int row = lane / kRowVectors; row < kWarp; row += kRowsAtOnce) {
    if (row >= num_rows || col >= num_cols) continue;
    const int64_t offset = row * stride + col;
    const auto* const sums = reinterpret_cast<const float*>(staged + row * kStagedRowBytes) + col;
    float v[kVector], more[kVector] = {};
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(sums + i);
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    if (vectors) {
      if (addend != nullptr) load_values(addend + offset, more);
#pragma unroll
      for (int i = 0; i < kVector; ++i) v[i] += more[i];
      store_values(c + offset, v);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (col + i >= num_cols) continue;
        c[offset + i] = from_float<T>(v[i] + (addend == nullptr ? 0.0F : to_float(addend[offset + i])));
      }
    }
  }
}

// By the epilogue's warps: 32 rows of every tile each.
template <class L>
__device__ void write_tiles(const Product& p, SumsControl& sums, std::byte* staging) {
  using T = typename L::Element;
  const int warp = static_cast<int>(threadIdx.x) / kWarp - kFirstEpilogueWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first_row = warp * kWarp;
  std::byte* const staged = staging + warp * kWarp * kStagedRowBytes;
  auto* const own = reinterpret_cast<float4*>(staged + lane * kStagedRowBytes);
  const uint32_t memory = sums.address + (static_cast<uint32_t>(first_row) << 16);
  for (int count = 0;; ++count) {
    const int set = count % kSums, parity = count / kSums % 2;
    mbarrier_wait(&sums.full[set], parity);
    tcgen05_fence_after();
    const Tile tile = sums.tile[set];
    if (tile.depth < 0) break;
    const float scale = p.a_amax == nullptr ? 1.0F : nvfp4_product_scale(p.a_amax[tile.group], p.b_amax[tile.group]);
    const int num_rows = tile.num_rows - first_row, num_cols = min(tile.num_cols, L::kTileCols);
    const int64_t corner = (tile.c_row + first_row) * p.width + tile.c_col;
    for (int col = 0; col < num_cols; col += kChunkCols) {
      uint32_t bits[kChunkCols];
      tensor_load(memory + set * L::kTileCols + col, bits);
      tensor_wait_load(bits);
      float v[kChunkCols];
#pragma unroll
      for (int i = 0; i < kChunkCols; ++i) v[i] = tile.depth == 0 ? 0.0F : __uint_as_float(bits[i]) * scale;
#pragma unroll
      for (int i = 0; i < kChunkCols; i += 4) own[i / 4] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
      if (col + kChunkCols >= num_cols) {  // the sums have been read
        tcgen05_fence_before();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&sums.empty[set]);
      }
      __syncwarp();
      T* const c = static_cast<T*>(p.c) + corner + col;
      const T* const addend = p.addend == nullptr ? nullptr : static_cast<const T*>(p.addend) + corner + col;
      write_chunk<T>(staged, c, addend, p.width, num_rows, num_cols - col, p.vectors);
      __syncwarp();
    }
  }
}

template <class L>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Product p) {
  extern __shared__ __align__(kAlignment) std::byte shared[];
  std::byte* const staging = shared + L::kStageBytes;
  std::byte* const control = staging + kStagedBytes;
  const typename L::Pipeline pipeline(shared, control);
  SumsControl& sums = *reinterpret_cast<SumsControl*>(control + L::Pipeline::kBarrierBytes);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x == 0) {
    sm90::tma_prefetch_map(p.a);
    sm90::tma_prefetch_map(p.b);
    for (int i = 0; i < kSums; ++i) {
      mbarrier_init(&sums.full[i], 2);
      mbarrier_init(&sums.empty[i], kEpilogueWarps);
    }
    pipeline.init(/*num_copiers=*/0, /*num_releases=*/1);  // with a fence for all mbarriers
  }
  if (warp == kMemoryWarp) tensor_allocate(&sums.address);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  if (warp == kLoadWarp) {
    load_tiles<L>(p, pipeline);
  } else if (warp == kProductWarp) {
    multiply_tiles<L>(pipeline, sums);
  } else if (warp >= kFirstEpilogueWarp) {
    write_tiles<L>(p, sums, staging);
  }
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  if (warp == kMemoryWarp) tensor_free(sums.address);
}

template <class L>
void launch(Context& ctx, const Product& product, int64_t max_tiles) {
  static_assert(kSharedBytes<L> <= sm90::kMaxSharedBytes, "Blackwell's blocks have as much as Hopper's");
  static_assert((L::kStageBytes + kStagedBytes) % alignof(Tile) == 0 &&
                L::Pipeline::kBarrierBytes % alignof(Tile) == 0);
  NMOE_CHECK(max_tiles <= INT32_MAX / 2, "a grouped product of {} tiles", max_tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(max_tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_kernel<L>, kSharedBytes<L>);
  grouped_kernel<L><<<blocks, kThreads, kSharedBytes<L>, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// Every group has at most one row tile that is not full.
template <class L>
void launch_rows(Context& ctx, const Product& product, int64_t capacity) {
  const int64_t row_tiles = capacity / kTileRows + std::min<int64_t>(product.num_groups, capacity);
  launch<L>(ctx, product, row_tiles * ceil_div<int64_t>(product.width, L::kTileCols));
}
template <class L>
void launch_weights(Context& ctx, const Product& product) {
  launch<L>(
      ctx, product,
      product.num_groups * ceil_div<int64_t>(product.rows, kTileRows) * ceil_div<int64_t>(product.width, L::kTileCols));
}

// Whether rows of C may be written by 16 bytes.
bool whole_vectors(Tensor c, Tensor addend) {
  const int64_t row_bytes = c.dim(-1) * static_cast<int64_t>(dtype_bytes(c.dtype()));
  return row_bytes % 16 == 0 && aligned16(c.raw()) && (!addend.defined() || aligned16(addend.raw()));
}

// What all products have.
Product product_of(const CUtensorMap& a, const CUtensorMap& b, const GroupBounds& bounds, int64_t num_groups, Tensor c,
                   Tensor addend) {
  return {.a = a,
          .b = b,
          .a_scales = nullptr,
          .b_scales = nullptr,
          .a_amax = nullptr,
          .b_amax = nullptr,
          .a_scales_across = 0,
          .b_scales_across = 0,
          .bounds = bounds,
          .one_weight = false,
          .tile_offsets = nullptr,
          .order = nullptr,
          .tiles_taken = nullptr,
          .c = c.raw(),
          .addend = addend.defined() ? addend.raw() : nullptr,
          .num_groups = static_cast<int>(num_groups),
          .rows = 0,
          .width = static_cast<int>(c.dim(-1)),
          .depth = 0,
          .b_step_i = 0,
          .b_step_k = 0,
          .b_step_scales = 0,
          .skip_empty = false,
          .vectors = whole_vectors(c, addend)};
}

void set_blocks(Product& product, const BlockOperand& a, const BlockOperand& b) {
  product.a_scales = a.scales.data<uint8_t>();
  product.b_scales = b.scales.data<uint8_t>();
  product.a_scales_across = static_cast<int>(a.scales.dim(1));
  product.b_scales_across = static_cast<int>(b.scales.dim(1));
  if (!a.amax.defined()) return;
  product.a_amax = a.amax.data<float>();
  product.b_amax = b.amax.data<float>();
}

void set_order(Context& ctx, Product& product, Tensor offsets, const TileOrder& order) {
  sm90::order_longest_first(ctx, offsets, order);
  product.order = order.order.data<int32_t>();
  product.tiles_taken = order.counters.data<int32_t>();
}

CUtensorMap block_map(const BlockOperand& operand) {
  return byte_map(operand.values.raw(), operand.values.dim(0), operand.values.dim(1), kTileRows);
}

// fn(a layout of that kind, form and element).
template <Form kForm, class T, class Fn>
void with_kind(OperandFormat format, const Fn& fn) {
  if (format == OperandFormat::kMxFp8) {
    fn(Layout<Kind::kMxFp8, kForm, T>{});
  } else {
    NMOE_CHECK(format == OperandFormat::kNvFp4, "a product of blocks in no format");
    fn(Layout<Kind::kNvFp4, kForm, T>{});
  }
}

// Rows of one weight are taken in groups of this many, so that all columns of some rows are made before others are
// read: together with the weight they stay in L2.
constexpr int kGroupRows = 4096;
static_assert(kGroupRows % kScaleRows == 0);

void check_sizes(int64_t rows, int64_t experts, int64_t n, int64_t k) {
  NMOE_CHECK(rows <= INT32_MAX - kGroupRows && experts * (n + k) <= INT32_MAX,
             "a product of {} rows and {} weights of {} x {}", rows, experts, n, k);
}

}  // namespace

void grouped_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y) {
  const int64_t E = w.dim(0), N = w.dim(1), K = w.dim(2), R = x.dim(0);
  check_sizes(R, E, N, K);
  Product product = product_of(panel_map(x.raw(), R, K), panel_map(w.raw(), E * N, K),
                               GroupBounds(offsets.data<int32_t>()), E, y, /*addend=*/{});
  product.depth = static_cast<int>(K);
  product.b_step_i = static_cast<int>(N);
  launch_rows<Layout<Kind::kBf16, Form::kRows, __nv_bfloat16>>(ctx, product, R);
}

void grouped_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx) {
  const int64_t E = w.dim(0), K = w.dim(1), N = w.dim(2), R = dy.dim(0);
  check_sizes(R, E, N, K);
  Product product = product_of(panel_map(dy.raw(), R, K), panel_map(w.raw(), E * K, N),
                               GroupBounds(offsets.data<int32_t>()), E, dx, /*addend=*/{});
  product.depth = static_cast<int>(K);
  product.b_step_k = static_cast<int>(K);
  launch_rows<Layout<Kind::kBf16, Form::kRowsOfK, __nv_bfloat16>>(ctx, product, R);
}

void grouped_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate,
                             const TileOrder& order) {
  const int64_t E = dw.dim(0), M = dw.dim(1), N = dw.dim(2), R = x.dim(0);
  check_sizes(R, E, N, M);
  Product product = product_of(panel_map(dy.raw(), R, M), panel_map(x.raw(), R, N),
                               GroupBounds(offsets.data<int32_t>()), E, dw, accumulate ? dw : Tensor());
  product.rows = static_cast<int>(M);
  product.skip_empty = accumulate;
  set_order(ctx, product, offsets, order);
  launch_weights<Layout<Kind::kBf16, Form::kWeights, float>>(ctx, product);
}

void block_rows_product(Context& ctx, const BlockRowsProduct& args) {
  const bool ragged = args.offsets.defined();
  const int64_t E = ragged ? args.offsets.dim(0) - 1 : 1, R = args.c.dim(0), N = args.c.dim(1);
  check_sizes(R, E, N, args.depth);
  const GroupBounds bounds =
      ragged ? GroupBounds(args.offsets.data<int32_t>()) : GroupBounds(static_cast<int>(R), kGroupRows);
  Product product = product_of(block_map(args.a), block_map(args.b), bounds,
                               ragged ? E : ceil_div<int64_t>(R, kGroupRows), args.c, args.addend);
  set_blocks(product, args.a, args.b);
  product.one_weight = !ragged;
  if (ragged) product.tile_offsets = args.tile_offsets.data<int32_t>();
  product.depth = static_cast<int>(args.depth);
  if (args.b_is_columns) {
    product.b_step_k = static_cast<int>(ceil_div<int64_t>(args.depth, kTileRows) * kTileRows);
  } else {
    product.b_step_i = static_cast<int>(N);
    product.b_step_scales = static_cast<int>(ceil_div<int64_t>(N, kScaleRows));
  }
  if (args.c.dtype() == DType::kBF16) {
    with_kind<Form::kRows, __nv_bfloat16>(args.a.format, [&]<class L>(L) { launch_rows<L>(ctx, product, R); });
  } else {
    with_kind<Form::kRows, float>(args.a.format, [&]<class L>(L) { launch_rows<L>(ctx, product, R); });
  }
}

void block_weight_product(Context& ctx, const BlockWeightProduct& args, const TileOrder& order) {
  const int64_t E = args.c.dim(0), M = args.c.dim(1), N = args.c.dim(2);
  check_sizes(args.a.values.dim(0), E, N, M);
  Product product = product_of(block_map(args.a), block_map(args.b), GroupBounds(args.offsets.data<int32_t>()), E,
                               args.c, args.accumulate ? args.c : Tensor());
  set_blocks(product, args.a, args.b);
  product.tile_offsets = args.tile_offsets.data<int32_t>();
  product.rows = static_cast<int>(M);
  product.skip_empty = args.accumulate;
  set_order(ctx, product, args.offsets, order);
  with_kind<Form::kWeights, float>(args.a.format, [&]<class L>(L) { launch_weights<L>(ctx, product); });
}

}  // namespace nmoe::cuda::sm100
