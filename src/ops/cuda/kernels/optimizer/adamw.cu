// AdamW, of all tensors in one launch for each kind of them. Memory-bound: a weight's 4 bytes, gradient, m and v are
// read once, all but the gradient written once: 28 bytes a weight, 20 with moments in BF16, 16 with codes (and a 32nd
// for their scales), two less with a gradient in BF16.
#include <type_traits>

#include "ops/adamw_math.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/master_weight.cuh"
#include "ops/cuda/primitives/random_rounding.cuh"
#include "ops/cuda/primitives/tensor_table.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/moment_codes.h"

namespace nmoe::cuda {
namespace {

// How moments are stored, and how many values a thread takes that has 16 bytes of each.
template <class T>
struct PlainMoments {
  T* m;
  T* v;
  PlainMoments() = default;
  explicit PlainMoments(const AdamWStep& args) : m(args.m.data<T>()), v(args.v.data<T>()) {}
};
struct Fp32Moments : PlainMoments<float> {
  using PlainMoments::PlainMoments;
  static constexpr int kVector = 4, kThreads = 256;
};
struct Bf16Moments : PlainMoments<__nv_bfloat16> {
  using PlainMoments::PlainMoments;
  static constexpr int kVector = 8, kThreads = 128;
};
// Codes (ops/moment_codes.h). A block of the kernel has whole blocks of them.
struct Fp8Moments : PlainMoments<uint8_t> {
  uint8_t* m_scales;
  uint8_t* v_scales;
  Fp8Moments() = default;
  explicit Fp8Moments(const AdamWStep& args)
      : PlainMoments(args), m_scales(args.m_scales.data<uint8_t>()), v_scales(args.v_scales.data<uint8_t>()) {}
  static constexpr int kVector = 8, kThreads = moments::kBlock;
};

template <class Moments>
struct Task {
  const void* grad;  // F32, or
  bool grad_is_bf16;
  Moments state;
  int64_t size;  // of a matrix
  const double* grad_scale;
  const double* rates;
  adamw::Constants<float> constants;
  // Of random bits, for all but F32.
  const int64_t* key;
  uint64_t stream;
  const int32_t* matrices;  // null: there is one, whose first element is number `first` of the whole tensor
  int64_t first;
  unsigned matrix_blocks = 0;

  __device__ RandomBits bits(int64_t index) const {
    return {.key = static_cast<uint64_t>(*key), .stream = stream, .index = index};
  }
};

// Rounds m and v, of elements `index` on of the whole tensor, at random.
__device__ void store_rounded(const Task<Bf16Moments>& task, int64_t i, int64_t index, const float (&m)[1],
                              const float (&v)[1]) {
  const uint32_t random = moments::first_bits(task.bits(index).words(), static_cast<int>(index % 8));
  task.state.m[i] = round_at_random(m[0], random);
  task.state.v[i] = round_at_random(v[0], moments::second_bits(random));
}
__device__ void store_rounded(const Task<Bf16Moments>& task, int64_t i, int64_t index, const float (&m)[8],
                              const float (&v)[8]) {
  const random::Words words = task.bits(index).words();
  *reinterpret_cast<uint4*>(task.state.m + i) = pack8_at_random(m, words);
  *reinterpret_cast<uint4*>(task.state.v + i) = pack8_at_random</*kSecond=*/true>(v, words);
}

// One code, or eight at an address aligned to as many bytes.
__device__ void load_codes(const uint8_t* source, uint8_t (&codes)[1]) { codes[0] = *source; }
__device__ void load_codes(const uint8_t* source, uint8_t (&codes)[8]) {
  const uint2 packed = *reinterpret_cast<const uint2*>(source);
#pragma unroll
  for (int j = 0; j < 8; ++j) codes[j] = static_cast<uint8_t>((j < 4 ? packed.x : packed.y) >> (8 * (j % 4)));
}
__device__ void store_codes(uint8_t* target, const uint8_t (&codes)[1]) { *target = codes[0]; }
__device__ void store_codes(uint8_t* target, const uint8_t (&codes)[8]) {
  uint2 packed = make_uint2(0, 0);
#pragma unroll
  for (int j = 0; j < 8; ++j) (j < 4 ? packed.x : packed.y) |= static_cast<uint32_t>(codes[j]) << (8 * (j % 4));
  *reinterpret_cast<uint2*>(target) = packed;
}

// Of elements from i on, in block number `block`.
template <int kValues>
__device__ void load_moments(const Fp8Moments& state, int64_t i, int64_t block, float (&m)[kValues],
                             float (&v)[kValues]) {
  uint8_t m_codes[kValues], v_codes[kValues];
  load_codes(state.m + i, m_codes);
  load_codes(state.v + i, v_codes);
  const float m_scale = e8m0_to_float(state.m_scales[block]), v_scale = e8m0_to_float(state.v_scales[block]);
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    m[j] = e4m3_to_float(m_codes[j]) * m_scale;
    v[j] = moments::ue5m3_to_float(v_codes[j]) * v_scale;
  }
}

// The largest value of the threads that have a block of moments: 16 neighbours with eight each, or all of the kernel's.
template <int kValues>
__device__ uint32_t block_most(uint32_t most, uint32_t* shared) {
  if constexpr (kValues == 8) {
    return __reduce_max_sync(0xFFFFU << (threadIdx.x & 16U), most);
  } else {
    constexpr int kWarps = Fp8Moments::kThreads / 32;
    most = __reduce_max_sync(~0U, most);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) most = max(most, shared[warp]);
    return most;
  }
}

