// The SSD scan backward, for any sizes. States at chunks' beginnings and their gradients first (ssd_states.cu); then
// two kernels with a block for a chunk:
//
//   heads_kernel    of one head: dx, ddt, and the chunk's parts of what is summed over tokens
//   groups_kernel   of 64 tokens of one group: db or dc, with products dy x^T again, so that their sums over heads stay
//                   in registers
//
// Scores C B^T are made again for each head. Names as in contracts/ssd.h and ops/cpu/ssd_backward.cpp.
#include "ops/cuda/kernels/recurrent/ssd_chunks.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/ssd.h"

namespace nmoe::cuda {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};

namespace ssd {
namespace {

constexpr int kMostTiles = kMostSsdChunk / kSide;

template <class T>
struct Backward {
  const T *dy, *states, *dstates;
  T *dx, *db, *dc, *ddt;
  int64_t dx_stride, db_stride, dc_stride, ddt_stride;
  const T* dt;
  int64_t dt_stride;
  const float *dt_bias, *a_log;
  float* parts;  // [3, H, most_chunks]
  int64_t most_chunks;
};

// One head of a chunk.
template <class T>
struct HeadOfChunk {
  const Scan<T>& in;
  Chunk chunk;
  int head;
  Matrix<T> x, b, c, dy;
  T *a_tile, *b_tile;

  __device__ HeadOfChunk(const Scan<T>& scan, const Chunk& of, int of_head, const T* dys, T* tiles)
      : in(scan),
        chunk(of),
        head(of_head),
        x(scan.x_rows(of.begin, of.size(), of_head)),
        b(scan.b_rows(of.begin, of.size(), scan.group(of_head))),
        c(scan.c_rows(of.begin, of.size(), scan.group(of_head))),
        dy(scan.head_rows(dys, int64_t{scan.H} * scan.P, of.begin, of.size(), of_head)),
        a_tile(tiles),
        b_tile(tiles + kTileBytes<T> / sizeof(T)) {}

  // sums += rows of x from i on times rows of y from j on, over all columns.
  __device__ void rows_by_rows(const Matrix<T>& left, int i, const Matrix<T>& right, int j, Sums& sums) const {
    for (int k = 0; k < left.columns; k += kSide) {
      load_and_multiply<false, false>(
          a_tile, b_tile, left.columns - k, sums, [&](T* to) { load_tile(to, left.from(i, k)); },
          [&](T* to) { load_tile(to, right.from(j, k)); });
    }
  }
};

// What a block of heads_kernel knows of each token of its chunk, in shared memory, by places in it.
struct TokenSums {
  float parts[2 * kSide];            // room of add_rows
  float from_states[kMostSsdChunk];  // r: the row's term through the state before the chunk
  float to_states[kMostSsdChunk];    // V: through the state behind it
  // Of terms E[i, j] = M[i, j] (dy_i . x_j): a row's in tiles left of the diagonal's, a column's in those below it, and
  // the sums over rectangles within the diagonal's.
  float left[kMostSsdChunk], below[kMostSsdChunk], diagonal[kMostSsdChunk];
  float tiles[kMostTiles][kMostTiles];                // all of a tile's
  float steps[kMostSsdChunk], y_by_x[kMostSsdChunk];  // dz . x, and dy . x
  float scan[kMostSsdChunk];                          // room

