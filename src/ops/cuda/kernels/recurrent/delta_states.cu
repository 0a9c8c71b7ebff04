// The gated delta rule along chunks (delta_chunks.cuh): a block has 64 values of one head of a sequence, with the state
// of all its keys in registers, and goes along the sequence, or back. Forward makes outputs on the way, and for
// backward states and values; back, the gradients of those:
//
//   dvalues = mix^T dy + exp(s[C-1] - s) k dS        dresiduals = inverse^T dvalues        dv = beta dresiduals
//   dS = exp(s[C-1]) dS + (exp(s) q)^T dy - (exp(s) beta k)^T dresiduals
//
// Where blocks are fewer than multiprocessors, the next chunk's tensors are on their way while one is worked on; else
// blocks wait for different things on one multiprocessor.
#include "ops/cuda/kernels/recurrent/delta_chunks.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda::delta {
namespace {

template <class T>
constexpr int kTile = kTileBytes<T> / static_cast<int>(sizeof(T));  // elements

// A block's tiles in shared memory: what is loaded of a chunk, and what is made.
enum class Pass { kOutputs, kStates, kGradients };
template <Pass kPass, int kKeyTiles, int kStages, class T>
struct Layout {
  // Of a stage: keys, inverse, v or dy, and then, but for states, mix and queries.
  static constexpr int kInverse = kKeyTiles, kValues = kInverse + 1, kMix = kValues + 1, kQueries = kMix + 1;
  static constexpr int kTiles = kPass == Pass::kStates ? kMix : kQueries + kKeyTiles;
  static constexpr int kMade = 2;  // the state, and then two operands in its place
  static constexpr int kResidual = kStages * kTiles + kMade, kAllTiles = kResidual + 1;
  static constexpr int kScalarsAt = kAllTiles * kTileBytes<T>;
  static constexpr int kBytes = kScalarsAt + kStages * static_cast<int>(sizeof(Scalars));
  static constexpr int kMostBytes = 227 << 10;
  static constexpr int kBlocks = kStages == 1 && 2 * (kBytes + 1024) <= kMostBytes ? 2 : 1;
};

// A block's part of states, from value v on.
struct Strip {
  int seq, head, v, K, V;

  template <class T>
  __device__ explicit Strip(const Rule<T>& in)
      : seq(static_cast<int>(blockIdx.x) / in.H),
        head(static_cast<int>(blockIdx.x) % in.H),
        v(static_cast<int>(blockIdx.y) * kSide),
        K(in.K),
        V(in.V) {}
  // Keys from k on of the states [H, K, V] at place `at` of all, to or from `sums`.
  template <class Value>
  __device__ void write(Value* all, int64_t at, int H, int k, Sums& sums) const {
    Value* const state = all + (at * H + head) * K * V;
    sums.each([&](int i, int j, float value) {
      if (k + i < K && v + j < V) state[static_cast<int64_t>(k + i) * V + v + j] = from_float<Value>(value);
    });
  }
  __device__ void read(const float* all, int64_t at, int H, int k, Sums& sums) const {
    const float* const state = all + (at * H + head) * K * V;
    sums.each([&](int i, int j, float& value) {
      value = k + i < K && v + j < V ? state[static_cast<int64_t>(k + i) * V + v + j] : 0.0F;
    });
  }
  // Rows of [T, H, V] of a chunk.
  template <class T, class Make>
  __device__ void write_rows(T* rows, int64_t stride, const Chunk& chunk, Sums& sums, const Make& make) const {
    T* const target = rows + chunk.begin * stride + static_cast<int64_t>(head) * V + v;
    sums.each([&](int i, int j, float value) {
      if (i < chunk.size() && v + j < V) target[i * stride + j] = from_float<T>(make(i, value));
    });
  }
};

// Shared memory and what is loaded of chunks.
template <Pass kPass, int kKeyTiles, int kStages, class T>
struct Room {
  using L = Layout<kPass, kKeyTiles, kStages, T>;

  T* tiles;
  Scalars* scalars;  // [kStages]

  __device__ explicit Room(uint4* shared)
      : tiles(reinterpret_cast<T*>(shared)),
        scalars(reinterpret_cast<Scalars*>(reinterpret_cast<std::byte*>(shared) + L::kScalarsAt)) {}
  __device__ T* stage(int i) const { return tiles + i % kStages * L::kTiles * kTile<T>; }
  __device__ T* made(int i) const { return tiles + (kStages * L::kTiles + i) * kTile<T>; }
  __device__ T* residual() const { return tiles + L::kResidual * kTile<T>; }

