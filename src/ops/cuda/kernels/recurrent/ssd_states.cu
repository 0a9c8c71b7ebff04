// The SSD scan's tables and states: what forward and backward go through from chunk to chunk. A block has a tile of the
// state of one head of one sequence in registers and goes along the sequence, or back, with two products a chunk.
#include "ops/cuda/kernels/recurrent/ssd_chunks.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda::ssd {
namespace {

constexpr int kHeads = 32;  // of a block that makes steps

// A block makes the steps of kHeads heads in a chunk, and one warp adds them up, a head a lane. Where sequences are
// documents, the tables of chunks are made here too.
template <class T>
__global__ void __launch_bounds__(kThreads)
    steps_kernel(Scan<T> in, Documents of, const T* dt, int64_t stride, const float* dt_bias, const float* a_log,
                 float* steps, float* sums, Chunk* chunks, int* firsts) {
  __shared__ float values[kMostSsdChunk][kHeads + 1];
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const bool is_whole = of.bounds == nullptr;
  const int count = is_whole ? of.num_seqs * of.places : in.count();
  for (int number = static_cast<int>(blockIdx.x); number < count; number += static_cast<int>(gridDim.x)) {
    const Chunk chunk = is_whole ? of.make_whole(number) : in.chunks[number];
    if (is_whole && blockIdx.y == 0 && threadIdx.x == 0) {
      chunks[number] = chunk;
      if (number % of.places == 0) firsts[number / of.places] = number;
      if (number == count - 1) firsts[of.num_seqs] = count;
    }
    // [H, T] from [chunk, heads]
    const auto write = [&](float* target) {
      for (int own = Sums::warp(); own < min(kHeads, in.H - first_head); own += kThreads / kWarp) {
        float* const row = target + (first_head + own) * in.tokens + chunk.begin;
        for (int t = Sums::lane(); t < chunk.size(); t += kWarp) row[t] = values[t][own];
      }
    };
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kHeads * chunk.size(); i += kThreads) {
      const int head = first_head + i % kHeads, t = i / kHeads;
      if (head >= in.H) continue;
      values[t][i % kHeads] = softplus(to_float(dt[(chunk.begin + t) * stride + head]) + dt_bias[head]);
    }
    __syncthreads();
    write(steps);
    __syncthreads();
    if (threadIdx.x < kHeads && first_head + threadIdx.x < in.H) {
      const float a = -expf(a_log[first_head + threadIdx.x]);
      float sum = 0.0F;
#pragma unroll 8
      for (int t = 0; t < chunk.size(); ++t) values[t][threadIdx.x] = sum = fmaf(values[t][threadIdx.x], a, sum);
    }
    __syncthreads();
    write(sums);
  }
}

// A block's tile of states, from value `p` and state `n` on.
struct StateTile {
  int seq, head, p, n, P, N;

  template <class T>
  __device__ explicit StateTile(const Scan<T>& in)
      : seq(static_cast<int>(blockIdx.x) / in.H),
        head(static_cast<int>(blockIdx.x) % in.H),
        p(static_cast<int>(blockIdx.y) / ceil_div(in.N, kSide) * kSide),
        n(static_cast<int>(blockIdx.y) % ceil_div(in.N, kSide) * kSide),
        P(in.P),
        N(in.N) {}
  // The states [H, P, N] at place `at` of all, to or from `sums`.
  template <class Value>
  __device__ void write(Value* all, int64_t at, int H, Sums& sums) const {
    Value* const state = all + (at * H + head) * P * N;
    sums.each([&](int i, int j, float value) {
      if (p + i < P && n + j < N) state[static_cast<int64_t>(p + i) * N + n + j] = from_float<Value>(value);
    });
  }
  __device__ void read(const float* all, int64_t at, int H, Sums& sums) const {
    const float* const state = all + (at * H + head) * P * N;
    sums.each([&](int i, int j, float& value) {
      value = p + i < P && n + j < N ? state[static_cast<int64_t>(p + i) * N + n + j] : 0.0F;
    });
  }
};

