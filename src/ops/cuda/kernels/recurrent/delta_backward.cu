// The gated delta rule backward (delta_chunks.cuh has names and forward). States at chunks' beginnings, values, and
// gradients of states and residuals come first (delta_states.cu); here chunks lie side by side, a block for one and a
// group, whose heads it has in turn. With D = exp(s[i] - s[j]), all of normed rows:
//
//   G = D (dy values^T), i >= j         X = -beta[i] D (dresiduals values^T), i > j
//   dq = exp(s) dy S^T + G k
//   dk = -exp(s) beta dresiduals S^T + exp(s[C-1] - s) values dS^T + G^T q + (X + X^T) k
//   db = (1 - beta) (dresiduals . values)
//
// and a log decay's gradient is the sum of all terms with it: those of G and X times what they are the gradient of over
// the rectangle i >= t > j, those through S of tokens from t on, through dS of those before t, and exp(s[C-1]) S . dS.
// Gradients of rows are added over heads in memory, and go through the norm at last.
#include "ops/cuda/kernels/recurrent/delta_chunks.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/softplus.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace delta {
namespace {

constexpr int kRow = kSide + 1;

template <class T>
struct Gradients {
  const T *dy, *states, *dstates, *values, *dresiduals;
  const T* a;
  int64_t a_stride;
  const float *dt_bias, *a_log;
  float *dq, *dk;  // [T, G, K]
  T *da, *db;
  int64_t da_stride, db_stride;
  float* parts;  // [2, H, most_chunks]
  int64_t most_chunks;
};

// Tiles in dynamic shared memory.
template <class T>
struct Layout {
  static constexpr int kTile = kTileBytes<T> / static_cast<int>(sizeof(T));
  static constexpr int kForKeys = 3, kForQueries = 4, kAmongKeys = 5, kTiles = 6;  // behind three that are loaded
  static constexpr int kTermsAt = kTiles * kTileBytes<T>, kBytes = kTermsAt + kSide * kRow * 4;
};

// What a block knows of each token of its chunk, of one head.
struct TokenSums {
  float parts[2 * kSide];  // room of add_rows
  float from_states[kSide], to_states[kSide], rectangles[kSide], residuals_by_values[kSide];
};

// One head of a chunk.
template <class T>
struct HeadOfChunk {
  using L = Layout<T>;

  const Rule<T>& in;
  const Gradients<T>& of;
  Chunk chunk;
  int group, head;
  T* tiles;
  float* terms;  // [kSide, kRow]
  const Scalars& scalars;
  TokenSums& tokens;

  __device__ T* tile(int i) const { return tiles + i * L::kTile; }
  __device__ int size() const { return chunk.size(); }
  // sums += rows of `left` times rows of `right`, over all columns.
  __device__ void rows_by_rows(const Matrix<T>& left, const Matrix<T>& right, Sums& sums) const {
    for (int c = 0; c < left.columns; c += kSide) {
      load_and_multiply<false, false>(
          tile(0), tile(1), left.columns - c, sums, [&](T* to) { load_tile(to, left.from(0, c)); },
          [&](T* to) { load_tile(to, right.from(0, c)); });
    }
  }

