// The gated delta rule from token to token: generation, and forward in F32, whose bits generation then has. A block has
// 32 values of a head, a lane each; its warps share the keys' values, in as many parts, and hold their states in
// registers. Tokens come in batches, whose rows are normed while they are brought to shared memory.
#include "ops/cuda/kernels/recurrent/delta_chunks.cuh"
#include "ops/cuda/kernels/recurrent/slot_rows.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/documents.cuh"
#include "ops/cuda/primitives/softplus.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace delta {
namespace {

constexpr int kParts = kThreads / kWarp;
constexpr int kBatch = 16;

template <class T>
struct Rows {
  const T *q, *k, *v, *b, *a;
  int64_t q_stride, k_stride, v_stride, b_stride, a_stride;
  const float *dt_bias, *a_log;
  T* y;
  int H, G, K, V;
};
template <class T, class Arguments>
Rows<T> rows_of(const Arguments& args, const Tensor& y) {
  const DeltaRuleSizes sizes = delta_rule_sizes(args);
  return {.q = args.q.template rows_data<T>(),
          .k = args.k.template rows_data<T>(),
          .v = args.v.template rows_data<T>(),
          .b = args.b.template rows_data<T>(),
          .a = args.a.template rows_data<T>(),
          .q_stride = args.q.stride(),
          .k_stride = args.k.stride(),
          .v_stride = args.v.stride(),
          .b_stride = args.b.stride(),
          .a_stride = args.a.stride(),
          .dt_bias = args.dt_bias.template data<float>(),
          .a_log = args.a_log.template data<float>(),
          .y = y.data<T>(),
          .H = static_cast<int>(sizes.heads),
          .G = static_cast<int>(sizes.groups),
          .K = static_cast<int>(sizes.key_dim),
          .V = static_cast<int>(sizes.value_dim)};
}

// Tokens as they follow each other: of a sequence in training,
struct SequenceTokens {
  int first, count, seq_len;
  const int32_t* bounds;
  int capacity;
  bool has_initial;

  __device__ int row(int i) const { return first + i; }
  // Whether the state before row i is 0.
  __device__ bool begins(int i) const {
    return document_of(first + i, seq_len, bounds, capacity).x == first + i && !(i == 0 && has_initial);
  }
};
// and of a slot in generation.
struct SlotTokens {
  const int32_t *rows, *positions;
  int count;

