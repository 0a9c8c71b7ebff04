// The gated delta rule in chunks (contracts/delta_rule.h; arXiv 2412.06464, section 3.3). What kernels have of a chunk
// of C tokens of a head, with s[i] the sum of log decays up to and with token i, S the state before it, k and q normed:
//
//   A[i, j] = beta[i] exp(s[i] - s[j]) (k[i] . k[j]),  i > j         inverse = (1 + A)^-1
//   mix[i, j] = exp(s[i] - s[j]) (q[i] . k[j]),  i >= j
//   residuals = beta (v - exp(s) k S)                                values = inverse residuals
//   y = exp(s) q S + mix values                                      S = exp(s[C-1]) S + (exp(s[C-1] - s) k)^T values
//
// `values` are what tokens add to the state: beta times the error of the recurrence. Operands of products are rounded
// to act: q, k and v as they are, since the rows' norms multiply products or the other operand; inverse, mix,
// residuals, values, and S, which is carried in F32.
#pragma once

#include "ops/contracts/delta_rule.h"
#include "ops/cuda/kernels/recurrent/chunk_table.cuh"
#include "ops/cuda/kernels/recurrent/chunk_tiles.cuh"
#include "ops/cuda/plans/delta_rule.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::delta {

using namespace tiles;

static_assert(kSide == kDeltaChunk, "a chunk's square is a tile");

// A log decay below this is this: exp() of either is 0, and sums keep the digits of what comes after.
constexpr float kLeastLogDecay = -128.0F;

__device__ inline float beta_of(float b) { return 1.0F / (1.0F + expf(-b)); }

// 1 / sqrt(sum of x^2 + eps), for queries by 1 / sqrt(K): a warp has the row.
template <class T>
__device__ float row_norm(const T* x, int K, bool is_key) {
  float squares = 0.0F;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < K; i += kWarp) {
    squares = fmaf(to_float(x[i]), to_float(x[i]), squares);
  }
  const float norm = 1.0F / sqrtf(warp_sum(squares) + static_cast<float>(kDeltaRuleNormEps));
  return is_key ? norm : norm * (1.0F / sqrtf(static_cast<float>(K)));
}

// Inputs and tables, as kernels see them.
template <class T>
struct Rule {
  const T *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  int num_seqs, seq_len, places;
  int H, G, K, V;
  bool vector_q, vector_k, vector_v, vector_states;  // 16 bytes at a time
  int64_t tokens;
  const Chunk* chunks;
  const int* firsts;
  const float *sums, *betas;       // [H, T]
  const float *q_norms, *k_norms;  // [G, T]
  const T *inverses, *mixes;       // [T, H, kSide]