  __device__ void clear(int t) {
    from_states[t] = to_states[t] = left[t] = below[t] = diagonal[t] = steps[t] = y_by_x[t] = 0.0F;
    if (t < kMostTiles * kMostTiles) tiles[t / kMostTiles][t % kMostTiles] = 0.0F;
  }
};
static_assert(kThreads == kMostSsdChunk, "a thread for each token");

// values[i] = the sum over [segment's beginning, i] or, `reversed`, over [i, segment's end): of 2 or 8 warps' values
// each. All threads of a block, which are as many as values.
template <int kWarps, bool kReversed>
__device__ float running_sum(const float* values) {
  __shared__ float warp_sums[kThreads / kWarp];
  const int place = static_cast<int>(threadIdx.x), i = kReversed ? kThreads - 1 - place : place;
  const int warp = place / kWarp, lane = place % kWarp;
  float through = values[i];
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float below = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += below;
  }
  __syncthreads();
  if (lane == kWarp - 1) warp_sums[warp] = through;
  __syncthreads();
  float before = 0.0F;
  for (int other = warp / kWarps * kWarps; other < warp; ++other) before += warp_sums[other];
  return before + through;  // of value i
}

// Terms E of the tile at (i0, j0), by their sums.
__device__ inline void add_terms(Sums& terms, int i0, int j0, float* room, TokenSums& tokens) {
  if (i0 == j0) {
    __syncthreads();
    terms.each([&](int i, int j, float value) { room[i * (kSide + 1) + j] = value; });
    __syncthreads();
    return sum_rectangles(room, tokens.parts, tokens.diagonal + i0);
  }
  float rows[2] = {};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) rows[c / 2] += terms.d[n][c];
  }
  add_rows(rows, tokens.parts, tokens.left + i0, /*accumulate=*/j0 > 0);
  // Columns: over a warp's eight rows by twos, then over warps.
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sum = terms.d[n][c] + terms.d[n][2 + c];
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
      if (Sums::lane() < 4) room[Sums::warp() / 2 * kSide + Sums::column(n) + c] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x < kSide) {
    const float sum = (room[threadIdx.x] + room[kSide + threadIdx.x]) +
                      (room[2 * kSide + threadIdx.x] + room[3 * kSide + threadIdx.x]);
    tokens.below[j0 + threadIdx.x] = i0 > j0 + kSide ? tokens.below[j0 + threadIdx.x] + sum : sum;
    room[4 * kSide + threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0F;
    for (int j = 0; j < kSide; ++j) sum += room[4 * kSide + j];
    tokens.tiles[i0 / kSide][j0 / kSide] = sum;
  }
}

// dx, and what tokens of the tile from j0 on have in `tokens`.
template <class T>
__device__ void columns_of_head(const HeadOfChunk<T>& of, const Backward<T>& out, const ChunkSteps& steps, int j0,
                                float* room, TokenSums& tokens) {
  const int size = of.chunk.size();
  for (int p = 0; p < of.in.P; p += kSide) {
    Sums dz;
    for (int i0 = j0; i0 < size; i0 += kSide) {
      Sums scores;
      of.rows_by_rows(of.c, i0, of.b, j0, scores);
      scores.each([&](int i, int j, float& value) {
        const bool sees = j0 + j <= i0 + i && i0 + i < size;
        value = sees ? value * decay(steps.sum[i0 + i] - steps.sum[j0 + j]) : 0.0F;
      });
      if (p == 0) {
        Sums terms;
        of.rows_by_rows(of.dy, i0, of.x, j0, terms);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            terms.d[n][c] *= scores.d[n][c] * steps.step[j0 + Sums::column(n) + c % 2];
          }
        }
        add_terms(terms, i0, j0, room, tokens);
      }
      load_and_multiply<true, true>(
          of.a_tile, of.b_tile, size - i0, dz, [&](T* to) { scores.store(to); },
          [&](T* to) { load_tile(to, of.dy.from(i0, p)); });
    }
    float dsteps[2] = {}, dots[2] = {}, through[2] = {};
    Sums behind;
    if (of.chunk.after >= 0) {
      of.rows_by_rows(of.b, j0, of.in.state(out.dstates, of.chunk.after, of.head), p, behind);
    }
    const float d = of.in.d[of.head];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int j = j0 + Sums::row(c / 2), column = p + Sums::column(n) + c % 2;
        if (j >= size || column >= of.in.P) continue;
        const float x = to_float(of.x.data[j * of.x.stride + column]);
        const float dy = to_float(of.dy.data[j * of.dy.stride + column]);
        const float fade = decay(steps.last - steps.sum[j]), step = steps.step[j];
        const float value = fmaf(fade, behind.d[n][c], dz.d[n][c]);
        through[c / 2] = fmaf(fade * step * x, behind.d[n][c], through[c / 2]);
        dsteps[c / 2] = fmaf(value, x, dsteps[c / 2]);
        dots[c / 2] = fmaf(dy, x, dots[c / 2]);
        out.dx[(of.chunk.begin + j) * out.dx_stride + int64_t{of.head} * of.in.P + column] =
            from_float<T>(fmaf(d, dy, step * value));
      }
    }
    add_rows(through, tokens.parts, tokens.to_states + j0, p > 0);
    add_rows(dsteps, tokens.parts, tokens.steps + j0, p > 0);
    add_rows(dots, tokens.parts, tokens.y_by_x + j0, p > 0);
  }
}