  // Gradients of what tokens do to each other, as operands, and the sums over rectangles.
  __device__ void pairs() const {
    const Matrix<T> q = in.q_rows(chunk, group), k = in.k_rows(chunk, group);
    const Matrix<T> values = in.dense_rows(of.values, chunk, head);
    Sums mixes, keys;  // G and X
    rows_by_rows(in.dense_rows(of.dy, chunk, head), values, mixes);
    rows_by_rows(in.dense_rows(of.dresiduals, chunk, head), values, keys);
    keys.each([&](int i, int j, float value) {
      if (i == j) tokens.residuals_by_values[i] = value;
    });
    Sums q_by_k, k_by_k;
    for (int c = 0; c < in.K; c += kSide) {
      load_and_multiply<false, false>(
          tile(0), tile(1), in.K - c, q_by_k, [&](T* to) { load_tile(to, q.from(0, c)); },
          [&](T* to) { load_tile(to, k.from(0, c)); });
      multiply<false, false>(tile(1), tile(1), in.K - c, k_by_k);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = Sums::row(c / 2), j = Sums::column(n) + c % 2;
        const float decay = i >= j && i < size() ? expf(scalars.sum[i] - scalars.sum[j]) : 0.0F;
        float &mix = mixes.d[n][c], &key = keys.d[n][c];
        mix *= decay;
        key = i > j ? -scalars.beta[i] * decay * key : 0.0F;
        q_by_k.d[n][c] =
            scalars.k_norm[j] * (mix * scalars.q_norm[i] * q_by_k.d[n][c] + key * scalars.k_norm[i] * k_by_k.d[n][c]);
      }
    }
    // X + X^T, by way of `terms`; then those.
    keys.each([&](int i, int j, float value) { terms[i * kRow + j] = value; });
    __syncthreads();
    Sums operand;
    operand.each([&](int i, int j, float& value) {
      value = scalars.k_norm[j] * (i > j ? terms[i * kRow + j] : i < j ? terms[j * kRow + i] : 0.0F);
    });
    operand.store(tile(L::kAmongKeys));
    operand = mixes;
    operand.each([&](int, int j, float& value) { value *= scalars.k_norm[j]; });
    operand.store(tile(L::kForKeys));
    mixes.each([&](int i, int, float& value) { value *= scalars.q_norm[i]; });
    mixes.store(tile(L::kForQueries));
    __syncthreads();
    q_by_k.each([&](int i, int j, float value) { terms[i * kRow + j] = value; });
    __syncthreads();
    sum_rectangles(terms, tokens.parts, tokens.rectangles);
  }

  // sums += rows, and more += more_rows, [tokens, V], times rows of a state from key k on.
  __device__ void rows_by_state(const T* rows, const T* more_rows, const Matrix<T>& state, int k, Sums& sums,
                                Sums& more) const {
    const Matrix<T> left = in.dense_rows(rows, chunk, head);
    for (int c = 0; c < in.V; c += kSide) {
      __syncthreads();  // nobody reads what was in the tiles
      load_tile(tile(0), left.from(0, c));
      load_tile(tile(1), state.from(k, c));
      if (more_rows != nullptr) load_tile(tile(2), in.dense_rows(more_rows, chunk, head).from(0, c));
      wait_copies<0>();
      __syncthreads();
      multiply<false, false>(tile(0), tile(1), in.V - c, sums);
      if (more_rows != nullptr) multiply<false, false>(tile(2), tile(1), in.V - c, more);
    }
  }