  __device__ int row(int i) const { return rows[i]; }
  __device__ bool begins(int i) const { return positions[rows[i]] == 0; }
};

// What a batch of tokens has in shared memory. Keys beyond K are 0.
template <int kKeys>
struct Batch {
  float q[kBatch][kParts * kKeys], k[kBatch][kParts * kKeys];
  float v[kBatch][kWarp];
  float decay[kBatch], beta[kBatch];
  bool begins[kBatch];
  float sums[2][kParts][kWarp];
};

// Rows [first, first + count) of `tokens`.
template <int kKeys, class Tokens, class T>
__device__ void load_batch(const Rows<T>& in, const Tokens& tokens, int first, int count, int head, int column,
                           Batch<kKeys>& batch) {
  const int thread = static_cast<int>(threadIdx.x), part = thread / kWarp, lane = thread % kWarp;
  const int group = head / (in.H / in.G);
  for (int i = part; i < 2 * count; i += kParts) {
    const bool is_key = i >= count;
    const int place = is_key ? i - count : i;
    const int64_t row = tokens.row(first + place);
    const T* const source = (is_key ? in.k + row * in.k_stride : in.q + row * in.q_stride) + int64_t{group} * in.K;
    const float norm = row_norm(source, in.K, is_key);
    float* const target = is_key ? batch.k[place] : batch.q[place];
    for (int c = lane; c < kParts * kKeys; c += kWarp) target[c] = c < in.K ? to_float(source[c]) * norm : 0.0F;
  }
  for (int i = part; i < count; i += kParts) {
    const int64_t row = tokens.row(first + i);
    batch.v[i][lane] = column < in.V ? to_float(in.v[row * in.v_stride + int64_t{head} * in.V + column]) : 0.0F;
  }
  if (thread < count) {
    const int64_t row = tokens.row(first + thread);
    const float a = to_float(in.a[row * in.a_stride + head]) + in.dt_bias[head];
    batch.decay[thread] = expf(softplus(a) * -expf(in.a_log[head]));
    batch.beta[thread] = beta_of(to_float(in.b[row * in.b_stride + head]));
    batch.begins[thread] = tokens.begins(first + thread);
  }
}

// All of `tokens`, from `from` [K, V] and to `to`, which may be null, be the same, or be states of nothing yet.
template <int kKeys, class Tokens, class T>
__device__ void advance(const Rows<T>& in, const Tokens& tokens, int head, int column, const float* from, float* to,
                        Batch<kKeys>& batch) {
  const int part = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_key = part * kKeys;
  const auto exists = [&](int r) { return first_key + r < in.K && column < in.V; };
  const auto place = [&](int r) { return static_cast<int64_t>(first_key + r) * in.V + column; };
  float state[kKeys];
#pragma unroll
  for (int r = 0; r < kKeys; ++r) state[r] = from != nullptr && exists(r) ? from[place(r)] : 0.0F;
  for (int first = 0; first < tokens.count; first += kBatch) {
    const int count = min(kBatch, tokens.count - first);
    __syncthreads();  // nobody reads the batch before
    load_batch(in, tokens, first, count, head, column, batch);
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      const float *const q = batch.q[i] + first_key, *const k = batch.k[i] + first_key;
      const float decay = batch.decay[i];
      const bool begins = batch.begins[i];
      float sum = 0.0F;
#pragma unroll
      for (int r = 0; r < kKeys; ++r) {
        state[r] = begins ? 0.0F : decay * state[r];
        sum = fmaf(k[r], state[r], sum);
      }
      batch.sums[0][part][lane] = sum;
      __syncthreads();
      sum = batch.sums[0][0][lane];
#pragma unroll
      for (int other = 1; other < kParts; ++other) sum += batch.sums[0][other][lane];
      const float delta = batch.beta[i] * (batch.v[i][lane] - sum);
      sum = 0.0F;
#pragma unroll
      for (int r = 0; r < kKeys; ++r) {
        state[r] = fmaf(k[r], delta, state[r]);
        sum = fmaf(q[r], state[r], sum);
      }
      batch.sums[1][part][lane] = sum;
      __syncthreads();
      if (part != 0 || column >= in.V) continue;
#pragma unroll
      for (int other = 1; other < kParts; ++other) sum += batch.sums[1][other][lane];
      in.y[(static_cast<int64_t>(tokens.row(first + i)) * in.H + head) * in.V + column] = from_float<T>(sum);
    }
  }
  if (to == nullptr) return;
#pragma unroll
  for (int r = 0; r < kKeys; ++r) {
    if (exists(r)) to[place(r)] = state[r];
  }
}

// Of a block: which head of which, and its own column.
struct Place {
  int head, column;

  template <class T>
  __device__ explicit Place(const Rows<T>& in) {
    const int strips = ceil_div(in.V, kWarp), block = static_cast<int>(blockIdx.x);
    head = block / strips % in.H;
    column = block % strips * kWarp + static_cast<int>(threadIdx.x) % kWarp;
  }
};

template <int kKeys, class T>
__global__ void __launch_bounds__(kThreads)
    tokens_kernel(Rows<T> in, SequenceTokens tokens, const float* initial, float* final_state) {
  __shared__ Batch<kKeys> batch;
  const Place place(in);
  const int seq = static_cast<int>(blockIdx.x) / (ceil_div(in.V, kWarp) * in.H);
  const int64_t state = (static_cast<int64_t>(seq) * in.H + place.head) * in.K * in.V;
  tokens.first = seq * tokens.seq_len;
  tokens.count = tokens.seq_len;
  advance<kKeys>(in, tokens, place.head, place.column, initial != nullptr ? initial + state : nullptr,
                 final_state != nullptr ? final_state + state : nullptr, batch);
}

