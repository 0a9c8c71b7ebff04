// Batch-invariant products of few rows. Bound: reading the weights, or a chain's length.
//
// A warp multiplies 16 rows of weights by a tile's tokens: one chain of instructions, each of which waits for the one
// before it, 25 cycles on Hopper. One warp has TMA fill a ring of stages with weights, and of a plain product does so
// before the work in front has ended; others bring the tokens that belong to a stage. Those that multiply have a turn's
// operands in registers before its first step, and read the next turn's behind its steps.
//
// H100, 2026-11-27, one token, weights not in L2, launches behind each other: 2,048 to 2,048 4.8 us, to 3,648 6.6, to
// 5,632 8.7, 2,816 to 2,048 6.1, the first layer of six experts 25.6 (2.7 TB/s), a head of 163,840 214 (3.1).
#include "ops/cuda/kernels/products/invariant_product.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::invariant {
namespace {

constexpr int kPanel = 64;               // k of a row that lie side by side: 128 bytes, swizzled as TMA does it
constexpr int kRowBytes = kPanel * 2;    // of a panel
constexpr int kPanels = 2;               // of a stage
constexpr int kTurn = kPanels * kPanel;  // consecutive k of a stage
constexpr int kSteps = kTurn / 16;       // instructions of a turn
constexpr int kSwizzleAlignment = 1024;  // bytes: the swizzle is a function of the address

// A block's kGroups 16 rows of weights and kTokens rows of x, and the memory of its ring.
template <int kGroups_, int kTokens_, int kRingKib>
struct Block {
  static constexpr int kGroups = kGroups_, kTokens = kTokens_, kTiles = kTokens / 8;
  // Warps: kGroups that multiply, one that has weights loaded, and those that load tokens, a stage each in turn.
  static constexpr int kTokenWarps = 2, kThreads = (kGroups + 1 + kTokenWarps) * kWarp;
  static constexpr int kWeightPanel = kGroups * 16 * kRowBytes, kTokenPanel = kTokens * kRowBytes;
  static constexpr int kWeightBytes = kPanels * kWeightPanel, kStageBytes = kWeightBytes + kPanels * kTokenPanel;
  static constexpr int kStages = (kRingKib << 10) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kSwizzleAlignment;
  static_assert(kStages >= 2 && kTokens % 8 == 0 && kTokenPanel % kSwizzleAlignment == 0);
};

template <class A>
constexpr int kPartsOf = A::kParts;
template <>
constexpr int kPartsOf<NoActivation> = 1;
// Units of weights that a box of the tensor map has: a panel's, or of several parts as many as 16 rows consist of.
template <class B, class A>
constexpr int kBoxUnits = kPartsOf<A> == 1 ? B::kGroups * 16 : 16 / kPartsOf<A>;

// A ring's stage that comes next, and the parity of its phase.
template <class B>
struct Position {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage == B::kStages) stage = 0, phase ^= 1;
  }
};

// What the warps of a block share.
template <class B>
struct Ring {
  std::byte* stages;  // kStages: panels of weights, then panels of tokens
  uint64_t* full;     // [kStages]: of weights, and of the tokens' copies
  uint64_t* empty;    // [kStages]: of the warps that multiply

  __device__ uint32_t address(const Position<B>& at) const {
    return shared_address(stages) + at.stage * B::kStageBytes;
  }
};

// Has weights loaded, by one lane.
template <class B, class A>
__device__ void load_weights(const Ring<B>& ring, const CUtensorMap& map, const Work<Bf16>& work, int num_turns) {
  constexpr int kUnits = kBoxUnits<B, A>, kBoxBytes = kUnits * kPartsOf<A> * kRowBytes;
  constexpr int kBoxes = B::kWeightPanel / kBoxBytes;
  const int first = work.column_tile * kUnits * kBoxes;
  Position<B> at;
  for (int tile = work.row_begin; tile < work.row_end; tile += B::kTokens) {
    for (int turn = 0; turn < num_turns; ++turn, at.advance()) {
      sm90::mbarrier_wait(&ring.empty[at.stage], at.phase ^ 1);
      uint64_t* const full = &ring.full[at.stage];
      sm90::mbarrier_arrive_expect_tx(full, B::kWeightBytes);
      std::byte* const stage = ring.stages + at.stage * B::kStageBytes;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          sm90::tma_load_units(map,
                               sm90::UnitPlace{turn * kTurn + panel * kPanel, first + box * kUnits, 0, work.matrix},
                               stage + panel * B::kWeightPanel + box * kBoxBytes, full);
        }
      }
    }
  }
}