// sums = exp(last) sums + the sum over the chunk's tokens of factor(i) rows_i columns_i^T.
template <class T, class Factor>
__device__ void advance(const StateTile& tile, const Chunk& chunk, float last, const Matrix<T>& rows,
                        const Matrix<T>& columns, const Factor& factor, T* a, T* b, Sums& sums) {
  const float faded = decay(last);
  sums.each([&](int, int, float& value) { value *= faded; });
  for (int j = 0; j < chunk.size(); j += kSide) {
    load_and_multiply<true, true>(
        a, b, chunk.size() - j, sums,
        [&](T* to) { load_tile(to, rows.from(j, tile.p), [&](int i) { return factor(j + i); }); },
        [&](T* to) { load_tile(to, columns.from(j, tile.n)); });
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    states_kernel(Scan<T> in, const float* initial, float* final_state, T* states) {
  extern __shared__ uint4 shared[];
  T* const a = reinterpret_cast<T*>(shared);
  T* const b = a + kTileBytes<T> / sizeof(T);
  __shared__ ChunkSteps steps;
  const StateTile tile(in);
  Sums sums;
  for (int number = in.firsts[tile.seq]; number < in.firsts[tile.seq + 1]; ++number) {
    const Chunk chunk = in.chunks[number];
    if (chunk.before < 0) {
      sums = Sums();
    } else {
      if (chunk.begin == tile.seq * in.seq_len) tile.read(initial, tile.seq, in.H, sums);
      tile.write(states, chunk.before, in.H, sums);
    }
    const bool is_last = chunk.after >= in.num_seqs * in.places;
    if (chunk.after < 0 || (is_last && final_state == nullptr)) continue;
    steps.load(in, chunk, tile.head);
    advance(
        tile, chunk, steps.last, in.x_rows(chunk.begin, chunk.size(), tile.head),
        in.b_rows(chunk.begin, chunk.size(), in.group(tile.head)),
        [&](int j) { return decay(steps.last - steps.sum[j]) * steps.step[j]; }, a, b, sums);
    if (is_last) tile.write(final_state, tile.seq, in.H, sums);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    state_gradients_kernel(Scan<T> in, const T* dy, const float* dfinal, float* dinitial, T* dstates) {
  extern __shared__ uint4 shared[];
  T* const a = reinterpret_cast<T*>(shared);
  T* const b = a + kTileBytes<T> / sizeof(T);
  __shared__ ChunkSteps steps;
  const StateTile tile(in);
  Sums sums;
  if (dfinal != nullptr) {
    tile.read(dfinal, tile.seq, in.H, sums);
    tile.write(dstates, int64_t{in.num_seqs} * in.places + tile.seq, in.H, sums);
  }
  for (int number = in.firsts[tile.seq + 1] - 1; number >= in.firsts[tile.seq]; --number) {
    const Chunk chunk = in.chunks[number];
    if (chunk.before < 0) {
      sums = Sums();
      if (chunk.begin == tile.seq * in.seq_len && dinitial != nullptr) tile.write(dinitial, tile.seq, in.H, sums);
      continue;
    }
    steps.load(in, chunk, tile.head);
    advance(
        tile, chunk, steps.last, in.head_rows(dy, int64_t{in.H} * in.P, chunk.begin, chunk.size(), tile.head),
        in.c_rows(chunk.begin, chunk.size(), in.group(tile.head)), [&](int t) { return decay(steps.sum[t]); }, a, b,
        sums);
    tile.write(dstates, chunk.before, in.H, sums);
    if (chunk.begin == tile.seq * in.seq_len) tile.write(dinitial, tile.seq, in.H, sums);
  }
}

dim3 state_grid(const SsdInputs& in) {
  const SsdSizes sizes = ssd_sizes(in);
  return dim3(grid_size(in.num_seqs * sizes.heads),
              short_grid_size(ceil_div(sizes.head_dim, kSide) * ceil_div(sizes.state, kSide)));
}

}  // namespace

void fill_tables(Context& ctx, const SsdInputs& in, bool wants_final, const SsdTables& tables) {
  const Documents of = documents_of(in, in.chunk, ssd_places(in), wants_final);
  auto* const chunks = reinterpret_cast<Chunk*>(tables.chunks.data<int32_t>());
  auto* const firsts = tables.firsts.data<int32_t>();
  if (in.cu_seqlens.defined()) fill_chunks(ctx, of, chunks, firsts);
  dispatch_act(in.x.dtype(), [&](auto element) {
    using T = decltype(element);
    const dim3 grid(chunk_grid(in), short_grid_size(ceil_div(in.x.dim(1), int64_t{kHeads})));
    steps_kernel<T><<<grid, kThreads, 0, ctx.stream>>>(
        scan_of<T>(in, tables), of, in.dt.rows_data<T>(), in.dt.stride(), in.dt_bias.data<float>(),
        in.a_log.data<float>(), tables.steps.data<float>(), tables.sums.data<float>(), chunks, firsts);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void fill_states(Context& ctx, const SsdInputs& in, const SsdTables& tables, const Tensor& final_state,
                 const Tensor& states) {
  dispatch_act(in.x.dtype(), [&](auto element) {
    using T = decltype(element);
    states_kernel<T><<<state_grid(in), kThreads, 2 * kTileBytes<T>, ctx.stream>>>(
        scan_of<T>(in, tables), in.initial_state.data_or_null<float>(), final_state.data_or_null<float>(),
        states.data<T>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void fill_state_gradients(Context& ctx, const SsdBackward& args, const SsdTables& tables, const Tensor& dstates) {
  dispatch_act(args.in.x.dtype(), [&](auto element) {
    using T = decltype(element);
    state_gradients_kernel<T><<<state_grid(args.in), kThreads, 2 * kTileBytes<T>, ctx.stream>>>(
        scan_of<T>(args.in, tables), args.dy.data<T>(), args.dfinal_state.data_or_null<float>(),
        args.dinitial_state.data_or_null<float>(), dstates.data<T>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::ssd
