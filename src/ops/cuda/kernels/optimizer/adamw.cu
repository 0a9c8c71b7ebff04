// AdamW, of all tensors in one launch for each kind of them. Memory-bound: a weight's 4 bytes, gradient, m and v are
// read once, all but the gradient written once: 28 bytes a weight, 20 with moments in BF16, two less with a gradient in
// BF16.
#include <type_traits>

#include "ops/adamw_math.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/master_weight.cuh"
#include "ops/cuda/primitives/random_rounding.cuh"
#include "ops/cuda/primitives/tensor_table.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

// How moments are stored, and how many values a thread takes that has 16 bytes of each.
struct Fp32Moments {
  using Element = float;
  static constexpr int kVector = 4, kThreads = 256;
};
struct Bf16Moments {
  using Element = __nv_bfloat16;
  static constexpr int kVector = 8, kThreads = 128;
};

template <class Moments>
struct Task {
  const void* grad;  // F32, or
  bool grad_is_bf16;
  typename Moments::Element* m;
  typename Moments::Element* v;
  int64_t size;  // of a matrix
  const double* grad_scale;
  const double* rates;
  adamw::Constants<float> constants;
  // Of random bits, for BF16.
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
  task.m[i] = round_at_random(m[0], random);
  task.v[i] = round_at_random(v[0], moments::second_bits(random));
}
__device__ void store_rounded(const Task<Bf16Moments>& task, int64_t i, int64_t index, const float (&m)[8],
                              const float (&v)[8]) {
  const random::Words words = task.bits(index).words();
  *reinterpret_cast<uint4*>(task.m + i) = pack8_at_random(m, words);
  *reinterpret_cast<uint4*>(task.v + i) = pack8_at_random</*kSecond=*/true>(v, words);
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
  const int index = table.find(blockIdx.x);
  const auto& [w, task] = table.entries[index];
  if (!isfinite(*task.grad_scale)) return;
  const adamw::Rates<float> rates{static_cast<float>(*task.grad_scale), static_cast<float>(task.rates[0]),
                                  static_cast<float>(task.rates[1]), static_cast<float>(task.rates[2])};
  const unsigned block = blockIdx.x - table.first_block[index];
  const unsigned matrix = task.matrices == nullptr ? 0 : block / task.matrix_blocks;
  const int64_t part =
      (static_cast<int64_t>(block - matrix * task.matrix_blocks) * Moments::kThreads + threadIdx.x) * kValues;
  if (part >= task.size) return;
  const int64_t i = matrix * task.size + part;
  float grad[kValues], m[kValues], v[kValues], weight[kValues];
  if (task.grad_is_bf16) {
    load_values(static_cast<const __nv_bfloat16*>(task.grad) + i, grad);
  } else {
    load_values(static_cast<const float*>(task.grad) + i, grad);
  }
  load_values(task.m + i, m);
  load_values(task.v + i, v);
  w.load(i, weight);
#pragma unroll
  for (int j = 0; j < kValues; ++j) adamw::update(task.constants, rates, grad[j], m[j], v[j], weight[j]);
  if constexpr (std::is_same_v<Moments, Bf16Moments>) {
    const int64_t first = task.matrices == nullptr ? task.first : task.matrices[matrix] * task.size;
    store_rounded(task, i, first + part, m, v);
  } else {
    store_values(task.m + i, m);
    store_values(task.v + i, v);
  }
  w.store(i, weight);
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
                         aligned16(task.m) && aligned16(task.v);
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
    const auto moment = [](const Tensor& x) { return x.data<typename Moments::Element>(); };
    const Task<Moments> task{.grad = args.grad.raw(),
                             .grad_is_bf16 = args.grad.dtype() == DType::kBF16,
                             .m = moment(args.m),
                             .v = moment(args.v),
                             .size = args.w.num_elements() / num_matrices,
                             .grad_scale = args.grad_scale.data<double>(),
                             .rates = args.rates.data<double>(),
                             .constants = {constant(args.beta1), constant(args.beta2), constant(1 - args.beta1),
                                           constant(1 - args.beta2), constant(args.eps), constant(args.weight_decay)},
                             .key = random.key.defined() ? random.key.data<int64_t>() : nullptr,
                             .stream = random.stream,
                             .matrices = random.matrices.defined() ? random.matrices.data<int32_t>() : nullptr,
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
  for (const AdamWStep& one : args.all) {
    if (one.m.dtype() == DType::kBF16) {
      bf16.add(one);
    } else {
      fp32.add(one);
    }
  }
  fp32.launch();
  bf16.launch();
}

}  // namespace nmoe::cuda
