// Batch-invariant products of few rows. Bound: reading the weights.
//
// A warp has 16 rows of weights, and a block is a warp, so that there are as many as can be. Weights come through a
// ring of its own in shared memory: those of a plain product are under way before the work in front has ended, all of a
// row of 2048 where tiles are few. Tokens go from memory to registers two turns ahead, in 16 bytes a lane, and lanes
// exchange them. An instruction waits for the one before it, some 33 cycles on Hopper; all else happens meanwhile.
#include "ops/cuda/kernels/products/invariant_product.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"

namespace nmoe::cuda::invariant {
namespace {

constexpr int kTurn = 128;           // consecutive k of a stage
constexpr int kSteps = kTurn / 16;   // instructions of a turn
constexpr int kHalves = kTurn / 32;  // what four lanes take of a token at once, 16 bytes each
constexpr int kChunks = kTurn / 8;   // 16 bytes, of a row
constexpr int kStageBytes = 16 * kTurn * static_cast<int>(sizeof(Bf16));

// NOTE: not __ldg: tokens may be written while a kernel that started early is there already.
__device__ uint4 load16(const Bf16* row, int k, int depth) {
  return row != nullptr && k < depth ? *reinterpret_cast<const uint4*>(row + k) : make_uint4(0, 0, 0, 0);
}

// Of four lanes whose lane q has words 4 q to 4 q + 3, lane q gets words q, 4 + q, 8 + q and 12 + q: of 32 k, pairs as
// two instructions want them.
__device__ void exchange_words(uint4 own, unsigned (&words)[4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  const unsigned first = __shfl_xor_sync(kAllLanes, upper ? own.x : own.z, 2);
  const unsigned second = __shfl_xor_sync(kAllLanes, upper ? own.y : own.w, 2);
  const unsigned pairs[2][2] = {{upper ? first : own.x, upper ? second : own.y},
                                {upper ? own.z : first, upper ? own.w : second}};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned other = __shfl_xor_sync(kAllLanes, odd ? pairs[i][0] : pairs[i][1], 1);
    words[2 * i] = odd ? other : pairs[i][0];
    words[2 * i + 1] = odd ? pairs[i][1] : other;
  }
}

// 16 rows of weights in a ring of stages. A row's 16 bytes are in turn with the row, so that eight rows' meet no bank
// twice.
template <int kStages, class A, class Out>
class WeightRing {
 public:
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kParts = 8;  // that a stage is loaded in, a lane's 16 bytes each
  static_assert(kParts == kSteps, "a step loads a part");

  __device__ WeightRing(const Product<Bf16, Out>& p, const void* shared, int tile) : depth_(p.depth) {
    const int lane = static_cast<int>(threadIdx.x), high = lane / kChunks, chunk = lane % kChunks;
    k_ = chunk * 8;
    const uint32_t stages = shared_address(shared);
    target_ = stages + high * kTurn * sizeof(Bf16);
    target_chunk_ = (chunk ^ high) * 16;
    source_ = stages + lane % 16 * kTurn * sizeof(Bf16);
    source_chunk_ = (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = weight_row<A>(p, tile, part * 2 + high);
      offsets_[part] = row < p.width ? static_cast<int64_t>(row) * p.depth : -1;
    }
  }

  // Rows 2 part and 2 part + 1 of a turn.
  __device__ void load(const Bf16* w, int turn, int part) const {
    const int k = turn * kTurn + k_;
    const bool exists = k < depth_ && offsets_[part] >= 0;
    const uint32_t target = target_ + stage_of(turn) + part * 2 * kTurn * sizeof(Bf16);
    copy_async16_ahead(target + (target_chunk_ ^ (part * 2 % 8 * 16)), exists ? w + offsets_[part] + k : w, exists);
  }
  // As an instruction wants them.
  __device__ void read(int turn, int step, unsigned (&a)[4]) const {
    load_matrices<false>(source_ + stage_of(turn) + (source_chunk_ ^ (step * 32)), a);
  }

 private:
  __device__ static uint32_t stage_of(int turn) { return static_cast<unsigned>(turn) % kStages * kStageBytes; }