  __device__ int count() const { return firsts[num_seqs]; }
  __device__ int group(int head) const { return head / (H / G); }
  __device__ Matrix<T> q_rows(const Chunk& chunk, int of_group) const {
    return {q + chunk.begin * q_stride + static_cast<int64_t>(of_group) * K, q_stride, chunk.size(), K, vector_q};
  }
  __device__ Matrix<T> k_rows(const Chunk& chunk, int of_group) const {
    return {k + chunk.begin * k_stride + static_cast<int64_t>(of_group) * K, k_stride, chunk.size(), K, vector_k};
  }
  __device__ Matrix<T> v_rows(const Chunk& chunk, int head) const {
    return {v + chunk.begin * v_stride + static_cast<int64_t>(head) * V, v_stride, chunk.size(), V, vector_v};
  }
  // Of rows [T, H, V], dense and aligned to 16 bytes.
  __device__ Matrix<T> dense_rows(const T* rows, const Chunk& chunk, int head) const {
    const int64_t stride = static_cast<int64_t>(H) * V;
    return {rows + chunk.begin * stride + static_cast<int64_t>(head) * V, stride, chunk.size(), V, V % 8 == 0};
  }
  // Of inverses or mixes.
  __device__ Matrix<T> square(const T* squares, const Chunk& chunk, int head) const {
    const int64_t stride = static_cast<int64_t>(H) * kSide;
    return {squares + chunk.begin * stride + static_cast<int64_t>(head) * kSide, stride, chunk.size(), kSide, true};
  }
  // The state at a place.
  __device__ Matrix<T> state(const T* states, int place, int head) const {
    return {states + (static_cast<int64_t>(place) * H + head) * K * V, V, K, V, vector_states};
  }
};
template <class T>
Rule<T> rule_of(const DeltaRuleInputs& in, const DeltaTables& tables) {
  const DeltaRuleSizes sizes = delta_rule_sizes(in);
  return {.q = in.q.rows_data<T>(),
          .k = in.k.rows_data<T>(),
          .v = in.v.rows_data<T>(),
          .q_stride = in.q.stride(),
          .k_stride = in.k.stride(),
          .v_stride = in.v.stride(),
          .num_seqs = static_cast<int>(in.num_seqs),
          .seq_len = static_cast<int>(in.seq_len),
          .places = static_cast<int>(delta_places(in)),
          .H = static_cast<int>(sizes.heads),
          .G = static_cast<int>(sizes.groups),
          .K = static_cast<int>(sizes.key_dim),
          .V = static_cast<int>(sizes.value_dim),
          .vector_q = can_vectorise(sizes.key_dim, in.q),
          .vector_k = can_vectorise(sizes.key_dim, in.k),
          .vector_v = can_vectorise(sizes.value_dim, in.v),
          .vector_states = sizes.value_dim % 8 == 0,
          .tokens = sizes.tokens,
          .chunks = reinterpret_cast<const Chunk*>(tables.chunks.data<int32_t>()),
          .firsts = tables.firsts.data<int32_t>(),
          .sums = tables.sums.data<float>(),
          .betas = tables.betas.data<float>(),
          .q_norms = tables.q_norms.data<float>(),
          .k_norms = tables.k_norms.data<float>(),
          .inverses = tables.inverses.data<T>(),
          .mixes = tables.mixes.data<T>()};
}

// A chunk's scalars of one head, in shared memory: of tokens that do not exist 0, and the last one's sum.
struct Scalars {
  float sum[kSide], beta[kSide], q_norm[kSide], k_norm[kSide];

  // All threads of a block, one each. Copies are under way at return, in no group yet.
  template <class T>
  __device__ void copy(const Rule<T>& in, const Chunk& chunk, int head) {
    static_assert(kThreads == 4 * kSide);
    const int which = static_cast<int>(threadIdx.x) / kSide, i = static_cast<int>(threadIdx.x) % kSide;
    const int last = chunk.size() - 1;
    const float* const table = which == 0 ? in.sums : which == 1 ? in.betas : which == 2 ? in.q_norms : in.k_norms;
    const int64_t row = (which < 2 ? head : in.group(head)) * in.tokens + chunk.begin;
    float* const target = which == 0 ? sum : which == 1 ? beta : which == 2 ? q_norm : k_norm;
    copy_async4(target + i, table + row + min(i, last), which == 0 || i <= last);
  }
  // Of the state before the chunk at token i, of token i at the chunk's end, and of the former there.
  __device__ float before(int i) const { return expf(sum[i]); }
  __device__ float behind(int i) const { return expf(sum[kSide - 1] - sum[i]); }
  __device__ float whole() const { return expf(sum[kSide - 1]); }
};

// Blocks along a grid's first dimension for all chunks: kernels go on from chunk blockIdx.x by gridDim.x.
inline unsigned chunk_grid(const DeltaRuleInputs& in) { return grid_size(in.num_seqs * delta_places(in)); }

// Fills in the tables. `wants_final`: whether sequences' last states are wanted, or have a gradient.
void fill_tables(Context& ctx, const DeltaRuleInputs& in, bool wants_final, const DeltaTables& tables);

// y and final_state.
void go_along_chunks(Context& ctx, const DeltaRuleForward& args, const DeltaTables& tables);
// plan.states at chunks' beginnings (Chunk::before), and plan.values.
void fill_states(Context& ctx, const DeltaRuleInputs& in, const DeltaBackwardPlan& plan);
// plan.dstates, which are gradients of states at those places, behind a sequence's last chunk dfinal_state if that is
// defined; plan.dresiduals, dv, and dinitial_state.
void fill_state_gradients(Context& ctx, const DeltaRuleBackward& args, const DeltaBackwardPlan& plan);

}  // namespace nmoe::cuda::delta