  // dq and dk of keys from k on, = or +=, and what goes through states.
  __device__ void rows_from(int k, bool is_first) const {
    Sums dq, dk, behind, none;
    if (chunk.before >= 0) {
      rows_by_state(of.dy, of.dresiduals, in.state(of.states, chunk.before, head), k, dq, dk);
    }
    if (chunk.after >= 0) {
      rows_by_state(of.values, nullptr, in.state(of.dstates, chunk.after, head), k, behind, none);
    }
    const T *const q_tile = tile(0), *const k_tile = tile(1);
    __syncthreads();
    load_tile(tile(0), in.q_rows(chunk, group).from(0, k));
    load_tile(tile(1), in.k_rows(chunk, group).from(0, k));
    wait_copies<0>();
    __syncthreads();
    float from[2] = {}, to[2] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = Sums::row(c / 2), at = t * kStride<T> + Sums::column(n) + c % 2;
        const float query = scalars.q_norm[t] * to_float(q_tile[at]), key = scalars.k_norm[t] * to_float(k_tile[at]);
        const float before = scalars.before(t);
        dq.d[n][c] *= before;
        dk.d[n][c] *= -before * scalars.beta[t];
        behind.d[n][c] *= scalars.behind(t);
        from[c / 2] = fmaf(dk.d[n][c], key, fmaf(dq.d[n][c], query, from[c / 2]));
        to[c / 2] = fmaf(behind.d[n][c], key, to[c / 2]);
        dk.d[n][c] += behind.d[n][c];
      }
    }
    add_rows(from, tokens.parts, tokens.from_states, k > 0);
    add_rows(to, tokens.parts, tokens.to_states, k > 0);
    multiply<false, true>(tile(L::kForKeys), k_tile, size(), dq);
    multiply<true, true>(tile(L::kForQueries), q_tile, size(), dk);
    multiply<false, true>(tile(L::kAmongKeys), k_tile, size(), dk);
    const int64_t first = (static_cast<int64_t>(chunk.begin) * in.G + group) * in.K + k;
    const auto put = [&](float* target, Sums& sums) {
      sums.each([&](int t, int j, float value) {
        if (t >= size() || k + j >= in.K) return;
        float& place = target[first + static_cast<int64_t>(t) * in.G * in.K + j];
        place = is_first ? value : place + value;
      });
    };
    put(of.dq, dq);
    put(of.dk, dk);
  }

  // S . dS over all of the state, for all threads.
  __device__ float state_by_gradient() const {
    if (chunk.before < 0 || chunk.after < 0) return 0.0F;
    const T* const state = in.state(of.states, chunk.before, head).data;
    const T* const gradient = in.state(of.dstates, chunk.after, head).data;
    float sum = 0.0F;
    for (int i = static_cast<int>(threadIdx.x); i < in.K * in.V; i += kThreads) {
      sum = fmaf(to_float(state[i]), to_float(gradient[i]), sum);
    }
    return block_sum(sum);
  }

  // da and db, and the chunk's parts of dt_bias and a_log. `number`: the chunk's.
  __device__ void finish(int number) const {
    const float whole = scalars.whole() * state_by_gradient();
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x);
    const float rate = -expf(of.a_log[head]);
    if (t < kSide) {
      float da = 0.0F, dlog = 0.0F;
      if (t < size()) {
        float gradient = tokens.rectangles[t] + whole;
        for (int i = size() - 1; i >= t; --i) gradient += tokens.from_states[i];
        for (int i = 0; i < t; ++i) gradient += tokens.to_states[i];
        const int64_t token = static_cast<int64_t>(chunk.begin) + t;
        const float biased = to_float(of.a[token * of.a_stride + head]) + of.dt_bias[head];
        da = gradient * rate * softplus_slope(biased);
        dlog = gradient * softplus(biased);
        of.da[token * of.da_stride + head] = from_float<T>(da);
        of.db[token * of.db_stride + head] = from_float<T>((1.0F - scalars.beta[t]) * tokens.residuals_by_values[t]);
      }
      tokens.parts[t] = da;
      tokens.parts[kSide + t] = dlog;
    }
    __syncthreads();
    if (t >= 2) return;
    float sum = 0.0F;
#pragma unroll 8
    for (int i = 0; i < size(); ++i) sum += tokens.parts[t * kSide + i];
    of.parts[(static_cast<int64_t>(t) * in.H + head) * of.most_chunks + number] = t == 1 ? rate * sum : sum;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 2) gradients_kernel(Rule<T> in, Gradients<T> of) {
  using L = Layout<T>;
  extern __shared__ uint4 shared[];
  __shared__ Scalars scalars;
  __shared__ TokenSums tokens;
  T* const tiles = reinterpret_cast<T*>(shared);
  float* const terms = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + L::kTermsAt);
  const int group = static_cast<int>(blockIdx.y), heads = in.H / in.G;
  for (int number = static_cast<int>(blockIdx.x); number < in.count(); number += static_cast<int>(gridDim.x)) {
    for (int head = group * heads; head < (group + 1) * heads; ++head) {
      const HeadOfChunk<T> own{in, of, in.chunks[number], group, head, tiles, terms, scalars, tokens};
      __syncthreads();  // nobody reads the head before
      scalars.copy(in, own.chunk, head);
      commit_copies();
      wait_copies<0>();
      __syncthreads();
      own.pairs();
      for (int k = 0; k < in.K; k += kSide) own.rows_from(k, head == group * heads);
      own.finish(number);
    }
  }
}

