// What the SSD scan's kernels have of a batch (contracts/ssd.h): where chunks are, steps and sums of steps, states.
#pragma once

#include "ops/cuda/kernels/recurrent/chunk_table.cuh"
#include "ops/cuda/kernels/recurrent/chunk_tiles.cuh"
#include "ops/cuda/plans/ssd.h"
#include "ops/cuda/primitives/softplus.cuh"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::ssd {

using namespace tiles;

// Inputs, as kernels see them.
template <class T>
struct Scan {
  const T *x, *b, *c;
  int64_t x_stride, b_stride, c_stride;
  int num_seqs, seq_len, places;
  int H, P, G, N, Q;
  bool vector_x, vector_bc, vector_states;  // 16 bytes at a time
  int64_t tokens;
  const Chunk* chunks;
  const int* firsts;
  const float *steps, *sums;  // [H, T]
  const float* d;

  __device__ int count() const { return firsts[num_seqs]; }
  __device__ int group(int head) const { return head / (H / G); }
  // Rows of x or of its shape, of b or c, of one head or group, from token t on.
  __device__ Matrix<T> head_rows(const T* rows, int64_t stride, int t, int rows_left, int head) const {
    return {rows + t * stride + static_cast<int64_t>(head) * P, stride, rows_left, P, vector_x};
  }
  __device__ Matrix<T> x_rows(int t, int rows_left, int head) const {
    return head_rows(x, x_stride, t, rows_left, head);
  }
  __device__ Matrix<T> b_rows(int t, int rows_left, int of_group) const {
    return {b + t * b_stride + static_cast<int64_t>(of_group) * N, b_stride, rows_left, N, vector_bc};
  }
  __device__ Matrix<T> c_rows(int t, int rows_left, int of_group) const {
    return {c + t * c_stride + static_cast<int64_t>(of_group) * N, c_stride, rows_left, N, vector_bc};
  }
  // The state at a place.
  __device__ Matrix<T> state(const T* states, int place, int head) const {
    return {states + (static_cast<int64_t>(place) * H + head) * P * N, N, P, N, vector_states};
  }
};
template <class T>
Scan<T> scan_of(const SsdInputs& in, const SsdTables& tables) {
  const SsdSizes sizes = ssd_sizes(in);
  return {.x = in.x.rows_data<T>(),
          .b = in.b.rows_data<T>(),
          .c = in.c.rows_data<T>(),
          .x_stride = in.x.stride(),
          .b_stride = in.b.stride(),
          .c_stride = in.c.stride(),
          .num_seqs = static_cast<int>(in.num_seqs),
          .seq_len = static_cast<int>(in.seq_len),
          .places = static_cast<int>(ssd_places(in)),
          .H = static_cast<int>(sizes.heads),
          .P = static_cast<int>(sizes.head_dim),
          .G = static_cast<int>(sizes.groups),
          .N = static_cast<int>(sizes.state),
          .Q = static_cast<int>(sizes.chunk),
          .vector_x = can_vectorise(sizes.head_dim, in.x),
          .vector_bc = can_vectorise(sizes.state, in.b, in.c),
          .vector_states = sizes.state % 8 == 0,
          .tokens = sizes.tokens,
          .chunks = reinterpret_cast<const Chunk*>(tables.chunks.data<int32_t>()),
          .firsts = tables.firsts.data<int32_t>(),
          .steps = tables.steps.data<float>(),
          .sums = tables.sums.data<float>(),
          .d = in.d.data<float>()};
}

// A chunk's steps and sums of one head, in shared memory: of tokens that do not exist the step is 0, and the sum the
// last one. All threads of a block.
struct ChunkSteps {
  float step[kMostSsdChunk], sum[kMostSsdChunk];
  float last;

  template <class T>
  __device__ void load(const Scan<T>& in, const Chunk& chunk, int head) {
    const int64_t row = head * in.tokens;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kMostSsdChunk; i += kThreads) {
      const int t = min(chunk.begin + i, chunk.end - 1);
      step[i] = chunk.begin + i < chunk.end ? in.steps[row + t] : 0.0F;
      sum[i] = in.sums[row + t];
    }
    if (threadIdx.x == 0) last = in.sums[row + chunk.end - 1];
    __syncthreads();
  }
};

// exp(sums of steps)
__device__ inline float decay(float x) { return expf(x); }

// Blocks along a grid's first dimension for all chunks: kernels go on from chunk blockIdx.x by gridDim.x.
inline unsigned chunk_grid(const SsdInputs& in) { return grid_size(in.num_seqs * ssd_places(in)); }

// Fills in the tables. `wants_final`: whether sequences' last states are wanted, or have a gradient.
void fill_tables(Context& ctx, const SsdInputs& in, bool wants_final, const SsdTables& tables);

// states: at the chunks' beginnings (Chunk::before).
void fill_states(Context& ctx, const SsdInputs& in, const SsdTables& tables, const Tensor& final_state,
                 const Tensor& states);
// dstates: their gradients, and behind a sequence's last chunk dfinal_state, if that is defined.
void fill_state_gradients(Context& ctx, const SsdBackward& args, const SsdTables& tables, const Tensor& dstates);

}  // namespace nmoe::cuda::ssd