// Rounds m and v of elements `index` on of the whole tensor, from i on here, at random. All threads call it; those with
// `has_any` have elements.
template <int kValues>
__device__ void store_codes_at_random(const Task<Fp8Moments>& task, bool has_any, int64_t i, int64_t block,
                                      bool is_first, int64_t index, const float (&m)[kValues],
                                      const float (&v)[kValues]) {
  __shared__ uint32_t shared[2][Fp8Moments::kThreads / 32];
  uint32_t m_most = 0, v_most = 0;
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    m_most = max(m_most, magnitude_bits(m[j]));
    v_most = max(v_most, magnitude_bits(v[j]));
  }
  m_most = block_most<kValues>(m_most, shared[0]);
  v_most = block_most<kValues>(v_most, shared[1]);
  if (!has_any) return;
  const uint8_t m_scale = moments::first_scale(amax_of_bits(m_most)),
                v_scale = moments::second_scale(amax_of_bits(v_most));
  if (is_first) task.state.m_scales[block] = m_scale, task.state.v_scales[block] = v_scale;
  const float m_inverse = e8m0_to_inverse(m_scale), v_inverse = e8m0_to_inverse(v_scale);
  const random::Words words = task.bits(index).words();
  uint8_t m_codes[kValues], v_codes[kValues];
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    const uint32_t random = moments::first_bits(words, kValues == 1 ? static_cast<int>(index % 8) : j);
    m_codes[j] = moments::first_code(m[j] * m_inverse, random);
    v_codes[j] = moments::second_code(v[j] * v_inverse, moments::second_bits(random));
  }
  store_codes(task.state.m + i, m_codes);
  store_codes(task.state.v + i, v_codes);
}

template <class Weights, class Moments>
struct Entry {
  Weights w;
  Task<Moments> task;
};

// kValues: elements a thread takes, 1 where a tensor is not aligned for more. A matrix's parts follow each other, and
// matrices.
template <class Weights, class Moments, int kValues>
__global__ void __launch_bounds__(Moments::kThreads)
    adamw_kernel(const __grid_constant__ TensorTable<Entry<Weights, Moments>> table) {
  constexpr bool kHasCodes = std::is_same_v<Moments, Fp8Moments>;
  const int index = table.find(blockIdx.x);
  const auto& [w, task] = table.entries[index];
  if (!isfinite(*task.grad_scale)) return;
  const adamw::Rates<float> rates{static_cast<float>(*task.grad_scale), static_cast<float>(task.rates[0]),
                                  static_cast<float>(task.rates[1]), static_cast<float>(task.rates[2])};
  const unsigned block = blockIdx.x - table.first_block[index];
  const unsigned matrix = task.matrices == nullptr ? 0 : block / task.matrix_blocks;
  const int64_t part =
      (static_cast<int64_t>(block - matrix * task.matrix_blocks) * Moments::kThreads + threadIdx.x) * kValues;
  const bool has_any = part < task.size;
  if (!kHasCodes && !has_any) return;  // of codes, the threads of a block stay together
  const int64_t i = matrix * task.size + part,
                block_of_codes = matrix * moments::num_blocks(task.size) + part / moments::kBlock;
  float grad[kValues] = {}, m[kValues] = {}, v[kValues] = {}, weight[kValues] = {};
  if (has_any) {
    if (task.grad_is_bf16) {
      load_values(static_cast<const __nv_bfloat16*>(task.grad) + i, grad);
    } else {
      load_values(static_cast<const float*>(task.grad) + i, grad);
    }
    if constexpr (kHasCodes) {
      load_moments(task.state, i, block_of_codes, m, v);
    } else {
      load_values(task.state.m + i, m);
      load_values(task.state.v + i, v);
    }
    w.load(i, weight);
#pragma unroll
    for (int j = 0; j < kValues; ++j) adamw::update(task.constants, rates, grad[j], m[j], v[j], weight[j]);
  }
  if constexpr (std::is_same_v<Moments, Fp32Moments>) {
    store_values(task.state.m + i, m);
    store_values(task.state.v + i, v);
  } else {
    const int64_t first = task.matrices == nullptr ? task.first : task.matrices[matrix] * task.size;
    if constexpr (kHasCodes) {
      store_codes_at_random(task, has_any, i, block_of_codes, part % moments::kBlock == 0, first + part, m, v);
    } else {
      store_rounded(task, i, first + part, m, v);
    }
  }
  if (has_any) w.store(i, weight);
}

