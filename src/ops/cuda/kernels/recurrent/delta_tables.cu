// The gated delta rule's tables: scalars of tokens, and what a chunk's tokens do to each other, which no state goes
// into: inverses and mixes (delta_chunks.cuh). Chunks lie side by side, a block for one and a group, whose products of
// keys are made once for all its heads.
#include "ops/cuda/kernels/recurrent/delta_chunks.cuh"
#include "ops/cuda/primitives/softplus.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda::delta {
namespace {

constexpr int kHeads = 32;  // of a block that makes sums
constexpr int kRow = kSide + 1;

// What heads' scalars are made of.
template <class T>
struct Gates {
  const T *b, *a;
  int64_t b_stride, a_stride;
  const float *dt_bias, *a_log;
};

// A block has kHeads heads in a chunk; one warp adds up, a head a lane. Where sequences are documents, the tables of
// chunks are made here too.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scalars_kernel(Rule<T> in, Documents of, Gates<T> gates, float* sums, float* betas, Chunk* chunks, int* firsts) {
  __shared__ float values[kSide][kHeads + 1];
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int warp = Sums::warp(), lane = Sums::lane();
  const bool is_whole = of.bounds == nullptr;
  const int count = is_whole ? of.num_seqs * of.places : in.count();
  for (int number = static_cast<int>(blockIdx.x); number < count; number += static_cast<int>(gridDim.x)) {
    const Chunk chunk = is_whole ? of.make_whole(number) : in.chunks[number];
    if (is_whole && blockIdx.y == 0 && threadIdx.x == 0) {
      chunks[number] = chunk;
      if (number % of.places == 0) firsts[number / of.places] = number;
      if (number == count - 1) firsts[of.num_seqs] = count;
    }
    // values[t, head] = make(token, head), and from there to a table [H, T]
    const auto fill = [&](const auto& make) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kHeads * chunk.size(); i += kThreads) {
        const int head = first_head + i % kHeads, t = i / kHeads;
        if (head < in.H) values[t][i % kHeads] = make(static_cast<int64_t>(chunk.begin) + t, head);
      }
      __syncthreads();
    };
    const auto write = [&](float* target) {
      for (int own = warp; own < min(kHeads, in.H - first_head); own += kThreads / kWarp) {
        float* const row = target + (first_head + own) * in.tokens + chunk.begin;
        for (int t = lane; t < chunk.size(); t += kWarp) row[t] = values[t][own];
      }
    };
    fill([&](int64_t t, int head) { return beta_of(to_float(gates.b[t * gates.b_stride + head])); });
    write(betas);
    fill([&](int64_t t, int head) {
      const float step = softplus(to_float(gates.a[t * gates.a_stride + head]) + gates.dt_bias[head]);
      return fmaxf(step * -expf(gates.a_log[head]), kLeastLogDecay);
    });
    if (warp == 0 && first_head + lane < in.H) {
      float sum = 0.0F;
#pragma unroll 8
      for (int t = 0; t < chunk.size(); ++t) values[t][lane] = sum += values[t][lane];
    }
    __syncthreads();
    write(sums);
  }
}

// A warp has a row of queries or of keys (blockIdx.y).
template <class T>
__global__ void __launch_bounds__(kThreads) norms_kernel(Rule<T> in, float* q_norms, float* k_norms) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + Sums::warp();
  if (row >= in.tokens * in.G) return;
  const int64_t t = row / in.G, group = row % in.G;
  const bool is_key = blockIdx.y == 1;
  const float norm = row_norm((is_key ? in.k + t * in.k_stride : in.q + t * in.q_stride) + group * in.K, in.K, is_key);
  if (Sums::lane() == 0) (is_key ? k_norms : q_norms)[group * in.tokens + t] = norm;
}

// inverse = (1 + lower)^-1, both [kSide, kRow]; lower is 0 from the diagonal on. Blocks of 16 on the diagonal by
// substitution, a column a thread, and twice as large ones of pairs, where the inverse of [[a, 0], [b, c]] has
// -c^-1 (b a^-1) below. All threads of a block.
__device__ void invert(const float* lower, float* inverse) {
  constexpr int kBlock = 16;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kSide) {
    const int first = thread / kBlock * kBlock, column = thread % kBlock;
    float x[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float value = i == column ? 1.0F : 0.0F;
#pragma unroll
      for (int j = 0; j < i; ++j) value = fmaf(-lower[(first + i) * kRow + first + j], x[j], value);
      x[i] = value;
      inverse[(first + i) * kRow + first + column] = value;
    }
  }
#pragma unroll
  for (int size = kBlock; size < kSide; size *= 2) {
    const int elements = kSide / 2 * size;  // of all blocks below the diagonal
    // fn(row in the block, column, the pair's first row)
    const auto each = [&](const auto& fn) {
      for (int i = thread; i < elements; i += kThreads) fn(i / size % size, i % size, i / (size * size) * 2 * size);
      __syncthreads();
    };
    __syncthreads();
    each([&](int row, int column, int first) {  // b a^-1, where the inverse will have zeros
      float sum = 0.0F;
#pragma unroll 8
      for (int m = 0; m < size; ++m) {
        sum = fmaf(lower[(first + size + row) * kRow + first + m], inverse[(first + m) * kRow + first + column], sum);
      }
      inverse[(first + row) * kRow + first + size + column] = sum;
    });
    each([&](int row, int column, int first) {
      float sum = 0.0F;
#pragma unroll 8
      for (int m = 0; m < size; ++m) {
        sum = fmaf(inverse[(first + size + row) * kRow + first + size + m],
                   inverse[(first + m) * kRow + first + size + column], sum);
      }
      inverse[(first + size + row) * kRow + first + column] = -sum;
    });
    each([&](int row, int column, int first) { inverse[(first + row) * kRow + first + size + column] = 0.0F; });
  }
}