  // Has the i'th chunk's tensors copied to its stage. `values`: v's rows, or dy's.
  __device__ void start(const Rule<T>& in, const Chunk& chunk, int head, int i, const Matrix<T>& values, int v) const {
    T* const to = stage(i);
    const Matrix<T> k = in.k_rows(chunk, in.group(head));
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) copy_tile(to + tile * kTile<T>, k.from(0, tile * kSide));
    if constexpr (kPass != Pass::kStates) {
      const Matrix<T> q = in.q_rows(chunk, in.group(head));
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile)
        copy_tile(to + (L::kQueries + tile) * kTile<T>, q.from(0, tile * kSide));
      copy_tile(to + L::kMix * kTile<T>, in.square(in.mixes, chunk, head));
    }
    copy_tile(to + L::kInverse * kTile<T>, in.square(in.inverses, chunk, head));
    copy_tile(to + L::kValues * kTile<T>, values.from(0, v));
    scalars[i % kStages].copy(in, chunk, head);
  }
  // Waits for the i'th chunk's tensors; start(i) has those of the i'th copied, if there is one. All threads of a block.
  template <class Start>
  __device__ void next(int i, const Start& start_of) const {
    __syncthreads();  // nobody reads the chunk before
    if constexpr (kStages == 1) {
      start_of(i);
      commit_copies();
      wait_copies<0>();
    } else {
      if (i == 0) {
        start_of(0);
        commit_copies();
      }
      start_of(i + 1);
      commit_copies();
      wait_copies<1>();
    }
    __syncthreads();
  }
};

template <class T>
struct Forward {
  const float* initial;
  T* y;                // of outputs
  float* final_state;  // of outputs; may be null
  T *states, *values;  // of states
};

template <Pass kPass, int kKeyTiles, int kStages, class T>
__global__ void __launch_bounds__(kThreads, (Layout<kPass, kKeyTiles, kStages, T>::kBlocks))
    forward_kernel(Rule<T> in, Forward<T> of) {
  using L = Layout<kPass, kKeyTiles, kStages, T>;
  constexpr bool kOutputs = kPass == Pass::kOutputs;
  extern __shared__ uint4 shared[];
  const Room<kPass, kKeyTiles, kStages, T> room(shared);
  const Strip strip(in);
  const int begin = in.firsts[strip.seq], count = in.firsts[strip.seq + 1] - begin;
  const int64_t row_stride = static_cast<int64_t>(in.H) * in.V;
  const auto start = [&](int i) {
    if (i >= count) return;
    const Chunk chunk = in.chunks[begin + i];
    room.start(in, chunk, strip.head, i, in.v_rows(chunk, strip.head), strip.v);
  };
  Sums state[kKeyTiles];
  for (int i = 0; i < count; ++i) {
    const Chunk chunk = in.chunks[begin + i];
    const int size = chunk.size();
    const bool continues = chunk.before >= 0;
    room.next(i, start);
    const T* const stage = room.stage(i);
    const Scalars& scalars = room.scalars[i % kStages];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      if (!continues) {
        state[tile] = Sums();
        continue;
      }
      if (chunk.begin == strip.seq * in.seq_len) strip.read(of.initial, strip.seq, in.H, tile * kSide, state[tile]);
      state[tile].store(room.made(tile));
      if constexpr (!kOutputs) strip.write(of.states, chunk.before, in.H, tile * kSide, state[tile]);
    }
    __syncthreads();
    Sums residuals, outputs;
    if (continues) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const int depth = in.K - tile * kSide;
        multiply<false, true>(stage + tile * kTile<T>, room.made(tile), depth, residuals);
        if constexpr (kOutputs) {
          multiply<false, true>(stage + (L::kQueries + tile) * kTile<T>, room.made(tile), depth, outputs);
        }
      }
    }
    residuals.each([&](int t, int j, float& value) {
      const float v = to_float(stage[L::kValues * kTile<T> + t * kStride<T> + j]);
      value = scalars.beta[t] * (v - scalars.before(t) * scalars.k_norm[t] * value);
    });
    residuals.store(room.residual());
    __syncthreads();  // and nobody reads the state any more
    Sums values;
    multiply<false, true>(stage + L::kInverse * kTile<T>, room.residual(), size, values);
    if constexpr (kOutputs) {
      values.store(room.made(0));
    } else {
      strip.write_rows(of.values, row_stride, chunk, values, [](int, float value) { return value; });
    }
    values.each([&](int t, int, float& value) { value *= scalars.behind(t) * scalars.k_norm[t]; });
    values.store(room.made(1));
    __syncthreads();
    if constexpr (kOutputs) {
      outputs.each([&](int t, int, float& value) { value *= scalars.before(t) * scalars.q_norm[t]; });
      multiply<false, true>(stage + L::kMix * kTile<T>, room.made(0), size, outputs);
      strip.write_rows(of.y, row_stride, chunk, outputs, [](int, float value) { return value; });
    }
    if (chunk.after < 0) continue;
    const bool is_last = chunk.after >= in.num_seqs * in.places;
    const float whole = scalars.whole();
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      state[tile].each([&](int, int, float& value) { value *= whole; });
      multiply<true, true>(stage + tile * kTile<T>, room.made(1), size, state[tile]);
      if (kOutputs && is_last) strip.write(of.final_state, strip.seq, in.H, tile * kSide, state[tile]);
    }
  }
}