// The tensors that one kernel takes, until they are launched.
template <class Weights, class Moments, int kValues>
class Batch {
 public:
  explicit Batch(Context& ctx) : ctx_(ctx) {}
  void add(const Weights& w, Task<Moments> task, int64_t num_matrices) {
    const int64_t blocks = ceil_div(task.size, int64_t{Moments::kThreads} * kValues);
    task.matrix_blocks = grid_size(blocks);
    if (table_.is_full(blocks * num_matrices)) launch();
    table_.add({w, task}, blocks * num_matrices);
  }
  void launch() {
    if (table_.count == 0) return;
    adamw_kernel<Weights, Moments, kValues>
        <<<grid_size(table_.num_blocks), Moments::kThreads, 0, ctx_.stream>>>(table_);
    NMOE_CUDA_CHECK(cudaGetLastError());
    table_.clear();
  }

 private:
  Context& ctx_;
  TensorTable<Entry<Weights, Moments>> table_;
};

template <class Weights, class Moments>
struct Batches {
  explicit Batches(Context& ctx) : vectors(ctx), single(ctx) {}
  void add(const Weights& w, const Task<Moments>& task, int64_t num_matrices) {
    constexpr int kVector = Moments::kVector;
    const bool aligned = task.size % kVector == 0 && task.first % kVector == 0 && w.aligned() && aligned16(task.grad) &&
                         aligned16(task.state.m) && aligned16(task.state.v);
    if (aligned) return vectors.add(w, task, num_matrices);
    single.add(w, task, num_matrices);
  }
  void launch() {
    vectors.launch();
    single.launch();
  }
  Batch<Weights, Moments, Moments::kVector> vectors;
  Batch<Weights, Moments, 1> single;
};

template <class Moments>
class Steps {
 public:
  explicit Steps(Context& ctx) : whole_(ctx), halved_(ctx) {}
  void add(const AdamWStep& args) {
    const MomentRounding& random = args.random;
    const int64_t num_matrices = random.matrices.defined() ? random.matrices.num_elements() : 1;
    const auto constant = [](double value) { return static_cast<float>(value); };
    const Task<Moments> task{.grad = args.grad.raw(),
                             .grad_is_bf16 = args.grad.dtype() == DType::kBF16,
                             .state = Moments(args),
                             .size = args.w.num_elements() / num_matrices,
                             .grad_scale = args.grad_scale.data<double>(),
                             .rates = args.rates.data<double>(),
                             .constants = {constant(args.beta1), constant(args.beta2), constant(1 - args.beta1),
                                           constant(1 - args.beta2), constant(args.eps), constant(args.weight_decay)},
                             .key = random.key.data_or_null<int64_t>(),
                             .stream = random.stream,
                             .matrices = random.matrices.data_or_null<int32_t>(),
                             .first = random.first};
    dispatch_weights(args.w, args.low, [&](auto weights) {
      if (task.size == 0) return;
      if constexpr (std::is_same_v<decltype(weights), WholeWeights>) {
        whole_.add(weights, task, num_matrices);
      } else {
        halved_.add(weights, task, num_matrices);
      }
    });
  }
  void launch() {
    whole_.launch();
    halved_.launch();
  }

 private:
  Batches<WholeWeights, Moments> whole_;
  Batches<HalvedWeights, Moments> halved_;
};

}  // namespace

void adamw_steps(Context& ctx, const AdamWSteps& args) {
  Steps<Fp32Moments> fp32(ctx);
  Steps<Bf16Moments> bf16(ctx);
  Steps<Fp8Moments> fp8(ctx);
  for (const AdamWStep& one : args.all) {
    if (one.m.dtype() == DType::kBF16) {
      bf16.add(one);
    } else if (one.m.dtype() == DType::kU8) {
      fp8.add(one);
    } else {
      fp32.add(one);
    }
  }
  fp32.launch();
  bf16.launch();
  fp8.launch();
}

}  // namespace nmoe::cuda