// r of the tile's tokens.
template <class T>
__device__ void rows_of_head(const HeadOfChunk<T>& of, const Backward<T>& out, const ChunkSteps& steps, int i0,
                             TokenSums& tokens) {
  for (int p = 0; p < of.in.P; p += kSide) {
    Sums before;
    of.rows_by_rows(of.c, i0, of.in.state(out.states, of.chunk.before, of.head), p, before);
    float from[2] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = i0 + Sums::row(c / 2), column = p + Sums::column(n) + c % 2;
        if (i >= of.chunk.size() || column >= of.in.P) continue;
        const float dy = decay(steps.sum[i]) * to_float(of.dy.data[i * of.dy.stride + column]);
        from[c / 2] = fmaf(dy, before.d[n][c], from[c / 2]);
      }
    }
    add_rows(from, tokens.parts, tokens.from_states + i0, p > 0);
  }
}

// The gradient of step * A of token threadIdx.x.
__device__ inline float gradient_of_sum(TokenSums& tokens, float whole) {
  const int t = static_cast<int>(threadIdx.x), tile = t / kSide;
  constexpr int kAll = kThreads / kWarp, kOne = kSide / kWarp;
  // Those before t but not t: the sum up to t - 1.
  const auto before = [&](float sum, int segment) {
    __syncthreads();
    tokens.scan[t] = sum;
    __syncthreads();
    return t % segment > 0 ? tokens.scan[t - 1] : 0.0F;
  };
  const auto reversed = [&](float sum) {
    __syncthreads();
    tokens.scan[kThreads - 1 - t] = sum;
    __syncthreads();
    return tokens.scan[t];
  };
  float gradient = reversed(running_sum<kAll, true>(tokens.from_states));
  gradient += reversed(running_sum<kOne, true>(tokens.left));
  gradient += tokens.diagonal[t];
  gradient += before(running_sum<kOne, false>(tokens.below), kSide);
  for (int i = tile + 1; i < kMostTiles; ++i) {
    for (int j = 0; j < tile; ++j) gradient += tokens.tiles[i][j];
  }
  gradient += before(running_sum<kAll, false>(tokens.to_states), kThreads);
  return gradient + whole;
}

// ddt, and the chunk's parts of dt_bias, a_log and d.
template <class T>
__device__ void finish_head(const HeadOfChunk<T>& of, const Backward<T>& out, const ChunkSteps& steps, float da,
                            int number, TokenSums& tokens) {
  const int t = static_cast<int>(threadIdx.x);
  const bool exists = t < of.chunk.size();
  const float a = -expf(out.a_log[of.head]);
  float ddt = 0.0F;
  if (exists) {
    const int64_t token = of.chunk.begin + t;
    const float biased = to_float(out.dt[token * out.dt_stride + of.head]) + out.dt_bias[of.head];
    ddt = fmaf(a, da, tokens.steps[t]) * softplus_slope(biased);
    out.ddt[token * out.ddt_stride + of.head] = from_float<T>(ddt);
  }
  __syncthreads();
  tokens.left[t] = ddt;
  tokens.below[t] = exists ? steps.step[t] * da : 0.0F;
  __syncthreads();
  if (t >= 3) return;
  const float* const values = t == 0 ? tokens.left : t == 1 ? tokens.below : tokens.y_by_x;
  float sum = 0.0F;
#pragma unroll 8
  for (int i = 0; i < of.chunk.size(); ++i) sum += values[i];
  out.parts[(t * int64_t{of.in.H} + of.head) * out.most_chunks + number] = t == 1 ? a * sum : sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) heads_kernel(Scan<T> in, Backward<T> out) {
  extern __shared__ uint4 shared[];
  T* const tiles = reinterpret_cast<T*>(shared);
  __shared__ ChunkSteps steps;
  __shared__ TokenSums tokens;
  const int head = static_cast<int>(blockIdx.y), t = static_cast<int>(threadIdx.x);
  float* const room = reinterpret_cast<float*>(tiles + 2 * kTileBytes<T> / sizeof(T));
  for (int number = static_cast<int>(blockIdx.x); number < in.count(); number += static_cast<int>(gridDim.x)) {
    const HeadOfChunk<T> of(in, in.chunks[number], head, out.dy, tiles);
    steps.load(in, of.chunk, head);
    tokens.clear(t);
    __syncthreads();
    for (int j0 = 0; j0 < of.chunk.size(); j0 += kSide) columns_of_head(of, out, steps, j0, room, tokens);
    float whole = 0.0F;
    if (of.chunk.before >= 0) {
      for (int i0 = 0; i0 < of.chunk.size(); i0 += kSide) rows_of_head(of, out, steps, i0, tokens);
      if (of.chunk.after >= 0) {
        const T* const state = in.state(out.states, of.chunk.before, head).data;
        const T* const dstate = in.state(out.dstates, of.chunk.after, head).data;
        for (int i = t; i < in.P * in.N; i += kThreads) whole = fmaf(to_float(state[i]), to_float(dstate[i]), whole);
        whole = decay(steps.last) * block_sum(whole);
      }
    }
    __syncthreads();
    const float da = gradient_of_sum(tokens, whole);
    finish_head(of, out, steps, da, number, tokens);
    __syncthreads();
  }
}