// Copies the tokens of every kTokenWarps-th stage, from the `number`th on. Rows that do not exist are left as they are:
// no column of an instruction touches another.
template <class B, class Out>
__device__ void load_tokens(const Ring<B>& ring, const Product<Bf16, Out>& p, const Work<Bf16>& work, int number,
                            int num_turns) {
  constexpr int kChunks = kRowBytes / 16, kRowsAtOnce = kWarp / kChunks, kOwn = B::kTokens / kRowsAtOnce;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = lane / kChunks, chunk = lane % kChunks;
  Position<B> at;
  int next = number;  // the next stage that is this warp's, counted from `at`
  for (int tile = work.row_begin; tile < work.row_end; tile += B::kTokens) {
    const Bf16* rows[kOwn];  // null: there is no such row
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = tile + first + i * kRowsAtOnce;
      rows[i] = row < work.row_end ? row_of_x(p, row) + chunk * 8 : nullptr;
    }
    for (int turn = 0; turn < num_turns; ++turn, at.advance()) {
      if (next-- > 0) continue;
      next = B::kTokenWarps - 1;
      sm90::mbarrier_wait(&ring.empty[at.stage], at.phase ^ 1);
      const uint32_t target = ring.address(at) + B::kWeightBytes;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int k = turn * kTurn + panel * kPanel;
        const bool exists = k + chunk * 8 < p.depth;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const int row = first + i * kRowsAtOnce;
          if (rows[i] == nullptr) continue;
          copy_async16(target + panel * B::kTokenPanel + row * kRowBytes + (chunk ^ row % 8) * 16,
                       exists ? rows[i] + k : rows[i], exists);
        }
      }
      sm90::mbarrier_arrive_after_copies(&ring.full[at.stage]);
    }
  }
}

// A turn's operands, as instructions want them.
template <class B>
struct Operands {
  unsigned weights[kSteps][4], tokens[kSteps / 2][B::kTiles][4];
};
template <class B>
class OperandReader {
 public:
  __device__ explicit OperandReader(int group) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights_[i] = (group * 16 + lane % 16) * kRowBytes + (lane / 16 ^ row ^ i * 2) * 16;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) tokens_[i] = B::kWeightBytes + row * kRowBytes + (lane / 8 ^ row ^ i * 4) * 16;
  }
  // Of one step; the tokens of an even one are also the next one's.
  __device__ void read(uint32_t stage, int step, Operands<B>& into) const {
    load_matrices<false>(stage + weights_[step % 4] + step / 4 * B::kWeightPanel, into.weights[step]);
    if (step % 2 != 0) return;
#pragma unroll
    for (int j = 0; j < B::kTiles; ++j) {
      load_matrices<false>(stage + tokens_[step / 2 % 2] + step / 4 * B::kTokenPanel + j * 8 * kRowBytes,
                           into.tokens[step / 2][j]);
    }
  }

 private:
  uint32_t weights_[4], tokens_[2];  // where a lane's rows lie in a stage, by steps of a panel and by halves of it
};

// The sums of 16 rows of weights with a tile's tokens.
template <class B>
__device__ void multiply_tile(const Ring<B>& ring, const OperandReader<B>& reader, Position<B>& at, int num_turns,
                              float (&sums)[B::kTiles][4]) {
  const bool elected = threadIdx.x % kWarp == 0;
  Operands<B> operands[2];  // of this turn and of the next one
  sm90::mbarrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) reader.read(ring.address(at), step, operands[0]);
  for (int pair = 0; pair < num_turns; pair += 2) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      const int turn = pair + parity;
      if (turn >= num_turns) break;
      const auto multiply = [&](int step) {
#pragma unroll
        for (int j = 0; j < B::kTiles; ++j) {
          const unsigned(&tokens)[4] = operands[parity].tokens[step / 2][j];
          gemm::multiply_add(sums[j], operands[parity].weights[step], tokens[step % 2 * 2], tokens[step % 2 * 2 + 1]);
        }
      };
      multiply(0);
      __syncwarp();
      if (elected) sm90::mbarrier_arrive(&ring.empty[at.stage]);  // it is in all lanes' registers
      at.advance();
      multiply(1);
      const bool goes_on = turn + 1 < num_turns;
      if (goes_on) sm90::mbarrier_wait(&ring.full[at.stage], at.phase);
      const uint32_t stage = ring.address(at);
#pragma unroll
      for (int step = 2; step < kSteps; ++step) {
        multiply(step);
        __syncwarp();  // the compiler moves no read across it: two steps' operands lie behind each of these steps
        if (goes_on && step < 2 + kSteps / 2) {
          reader.read(stage, (step - 2) * 2, operands[1 - parity]);
          reader.read(stage, (step - 2) * 2 + 1, operands[1 - parity]);
        }
      }
    }
  }
}