template <class T>
struct Backward {
  const T* dy;
  const float* dfinal;  // may be null
  float* dinitial;      // may be null
  T *dstates, *dresiduals, *dv;
  int64_t dv_stride;
};

template <int kKeyTiles, int kStages, class T>
__global__ void __launch_bounds__(kThreads, (Layout<Pass::kGradients, kKeyTiles, kStages, T>::kBlocks))
    backward_kernel(Rule<T> in, Backward<T> of) {
  using L = Layout<Pass::kGradients, kKeyTiles, kStages, T>;
  extern __shared__ uint4 shared[];
  const Room<Pass::kGradients, kKeyTiles, kStages, T> room(shared);
  const Strip strip(in);
  const int begin = in.firsts[strip.seq], count = in.firsts[strip.seq + 1] - begin;
  const int64_t row_stride = static_cast<int64_t>(in.H) * in.V;
  const auto start = [&](int i) {
    if (i >= count) return;
    const Chunk chunk = in.chunks[begin + count - 1 - i];
    room.start(in, chunk, strip.head, i, in.dense_rows(of.dy, chunk, strip.head), strip.v);
  };
  Sums dstate[kKeyTiles];
  for (int i = 0; i < count; ++i) {
    const Chunk chunk = in.chunks[begin + count - 1 - i];
    const int size = chunk.size();
    const bool continues = chunk.after >= 0, is_last = chunk.after >= in.num_seqs * in.places;
    room.next(i, start);
    const T* const stage = room.stage(i);
    const Scalars& scalars = room.scalars[i % kStages];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      if (!continues) {
        dstate[tile] = Sums();
        continue;
      }
      if (is_last) strip.read(of.dfinal, strip.seq, in.H, tile * kSide, dstate[tile]);
      dstate[tile].store(room.made(tile));
      strip.write(of.dstates, chunk.after, in.H, tile * kSide, dstate[tile]);
    }
    __syncthreads();
    Sums dvalues;
    if (continues) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        multiply<false, true>(stage + tile * kTile<T>, room.made(tile), in.K - tile * kSide, dvalues);
      }
      dvalues.each([&](int t, int, float& value) { value *= scalars.behind(t) * scalars.k_norm[t]; });
    }
    multiply<true, true>(stage + L::kMix * kTile<T>, stage + L::kValues * kTile<T>, size, dvalues);
    dvalues.store(room.residual());
    __syncthreads();  // and nobody reads the state's gradient any more
    Sums dresiduals;
    multiply<true, true>(stage + L::kInverse * kTile<T>, room.residual(), size, dresiduals);
    strip.write_rows(of.dresiduals, row_stride, chunk, dresiduals, [](int, float value) { return value; });
    strip.write_rows(of.dv, of.dv_stride, chunk, dresiduals,
                     [&](int t, float value) { return scalars.beta[t] * value; });
    if (chunk.before < 0) continue;
    dvalues.each([&](int t, int j, float& value) {
      const float dy = to_float(stage[L::kValues * kTile<T> + t * kStride<T> + j]);
      value = scalars.before(t) * scalars.q_norm[t] * dy;
    });
    dvalues.store(room.made(0));
    dresiduals.each(
        [&](int t, int, float& value) { value *= -(scalars.before(t) * scalars.k_norm[t] * scalars.beta[t]); });
    dresiduals.store(room.made(1));
    __syncthreads();
    const float whole = scalars.whole();
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      dstate[tile].each([&](int, int, float& value) { value *= whole; });
      multiply<true, true>(stage + (L::kQueries + tile) * kTile<T>, room.made(0), size, dstate[tile]);
      multiply<true, true>(stage + tile * kTile<T>, room.made(1), size, dstate[tile]);
      if (of.dinitial != nullptr && chunk.begin == strip.seq * in.seq_len) {
        strip.write(of.dinitial, strip.seq, in.H, tile * kSide, dstate[tile]);
      }
    }
  }
}