// dx of q or of k (blockIdx.y), from the gradient of normed rows: with n = x norm, dx = norm (dn - n (n . dn)), n of
// length 1. A warp has a row.
template <class T>
struct Norms {
  const T* x;
  int64_t stride;
  const float *norms, *dn;
  T* dx;
  int64_t dx_stride;
  float length;  // of a normed row, squared
};
template <class T>
__global__ void __launch_bounds__(kThreads) norms_kernel(Norms<T> of_q, Norms<T> of_k, int64_t tokens, int G, int K) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + Sums::warp();
  if (row >= tokens * G) return;
  const Norms<T>& of = blockIdx.y == 1 ? of_k : of_q;
  const int64_t t = row / G, group = row % G;
  const T* const x = of.x + t * of.stride + group * K;
  const float *const dn = of.dn + row * K, norm = of.norms[group * tokens + t];
  float product = 0.0F;
  for (int i = Sums::lane(); i < K; i += kWarp) product = fmaf(to_float(x[i]), dn[i], product);
  const float projection = norm * norm * of.length * warp_sum(product);
  T* const dx = of.dx + t * of.dx_stride + group * K;
  for (int i = Sums::lane(); i < K; i += kWarp) {
    dx[i] = from_float<T>(norm * (dn[i] - to_float(x[i]) * projection));
  }
}

template <class T>
void launch(Context& ctx, const DeltaRuleBackward& args, const DeltaBackwardPlan& plan) {
  const DeltaRuleInputs& in = args.in;
  const Rule<T> rule = rule_of<T>(in, plan.tables);
  const Gradients<T> of{.dy = args.dy.data<T>(),
                        .states = plan.states.data<T>(),
                        .dstates = plan.dstates.data<T>(),
                        .values = plan.values.data<T>(),
                        .dresiduals = plan.dresiduals.data<T>(),
                        .a = in.a.rows_data<T>(),
                        .a_stride = in.a.stride(),
                        .dt_bias = in.dt_bias.data<float>(),
                        .a_log = in.a_log.data<float>(),
                        .dq = plan.dq.data<float>(),
                        .dk = plan.dk.data<float>(),
                        .da = args.da.rows_data<T>(),
                        .db = args.db.rows_data<T>(),
                        .da_stride = args.da.stride(),
                        .db_stride = args.db.stride(),
                        .parts = plan.parts.data<float>(),
                        .most_chunks = plan.parts.dim(2)};
  constexpr int kBytes = Layout<T>::kBytes;
  allow_dynamic_shared(gradients_kernel<T>, kBytes);
  gradients_kernel<T><<<dim3(chunk_grid(in), short_grid_size(rule.G)), kThreads, kBytes, ctx.stream>>>(rule, of);
  NMOE_CUDA_CHECK(cudaGetLastError());
  const Norms<T> of_q{.x = rule.q,
                      .stride = rule.q_stride,
                      .norms = rule.q_norms,
                      .dn = of.dq,
                      .dx = args.dq.rows_data<T>(),
                      .dx_stride = args.dq.stride(),
                      .length = static_cast<float>(rule.K)};
  const Norms<T> of_k{.x = rule.k,
                      .stride = rule.k_stride,
                      .norms = rule.k_norms,
                      .dn = of.dk,
                      .dx = args.dk.rows_data<T>(),
                      .dx_stride = args.dk.stride(),
                      .length = 1.0F};
  norms_kernel<T>
      <<<dim3(grid_size(ceil_div(rule.tokens * rule.G, int64_t{kThreads / kWarp})), 2), kThreads, 0, ctx.stream>>>(
          of_q, of_k, rule.tokens, rule.G, rule.K);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace delta

void delta_rule_backward(Context& ctx, const DeltaRuleBackward& args, const DeltaBackwardPlan& plan) {
  using namespace delta;
  const DeltaRuleInputs& in = args.in;
  const DeltaRuleSizes sizes = delta_rule_sizes(in);
  if (sizes.tokens == 0 || sizes.heads == 0) return;
  fill_tables(ctx, in, args.dfinal_state.defined(), plan.tables);
  fill_states(ctx, in, plan);
  fill_state_gradients(ctx, args, plan);
  dispatch_act(in.v.dtype(), [&](auto element) { launch<decltype(element)>(ctx, args, plan); });
  add_chunk_parts(ctx, plan.parts, plan.tables.firsts.data<int32_t>() + in.num_seqs,
                  {args.ddt_bias.data<float>(), args.da_log.data<float>(), nullptr});
}

}  // namespace nmoe::cuda