// The gradient of scores of the tile at (i0, j0), summed over the group's heads, in `sums`: decays times steps times
// dy x^T.
template <class T>
__device__ void score_gradients(const Scan<T>& in, const Backward<T>& out, const Chunk& chunk, int group, int i0,
                                int j0, T* tiles, Sums& sums) {
  const int size = chunk.size(), heads = in.H / in.G;
  for (int head = group * heads; head < (group + 1) * heads; ++head) {
    const HeadOfChunk<T> of(in, chunk, head, out.dy, tiles);
    const float* const s = in.sums + head * in.tokens + chunk.begin;
    const float* const step = in.steps + head * in.tokens + chunk.begin;
    Sums products;
    of.rows_by_rows(of.dy, i0, of.x, j0, products);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = i0 + Sums::row(c / 2), j = j0 + Sums::column(n) + c % 2;
        if (j <= i && i < size) sums.d[n][c] = fmaf(decay(s[i] - s[j]) * step[j], products.d[n][c], sums.d[n][c]);
      }
    }
  }
}

// dc of 64 tokens, or db (kIsB): those of the state behind or before the chunk, head by head, and then those of scores.
template <bool kIsB, class T>
__device__ void rows_of_group(const Scan<T>& in, const Backward<T>& out, const Chunk& chunk, int group, int first,
                              T* tiles) {
  T* const a = tiles;
  T* const b = a + kTileBytes<T> / sizeof(T);
  const auto scores = [&](int tile) { return b + (1 + tile) * (kTileBytes<T> / sizeof(T)); };
  const int size = chunk.size(), heads = in.H / in.G;
  for (int other = kIsB ? first : 0; kIsB ? other < size : other <= first; other += kSide) {
    Sums sums;
    score_gradients(in, out, chunk, group, kIsB ? other : first, kIsB ? first : other, tiles, sums);
    sums.store(scores(other / kSide));
  }
  const int place = kIsB ? chunk.after : chunk.before;
  const Matrix<T> others = kIsB ? in.c_rows(chunk.begin, size, group) : in.b_rows(chunk.begin, size, group);
  for (int n = 0; n < in.N; n += kSide) {
    Sums sums;
    for (int head = group * heads; place >= 0 && head < (group + 1) * heads; ++head) {
      const HeadOfChunk<T> of(in, chunk, head, out.dy, tiles);
      const float* const s = in.sums + head * in.tokens + chunk.begin;
      const float* const step = in.steps + head * in.tokens + chunk.begin;
      const float last = s[size - 1];
      const auto factor = [&](int i) {
        return kIsB ? decay(last - s[first + i]) * step[first + i] : decay(s[first + i]);
      };
      const Matrix<T> state = in.state(kIsB ? out.dstates : out.states, place, head);
      for (int p = 0; p < in.P; p += kSide) {
        load_and_multiply<false, true>(
            a, b, in.P - p, sums, [&](T* to) { load_tile(to, (kIsB ? of.x : of.dy).from(first, p), factor); },
            [&](T* to) { load_tile(to, state.from(p, n)); });
      }
    }
    for (int other = kIsB ? first : 0; kIsB ? other < size : other <= first; other += kSide) {
      __syncthreads();
      load_tile(b, others.from(other, n));
      wait_copies<0>();
      __syncthreads();
      multiply<kIsB, true>(scores(other / kSide), b, size - other, sums);
    }
    T* const target = kIsB ? out.db : out.dc;
    const int64_t stride = kIsB ? out.db_stride : out.dc_stride;
    sums.each([&](int i, int j, float value) {
      if (first + i >= size || n + j >= in.N) return;
      target[(chunk.begin + first + i) * stride + int64_t{group} * in.N + n + j] = from_float<T>(value);
    });
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) groups_kernel(Scan<T> in, Backward<T> out, int tiles_of_chunk) {
  extern __shared__ uint4 shared[];
  const int group = static_cast<int>(blockIdx.y) / tiles_of_chunk;
  const int first = static_cast<int>(blockIdx.y) % tiles_of_chunk * kSide;
  for (int number = static_cast<int>(blockIdx.x); number < in.count(); number += static_cast<int>(gridDim.x)) {
    const Chunk chunk = in.chunks[number];
    if (first >= chunk.size()) continue;
    if (blockIdx.z == 0) {
      rows_of_group<false>(in, out, chunk, group, first, reinterpret_cast<T*>(shared));
    } else {
      rows_of_group<true>(in, out, chunk, group, first, reinterpret_cast<T*>(shared));
    }
  }
}

void add_parts(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan) {
  add_chunk_parts(ctx, plan.parts, plan.tables.firsts.data<int32_t>() + args.in.num_seqs,
                  {args.ddt_bias.data<float>(), args.da_log.data<float>(), args.dd.data<float>()});
}

void gradients(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan) {
  const SsdInputs& in = args.in;
  const SsdSizes sizes = ssd_sizes(in);
  const int64_t tiles = ceil_div(sizes.chunk, int64_t{kSide});
  dispatch_act(in.x.dtype(), [&](auto element) {
    using T = decltype(element);
    const Scan<T> scan = scan_of<T>(in, plan.tables);
    const Backward<T> out{.dy = args.dy.data<T>(),
                          .states = plan.states.data<T>(),
                          .dstates = plan.dstates.data<T>(),
                          .dx = args.dx.rows_data<T>(),
                          .db = args.db.rows_data<T>(),
                          .dc = args.dc.rows_data<T>(),
                          .ddt = args.ddt.rows_data<T>(),
                          .dx_stride = args.dx.stride(),
                          .db_stride = args.db.stride(),
                          .dc_stride = args.dc.stride(),
                          .ddt_stride = args.ddt.stride(),
                          .dt = in.dt.rows_data<T>(),
                          .dt_stride = in.dt.stride(),
                          .dt_bias = in.dt_bias.data<float>(),
                          .a_log = in.a_log.data<float>(),
                          .parts = plan.parts.data<float>(),
                          .most_chunks = plan.parts.dim(2)};
    constexpr int kRoomBytes = kSide * (kSide + 1) * static_cast<int>(sizeof(float));
    constexpr int kHeadsBytes = 2 * kTileBytes<T> + kRoomBytes;
    allow_dynamic_shared(heads_kernel<T>, kHeadsBytes);
    heads_kernel<T>
        <<<dim3(chunk_grid(in), short_grid_size(sizes.heads)), kThreads, kHeadsBytes, ctx.stream>>>(scan, out);
    const int groups_bytes = (2 + static_cast<int>(tiles)) * kTileBytes<T>;
    allow_dynamic_shared(groups_kernel<T>, groups_bytes);
    groups_kernel<T>
        <<<dim3(chunk_grid(in), short_grid_size(sizes.groups * tiles), 2), kThreads, groups_bytes, ctx.stream>>>(
            scan, out, static_cast<int>(tiles));
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace ssd

void ssd_backward(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan) {
  using namespace ssd;
  const SsdInputs& in = args.in;
  const SsdSizes sizes = ssd_sizes(in);
  if (sizes.tokens == 0 || sizes.heads == 0) return;
  fill_tables(ctx, in, args.dfinal_state.defined(), plan.tables);
  if constexpr (kKernels.has_sm90()) {
    if (plan.is_sm90) {
      sm90::ssd_states(ctx, args, plan);
      sm90::ssd_gradients(ctx, args, plan);
      return add_parts(ctx, args, plan);
    }
  }
  fill_states(ctx, in, plan.tables, {}, plan.states);
  fill_state_gradients(ctx, args, plan.tables, plan.dstates);
  gradients(ctx, args, plan);
  add_parts(ctx, args, plan);
}

}  // namespace nmoe::cuda