  int depth_, k_;
  uint32_t target_, target_chunk_, source_, source_chunk_;
  int64_t offsets_[kParts];
};

// 16 rows of weights and 8 kRowTiles of x.
template <int kRowTiles, int kStages, class A, class Out>
__global__ void __launch_bounds__(kWarp) few_rows_kernel(Product<Bf16, Out> all) {
  static_assert(kStages >= 2);
  extern __shared__ uint4 shared[];
  const Product<Bf16, Out> p = own_batch(all);
  constexpr int kRows = 8 * kRowTiles;
  const int g = static_cast<int>(threadIdx.x) / 4, q = static_cast<int>(threadIdx.x) % 4;  // as instructions number
  const int num_turns = ceil_div(p.depth, kTurn), weight_tile = column_tile(p);
  const WeightRing<kStages, A, Out> ring(p, shared, weight_tile);
  const auto load_first = [&](const Bf16* w) {
#pragma unroll 1
    for (int turn = 0; turn < kStages; ++turn) {
      if (turn < num_turns) {
#pragma unroll
        for (int part = 0; part < kSteps; ++part) ring.load(w, turn, part);
      }
      commit_copies();
    }
  };
  let_next_start();
  bool loaded = p.offsets == nullptr;  // nobody writes weights, and these are known
  if (loaded) load_first(p.w);
  wait_for_work_before();
  const Work<Bf16> work = find_work(p, kRows);

  for (int tile = work.row_begin; tile < work.row_end; tile += kRows) {
    const Bf16* x[kRowTiles];  // null: there is no such row
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = tile + j * 8 + g;
      x[j] = row < work.row_end ? row_of_x(p, row) : nullptr;
    }
    if (!loaded) load_first(work.w);
    loaded = false;
    uint4 ahead[2][kHalves][kRowTiles];  // of tokens: of the turns behind the next one, by their parity
    unsigned a[kSteps][4], b[kHalves][kRowTiles][4];
    const auto load_x = [&](int turn, int half, uint4(&into)[kRowTiles]) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) into[j] = load16(x[j], turn * kTurn + half * 32 + q * 8, p.depth);
    };
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) load_x(turn, half, ahead[turn][half]);
    }
    wait_copies<kStages - 1>();
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) ring.read(0, step, a[step]);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) exchange_words(ahead[0][half][j], b[half][j]);
      load_x(2, half, ahead[0][half]);
    }

    float sums[kRowTiles][4] = {};
    for (int pair = 0; pair < num_turns; pair += 2) {
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) {
        const int turn = pair + parity;
        if (turn >= num_turns) break;
        wait_copies<kStages - 2>();
        __syncwarp();  // the next turn is there for all lanes, and this one's stage has been read
        const bool loads = turn + kStages < num_turns;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int half = step / 2, pairs = step % 2 * 2;
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            gemm::multiply_add(sums[j], a[step], b[half][j][pairs], b[half][j][pairs + 1]);
          }
          ring.read(turn + 1, step, a[step]);  // behind the last turn, of what is not used
          if (loads) ring.load(work.w, turn + kStages, step);
          if (step % 2 == 0) continue;
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) exchange_words(ahead[1 - parity][half][j], b[half][j]);
          load_x(turn + 3, half, ahead[1 - parity][half]);
        }
        commit_copies();
      }
    }
    __syncwarp();  // the ring has been read
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = tile + j * 8 + q * 2 + c;
        if (row < work.row_end) store_pair<A>(p, row, weight_tile, g, sums[j][c], sums[j][c + 2]);
      }
    }
  }
}

}  // namespace

template <class A, class Out>
void few_rows(Context& ctx, const Product<Bf16, Out>& p) {
  const auto launch = [&]<int kRowTiles, int kStages>() {
    const auto kernel = few_rows_kernel<kRowTiles, kStages, A, Out>;
    constexpr int kBytes = WeightRing<kStages, A, Out>::kBytes;
    allow_dynamic_shared(kernel, kBytes);
    prefer_shared(kernel);
    launch_early(ctx, kernel, grid_of(p, 16, 8 * kRowTiles), kWarp, kBytes, p);
  };
  // Some 190 KiB of a multiprocessor's shared memory are weights under way, of three warps or of eight.
  const bool grouped = p.offsets != nullptr;
  const int64_t warps =
      ceil_div<int64_t>(p.width, 16) * (grouped ? std::min(p.num_experts, p.num_rows) : p.num_batches);
  const bool is_narrow = warps <= int64_t{3} * ctx.num_sms;
  if (!grouped && p.num_rows > 8) {
    return is_narrow ? launch.template operator()<2, 16>() : launch.template operator()<2, 6>();
  }
  is_narrow ? launch.template operator()<1, 16>() : launch.template operator()<1, 6>();
}

template void few_rows<NoActivation>(Context&, const Product<Bf16, Bf16>&);
template void few_rows<NoActivation>(Context&, const Product<Bf16, float>&);
template void few_rows<SwiGlu>(Context&, const Product<Bf16, Bf16>&);
template void few_rows<ReluSquared>(Context&, const Product<Bf16, Bf16>&);

}  // namespace nmoe::cuda::invariant