// Block blockIdx.y has slot blockIdx.y - 1.
template <int kKeys, class T>
__global__ void __launch_bounds__(kThreads)
    cached_kernel(Rows<T> in, const int32_t* positions, const int32_t* begins, const int32_t* order, float* states) {
  __shared__ Batch<kKeys> batch;
  const Place place(in);
  const int slot = static_cast<int>(blockIdx.y) - 1, begin = begins[slot + 1], end = begins[slot + 2];
  if (begin == end) return;
  if (slot < 0) {
    for (int i = begin + static_cast<int>(threadIdx.x) / kWarp; i < end && place.column < in.V; i += kParts) {
      in.y[(static_cast<int64_t>(order[i]) * in.H + place.head) * in.V + place.column] = from_float<T>(0.0F);
    }
    return;
  }
  float* const state = states + (static_cast<int64_t>(slot) * in.H + place.head) * in.K * in.V;
  advance<kKeys>(in, SlotTokens{order + begin, positions, end - begin}, place.head, place.column, state, state, batch);
}

// Calls fn(std::integral_constant of the keys' values that a warp has).
template <class Fn>
void dispatch_keys(int64_t key_dim, const Fn& fn) {
  if (key_dim <= 4 * kParts) return fn(std::integral_constant<int, 4>());
  static_assert(kMostDeltaKeyDim == 16 * kParts);
  fn(std::integral_constant<int, 16>());
}

}  // namespace

// Forward in F32.
void go_along_tokens(Context& ctx, const DeltaRuleForward& args) {
  const DeltaRuleInputs& in = args.in;
  const DeltaRuleSizes sizes = delta_rule_sizes(in);
  const bool has_documents = in.cu_seqlens.defined();
  const SequenceTokens tokens{.first = 0,
                              .count = 0,
                              .seq_len = static_cast<int>(in.seq_len),
                              .bounds = has_documents ? in.cu_seqlens.data<int32_t>() : nullptr,
                              .capacity = has_documents ? static_cast<int>(in.cu_seqlens.dim(0)) : 0,
                              .has_initial = in.initial_state.defined()};
  const unsigned blocks = grid_size(in.num_seqs * sizes.heads * ceil_div(sizes.value_dim, int64_t{kWarp}));
  dispatch_keys(sizes.key_dim, [&](auto keys) {
    tokens_kernel<keys(), float><<<blocks, kThreads, 0, ctx.stream>>>(rows_of<float>(in, args.y), tokens,
                                                                      in.initial_state.data_or_null<float>(),
                                                                      args.final_state.data_or_null<float>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace delta

void delta_rule_forward(Context& ctx, const DeltaRuleForward& args, const DeltaForwardPlan& plan) {
  const DeltaRuleSizes sizes = delta_rule_sizes(args.in);
  if (sizes.tokens == 0 || sizes.heads == 0) return;
  if (!plan.in_chunks) return delta::go_along_tokens(ctx, args);
  delta::fill_tables(ctx, args.in, args.final_state.defined(), plan.tables);
  delta::go_along_chunks(ctx, args, plan.tables);
}

void cached_delta_rule(Context& ctx, const CachedDeltaRule& args, const CachedDeltaPlan& plan) {
  using namespace delta;
  const DeltaRuleSizes sizes = delta_rule_sizes(args);
  const int64_t num_slots = args.states.dim(0);
  if (sizes.tokens == 0 || sizes.heads == 0) return;
  order_by_slots(ctx, args.slots, num_slots, plan.rows);
  const dim3 grid(grid_size(sizes.heads * ceil_div(sizes.value_dim, int64_t{kWarp})), short_grid_size(num_slots + 1));
  dispatch_act(args.v.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_keys(sizes.key_dim, [&](auto keys) {
      cached_kernel<keys(), T><<<grid, kThreads, 0, ctx.stream>>>(
          rows_of<T>(args, args.y), args.positions.data<int32_t>(), plan.rows.begins.data<int32_t>(),
          plan.rows.order.data<int32_t>(), args.states.data<float>());
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