template <class T>
struct MixesLayout {
  static constexpr int kLowerAt = 2 * kTileBytes<T>, kInverseAt = kLowerAt + kSide * kRow * 4;
  static constexpr int kBytes = kInverseAt + kSide * kRow * 4;
};

template <class T>
__global__ void __launch_bounds__(kThreads) mixes_kernel(Rule<T> in, T* inverses, T* mixes) {
  using L = MixesLayout<T>;
  extern __shared__ uint4 shared[];
  T* const a = reinterpret_cast<T*>(shared);
  T* const b = a + kTileBytes<T> / sizeof(T);
  float* const lower = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + L::kLowerAt);
  float* const inverse = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + L::kInverseAt);
  __shared__ Scalars scalars;
  const int group = static_cast<int>(blockIdx.y), heads = in.H / in.G;
  for (int number = static_cast<int>(blockIdx.x); number < in.count(); number += static_cast<int>(gridDim.x)) {
    const Chunk chunk = in.chunks[number];
    const Matrix<T> q = in.q_rows(chunk, group), k = in.k_rows(chunk, group);
    Sums k_by_k, q_by_k;
    for (int c = 0; c < in.K; c += kSide) {
      load_and_multiply<false, false>(
          a, b, in.K - c, q_by_k, [&](T* to) { load_tile(to, q.from(0, c)); },
          [&](T* to) { load_tile(to, k.from(0, c)); });
      multiply<false, false>(b, b, in.K - c, k_by_k);
    }
    for (int head = group * heads; head < (group + 1) * heads; ++head) {
      __syncthreads();  // nobody reads the scalars or the inverse of the head before
      scalars.copy(in, chunk, head);
      commit_copies();
      wait_copies<0>();
      __syncthreads();
      const int64_t square = (static_cast<int64_t>(chunk.begin) * in.H + head) * kSide;
      const int64_t stride = static_cast<int64_t>(in.H) * kSide;
      k_by_k.each([&](int i, int j, float value) {
        const float factor = scalars.k_norm[i] * scalars.k_norm[j] * scalars.beta[i];
        lower[i * kRow + j] = i > j ? factor * expf(scalars.sum[i] - scalars.sum[j]) * value : 0.0F;
      });
      q_by_k.each([&](int i, int j, float value) {
        if (i >= chunk.size()) return;
        const float factor = scalars.q_norm[i] * scalars.k_norm[j];
        mixes[square + i * stride + j] =
            from_float<T>(i >= j ? factor * expf(scalars.sum[i] - scalars.sum[j]) * value : 0.0F);
      });
      __syncthreads();
      invert(lower, inverse);
      for (int i = static_cast<int>(threadIdx.x); i < chunk.size() * kSide; i += kThreads) {
        inverses[square + i / kSide * stride + i % kSide] = from_float<T>(inverse[i / kSide * kRow + i % kSide]);
      }
    }
  }
}

}  // namespace

void fill_tables(Context& ctx, const DeltaRuleInputs& in, bool wants_final, const DeltaTables& tables) {
  const Documents of = documents_of(in, kDeltaChunk, delta_places(in), wants_final);
  auto* const chunks = reinterpret_cast<Chunk*>(tables.chunks.data<int32_t>());
  auto* const firsts = tables.firsts.data<int32_t>();
  if (in.cu_seqlens.defined()) fill_chunks(ctx, of, chunks, firsts);
  dispatch_act(in.v.dtype(), [&](auto element) {
    using T = decltype(element);
    const Rule<T> rule = rule_of<T>(in, tables);
    const dim3 scalars_grid(chunk_grid(in), short_grid_size(ceil_div(rule.H, kHeads)));
    scalars_kernel<T><<<scalars_grid, kThreads, 0, ctx.stream>>>(rule, of,
                                                                 {.b = in.b.rows_data<T>(),
                                                                  .a = in.a.rows_data<T>(),
                                                                  .b_stride = in.b.stride(),
                                                                  .a_stride = in.a.stride(),
                                                                  .dt_bias = in.dt_bias.data<float>(),
                                                                  .a_log = in.a_log.data<float>()},
                                                                 tables.sums.data<float>(), tables.betas.data<float>(),
                                                                 chunks, firsts);
    NMOE_CUDA_CHECK(cudaGetLastError());
    const dim3 norms_grid(grid_size(ceil_div(rule.tokens * rule.G, int64_t{kThreads / kWarp})), 2);
    norms_kernel<T>
        <<<norms_grid, kThreads, 0, ctx.stream>>>(rule, tables.q_norms.data<float>(), tables.k_norms.data<float>());
    NMOE_CUDA_CHECK(cudaGetLastError());
    constexpr int kBytes = MixesLayout<T>::kBytes;
    allow_dynamic_shared(mixes_kernel<T>, kBytes);
    mixes_kernel<T><<<dim3(chunk_grid(in), short_grid_size(rule.G)), kThreads, kBytes, ctx.stream>>>(
        rule, tables.inverses.data<T>(), tables.mixes.data<T>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::delta