// Calls fn with std::integral_constants of the tiles of a head's keys and of the stages.
template <class T, class Fn>
void dispatch(const Context& ctx, const DeltaRuleInputs& in, dim3 grid, const Fn& fn) {
  const auto with_stages = [&](auto key_tiles) {
    if constexpr (sizeof(T) == 2) {  // else there is no room for two
      if (grid.x * grid.y <= static_cast<unsigned>(ctx.num_sms)) {
        return fn(key_tiles, std::integral_constant<int, 2>());
      }
    }
    fn(key_tiles, std::integral_constant<int, 1>());
  };
  if (in.q.dim(2) <= kSide) return with_stages(std::integral_constant<int, 1>());
  static_assert(kMostDeltaKeyDim == 2 * kSide);
  with_stages(std::integral_constant<int, 2>());
}

dim3 strips_grid(const DeltaRuleInputs& in) {
  return dim3(grid_size(in.num_seqs * in.v.dim(1)), short_grid_size(ceil_div(in.v.dim(2), int64_t{kSide})));
}

template <Pass kPass, class T>
void launch_forward(Context& ctx, const DeltaRuleInputs& in, const DeltaTables& tables, const Forward<T>& of) {
  const dim3 grid = strips_grid(in);
  dispatch<T>(ctx, in, grid, [&](auto key_tiles, auto stages) {
    constexpr int kBytes = Layout<kPass, key_tiles(), stages(), T>::kBytes;
    const auto kernel = forward_kernel<kPass, key_tiles(), stages(), T>;
    allow_dynamic_shared(kernel, kBytes);
    kernel<<<grid, kThreads, kBytes, ctx.stream>>>(rule_of<T>(in, tables), of);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void go_along_chunks(Context& ctx, const DeltaRuleForward& args, const DeltaTables& tables) {
  using T = __nv_bfloat16;
  launch_forward<Pass::kOutputs, T>(ctx, args.in, tables,
                                    {.initial = args.in.initial_state.data_or_null<float>(),
                                     .y = args.y.data<T>(),
                                     .final_state = args.final_state.data_or_null<float>(),
                                     .states = nullptr,
                                     .values = nullptr});
}

void fill_states(Context& ctx, const DeltaRuleInputs& in, const DeltaBackwardPlan& plan) {
  dispatch_act(in.v.dtype(), [&](auto element) {
    using T = decltype(element);
    launch_forward<Pass::kStates, T>(ctx, in, plan.tables,
                                     {.initial = in.initial_state.data_or_null<float>(),
                                      .y = nullptr,
                                      .final_state = nullptr,
                                      .states = plan.states.data<T>(),
                                      .values = plan.values.data<T>()});
  });
}

void fill_state_gradients(Context& ctx, const DeltaRuleBackward& args, const DeltaBackwardPlan& plan) {
  const dim3 grid = strips_grid(args.in);
  dispatch_act(args.in.v.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch<T>(ctx, args.in, grid, [&](auto key_tiles, auto stages) {
      constexpr int kBytes = Layout<Pass::kGradients, key_tiles(), stages(), T>::kBytes;
      const auto kernel = backward_kernel<key_tiles(), stages(), T>;
      allow_dynamic_shared(kernel, kBytes);
      kernel<<<grid, kThreads, kBytes, ctx.stream>>>(rule_of<T>(args.in, plan.tables),
                                                     {.dy = args.dy.data<T>(),
                                                      .dfinal = args.dfinal_state.data_or_null<float>(),
                                                      .dinitial = args.dinitial_state.data_or_null<float>(),
                                                      .dstates = plan.dstates.data<T>(),
                                                      .dresiduals = plan.dresiduals.data<T>(),
                                                      .dv = args.dv.rows_data<T>(),
                                                      .dv_stride = args.dv.stride()});
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::delta