template <class B, class A, class Out>
__global__ void __launch_bounds__(B::kThreads)
    few_rows_kernel(Product<Bf16, Out> all, const __grid_constant__ CUtensorMap weights) {
  extern __shared__ std::byte shared[];
  __shared__ uint64_t full[B::kStages], empty[B::kStages];
  const Ring<B> ring{shared + (kSwizzleAlignment - shared_address(shared) % kSwizzleAlignment) % kSwizzleAlignment,
                     full, empty};
  const Product<Bf16, Out> p = own_batch(all);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_turns = ceil_div(p.depth, kTurn);
  let_next_start();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < B::kStages; ++stage) {
      sm90::mbarrier_init(&full[stage], 1 + kWarp);
      sm90::mbarrier_init(&empty[stage], B::kGroups);
    }
    sm90::mbarrier_init_fence();
  }
  __syncthreads();

  if (warp == B::kGroups) {
    if (p.offsets != nullptr) wait_for_work_before();  // nobody writes weights, but which ones they are
    const Work<Bf16> work = find_work(p, B::kTokens);
    if (lane == 0) load_weights<B, A>(ring, weights, work, num_turns);
    wait_for_work_before();
    return;
  }
  wait_for_work_before();
  const Work<Bf16> work = find_work(p, B::kTokens);
  if (warp > B::kGroups) return load_tokens<B>(ring, p, work, warp - B::kGroups - 1, num_turns);
  const OperandReader<B> reader(warp);
  Position<B> at;
  for (int tile = work.row_begin; tile < work.row_end; tile += B::kTokens) {
    float sums[B::kTiles][4] = {};
    multiply_tile<B>(ring, reader, at, num_turns, sums);
#pragma unroll
    for (int j = 0; j < B::kTiles; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = tile + j * 8 + lane % 4 * 2 + c;
        if (row >= work.row_end) continue;
        store_pair<A>(p, row, work.column_tile * B::kGroups + warp, lane / 4, sums[j][c], sums[j][c + 2]);
      }
    }
  }
}

template <class B, class A, class Out>
void launch_few_rows(Context& ctx, const Product<Bf16, Out>& p) {
  constexpr int kParts = kPartsOf<A>;
  const UnitMatrices weights{.data = p.w,
                             .count = p.offsets != nullptr ? p.num_experts : p.num_batches,
                             // Matrices lie one behind the other, but those of batches.
                             .stride = p.num_batches > 1 ? p.w_step : int64_t{p.width} * p.depth,
                             .parts = kParts,
                             .units = p.width / kParts,
                             .cols = p.depth};
  const auto kernel = few_rows_kernel<B, A, Out>;
  allow_dynamic_shared(kernel, B::kSharedBytes);
  prefer_shared(kernel);
  launch_early(ctx, kernel, grid_of(p, 16 * B::kGroups, B::kTokens), B::kThreads, B::kSharedBytes, p,
               unit_map(weights, kBoxUnits<B, A>));
}

}  // namespace

template <class A, class Out>
void few_rows(Context& ctx, const Product<Bf16, Out>& p) {
  if (p.offsets != nullptr) {
    // Two large blocks a multiprocessor, or where there are not as many, up to three smaller ones.
    const int64_t large = ceil_div<int64_t>(p.width, 64) * std::min(p.num_experts, p.num_rows);
    return large >= int64_t{2} * ctx.num_sms ? launch_few_rows<Block<4, 8, 108>, A>(ctx, p)
                                             : launch_few_rows<Block<2, 8, 72>, A>(ctx, p);
  }
  // A block a multiprocessor, where blocks of 16 rows of weights are no more than those.
  const bool is_narrow = ceil_div<int64_t>(p.width, 16) * p.num_batches <= ctx.num_sms;
  if (p.num_rows > 8) {
    return is_narrow ? launch_few_rows<Block<1, 16, 108>, A>(ctx, p) : launch_few_rows<Block<2, 16, 108>, A>(ctx, p);
  }
  is_narrow ? launch_few_rows<Block<1, 8, 108>, A>(ctx, p) : launch_few_rows<Block<2, 8, 72>, A>(ctx, p);
}

template void few_rows<NoActivation>(Context&, const Product<Bf16, Bf16>&);
template void few_rows<NoActivation>(Context&, const Product<Bf16, float>&);
template void few_rows<SwiGlu>(Context&, const Product<Bf16, Bf16>&);
template void few_rows<ReluSquared>(Context&, const Product<Bf16, Bf16>&);
template void few_rows<ClampedSwiGlu>(Context&, const Product<Bf16, Bf16>&);

}  // namespace nmoe::cuda::invariant
