// A step's products run at the power limit, where an algorithm is worth the energy that it saves, not the time at some
// clock. So what counts is time at the clock that an algorithm itself leaves: candidates are run in turns, first all in
// short blocks of calls, which share a clock, then the fastest and the heuristic's first choice in blocks that are
// long enough for the clock to settle before they are timed.
#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <span>

#include "base/error.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/events.h"
#include "ops/cuda/runtime/stream.h"
#include "ops/cuda/vendor/product_order.h"
#include "ops/cuda/vendor/product_tuning.h"
#include "ops/cuda/vendor/random_values.cuh"

namespace nmoe::cuda {
namespace {

constexpr int kMaxCandidates = 16;
constexpr int kRounds = 3;
constexpr double kEstimateUs = 3e3, kShortBlockUs = 8e3, kSettleUs = 150e3, kLongBlockUs = 150e3;
// Shorter calls cost as much to launch, and run out of a graph in a step.
constexpr double kLeastUs = 20.0;
constexpr double kLeastShare = 1e-3;  // of the time of all products
constexpr double kLeastGain = 0.015;
constexpr int kRepetitions = 4;
constexpr int64_t kRotationBytes = int64_t{256} << 20;  // of operands: several times the L2 cache
constexpr int64_t kMaxSets = 16;

constexpr int kThreads = 256, kBlocks = 1024;

__global__ void __launch_bounds__(kThreads) fill_kernel(void* x, bool is_bf16, int64_t size, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += int64_t{gridDim.x} * kThreads) {
    const float value = random_value(static_cast<uint64_t>(i), seed);
    if (is_bf16) {
      static_cast<__nv_bfloat16*>(x)[i] = __float2bfloat16(value);
    } else {
      static_cast<float*>(x)[i] = value;
    }
  }
}

struct Difference {
  unsigned largest, magnitude;  // bits of floats, which are ordered as they are: of |a - b| and of |a|
  unsigned has_nan;
};

__global__ void __launch_bounds__(kThreads)
    compare_kernel(const void* a, const void* b, bool is_bf16, int64_t size, Difference* difference) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += int64_t{gridDim.x} * kThreads) {
    const auto value = [&](const void* x) {
      return is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i]) : static_cast<const float*>(x)[i];
    };
    const float first = value(a), apart = fabsf(first - value(b));
    if (!isfinite(apart)) {
      difference->has_nan = 1;
      continue;
    }
    // Seldom more than a few times a thread: most values are no new maximum.
    if (__float_as_uint(apart) > difference->largest) atomicMax(&difference->largest, __float_as_uint(apart));
    if (__float_as_uint(fabsf(first)) > difference->magnitude) {
      atomicMax(&difference->magnitude, __float_as_uint(fabsf(first)));
    }
  }
}

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceBytes = std::unique_ptr<char, FreeDevice>;
DeviceBytes allocate(int64_t bytes) {
  void* memory = nullptr;
  NMOE_CUDA_CHECK(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  return DeviceBytes(static_cast<char*>(memory));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// One product with its operands: enough sets of them that none is in the cache when its turn comes again.
class Bench {
 public:
  Bench(const Context& ctx, const ProductUse& use, CublasLt& library)
      : use_(use),
        problem_(use.problem),
        library_(library),
        ctx_{.stream = stream_.get(),
             .device_index = ctx.device_index,
             .num_sms = ctx.num_sms,
             .cublas_lt = library,
             .cudnn_attention = ctx.cudnn_attention} {
    const int64_t batch = std::max<int64_t>(problem_.batch, 1);
    const auto room = [&](int64_t elements, DType dtype) {
      return elements * static_cast<int64_t>(dtype_bytes(dtype)) / 256 * 256 + 512;  // 256 for an offset
    };
    const int64_t sizes[] = {batch * problem_.rows * problem_.depth, batch * problem_.depth * problem_.cols,
                             batch * problem_.rows * problem_.cols};
    a_bytes_ = room(sizes[0], problem_.input);
    b_bytes_ = room(sizes[1], problem_.input);
    d_bytes_ = room(sizes[2], problem_.output);
    d_size_ = sizes[2];
    num_sets_ = std::clamp<int64_t>(kRotationBytes / (a_bytes_ + b_bytes_) + 1, 2, kMaxSets);
    memory_ = allocate(num_sets_ * set_bytes() + problem_.workspace_bytes);
    result_ = allocate(d_bytes_);
    difference_ = allocate(sizeof(Difference));
    const float scales[] = {1.0F, 0.0F, 1.0F, 1.0F};
    scales_ = allocate(sizeof(scales));
    NMOE_CUDA_CHECK(cudaMemcpyAsync(scales_.get(), scales, sizeof(scales), cudaMemcpyHostToDevice, stream_.get()));
    NMOE_CUDA_CHECK(cudaMemsetAsync(memory_.get(), 0, static_cast<size_t>(num_sets_ * set_bytes()), stream_.get()));
    for (int64_t set = 0; set < num_sets_; ++set) {
      const GemmOperands operands = operands_of(set, /*adds=*/false);
      const bool is_bf16 = problem_.input == DType::kBF16;
      const auto seed = static_cast<uint64_t>(2 * set);
      fill_kernel<<<kBlocks, kThreads, 0, stream_.get()>>>(const_cast<void*>(operands.a), is_bf16, sizes[0], seed);
      fill_kernel<<<kBlocks, kThreads, 0, stream_.get()>>>(const_cast<void*>(operands.b), is_bf16, sizes[1], seed + 1);
    }
    NMOE_CUDA_CHECK(cudaGetLastError());
  }

  // Microseconds of a call, of some that take about this long together if one takes `us_of_call`. Without a plan, by
  // the heuristic's choice.
  double time(const CublasLt::Plan* plan, double block_us, double us_of_call) {
    const auto count = std::max<int64_t>(2, static_cast<int64_t>(block_us / us_of_call));
    NMOE_CUDA_CHECK(cudaEventRecord(begin_.get(), stream_.get()));
    for (int64_t i = 0; i < count; ++i) call(plan);
    NMOE_CUDA_CHECK(cudaEventRecord(end_.get(), stream_.get()));
    NMOE_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float ms = 0.0F;
    NMOE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return 1e3 * static_cast<double>(ms) / static_cast<double>(count);
  }

  // Whether a plan gives the same bits in repetitions, and the heuristic's values but for rounding; in the order of a
  // forward product.
  bool is_right(const ProductAlgorithm& algorithm, const CublasLt::Plan& plan) {
    void* const workspace = memory_.get() + num_sets_ * set_bytes();
    if (has_one_order(problem_) && order_of_sums(ctx_, problem_, algorithm, workspace) != SumOrder::kSame) return false;
    GemmOperands operands = operands_of(0, /*adds=*/false), again = operands;
    again.d = result_.get() + offset(problem_.align_d);
    library_.multiply(problem_, operands, stream_.get());
    library_.multiply_by(plan, problem_, again, stream_.get());
    // One unit of bf16's last place, of the largest; of F32, what sums in another order differ by.
    const double tolerance = problem_.output == DType::kBF16 ? 0x1p-7 : 1e-4;
    if (!is_near(operands.d, again.d, tolerance)) return false;
    for (int i = 0; i < kRepetitions; ++i) {
      library_.multiply_by(plan, problem_, operands, stream_.get());
      if (!is_near(operands.d, again.d, 0.0)) return false;
    }
    return true;
  }

 private:
  static int64_t offset(uint32_t alignment) { return alignment % 256; }
  int64_t set_bytes() const { return a_bytes_ + b_bytes_ + d_bytes_; }

  GemmOperands operands_of(int64_t set, bool adds) const {
    char* const a = memory_.get() + set * set_bytes();
    char* const b = a + a_bytes_;
    char* const d = b + b_bytes_ + offset(problem_.align_d);
    return {.a = a + offset(problem_.align_a),
            .b = b + offset(problem_.align_b),
            .c = adds ? d : nullptr,
            .d = d,
            .workspace = memory_.get() + num_sets_ * set_bytes(),
            .beta = adds ? 1.0F : 0.0F,
            .scales = problem_.device_scales ? reinterpret_cast<float*>(scales_.get()) + (adds ? 2 : 0) : nullptr};
  }

  // The next, with something added as often as the step does.
  void call(const CublasLt::Plan* plan) {
    const int64_t all = use_.plain + use_.added, i = num_calls_++;
    const bool adds = (i + 1) * use_.added / all > i * use_.added / all;
    const GemmOperands operands = operands_of(i % num_sets_, adds);
    if (plan == nullptr) {
      library_.multiply(problem_, operands, stream_.get());
    } else {
      library_.multiply_by(*plan, problem_, operands, stream_.get());
    }
  }

  bool is_near(const void* a, const void* b, double tolerance) {
    NMOE_CUDA_CHECK(cudaMemsetAsync(difference_.get(), 0, sizeof(Difference), stream_.get()));
    compare_kernel<<<kBlocks, kThreads, 0, stream_.get()>>>(a, b, problem_.output == DType::kBF16, d_size_,
                                                            reinterpret_cast<Difference*>(difference_.get()));
    NMOE_CUDA_CHECK(cudaGetLastError());
    Difference difference{};
    NMOE_CUDA_CHECK(
        cudaMemcpyAsync(&difference, difference_.get(), sizeof(difference), cudaMemcpyDeviceToHost, stream_.get()));
    NMOE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    const auto value = [](unsigned bits) { return static_cast<double>(std::bit_cast<float>(bits)); };
    return difference.has_nan == 0 && value(difference.largest) <= tolerance * value(difference.magnitude);
  }

  ProductUse use_;
  GemmProblem problem_;
  CublasLt& library_;
  CudaStream stream_{StreamPriority::kNormal};
  Context ctx_;  // of that stream
  CudaEvent begin_{cudaEventDefault}, end_{cudaEventDefault};
  int64_t a_bytes_ = 0, b_bytes_ = 0, d_bytes_ = 0, d_size_ = 0, num_sets_ = 0, num_calls_ = 0;
  DeviceBytes memory_, result_, difference_, scales_;
};

struct Candidate {
  ProductAlgorithm algorithm;
  CublasLt::Plan plan;
  std::vector<double> us;
};

// Each of `candidates`, and the heuristic's choice, whose times are returned, in turns; each round begins with another.
// Blocks are timed behind calls for `settle_us`.
std::vector<double> time_in_turns(Bench& bench, std::span<Candidate> candidates, double settle_us, double block_us,
                                  double us_of_call) {
  std::vector<double> heuristic;
  const size_t turns = candidates.size() + 1;
  for (Candidate& candidate : candidates) candidate.us.clear();
  for (int round = 0; round < kRounds; ++round) {
    for (size_t turn = 0; turn < turns; ++turn) {
      const size_t which = (turn + static_cast<size_t>(round)) % turns;
      const bool is_candidate = which < candidates.size();
      const CublasLt::Plan* plan = is_candidate ? &candidates[which].plan : nullptr;
      if (settle_us > 0.0) bench.time(plan, settle_us, us_of_call);
      (is_candidate ? candidates[which].us : heuristic).push_back(bench.time(plan, block_us, us_of_call));
    }
  }
  return heuristic;
}

// Faster in the median by more than measurements vary, and in every round.
bool is_faster(const std::vector<double>& us, const std::vector<double>& heuristic) {
  for (size_t i = 0; i < us.size(); ++i) {
    if (us[i] >= heuristic[i]) return false;
  }
  return median(us) < (1.0 - kLeastGain) * median(heuristic);
}

void tune(const Context& ctx, CublasLt& library, TunedProduct& product) {
  const GemmProblem& problem = product.use.problem;
  Bench bench(ctx, product.use, library);
  std::vector<Candidate> candidates;
  for (const ProductAlgorithm& algorithm : library.candidates(problem, kMaxCandidates)) {
    if (const auto plan = library.plan_with(problem, algorithm)) candidates.push_back({algorithm, *plan, {}});
  }
  product.num_candidates = static_cast<int>(candidates.size());
  const double estimate = product.heuristic_us;
  for (Candidate& candidate : candidates) bench.time(&candidate.plan, 0.0, estimate);  // loads its kernel
  std::vector<double> heuristic = time_in_turns(bench, candidates, /*settle_us=*/0.0, kShortBlockUs, estimate);
  product.heuristic_us = product.chosen_us = median(heuristic);
  std::ranges::stable_sort(candidates, {}, [](const Candidate& candidate) { return median(candidate.us); });
  const auto best = std::ranges::find_if(
      candidates, [&](const Candidate& candidate) { return bench.is_right(candidate.algorithm, candidate.plan); });
  if (best == candidates.end() || !is_faster(best->us, heuristic)) return;
  heuristic = time_in_turns(bench, std::span(&*best, 1), kSettleUs, kLongBlockUs, estimate);
  product.heuristic_us = product.chosen_us = median(heuristic);
  if (!is_faster(best->us, heuristic)) return;
  product.chosen_us = median(best->us);
  product.choice = ProductChoice{.device = library.device(),
                                 .library = library.version(),
                                 .problem = problem,
                                 .algorithm = best->algorithm,
                                 .gain = 1.0 - product.chosen_us / product.heuristic_us};
}

double estimate_us(const Context& ctx, CublasLt& library, const ProductUse& use) {
  Bench bench(ctx, use, library);
  bench.time(nullptr, 0.0, 1.0);
  const double once = bench.time(nullptr, 0.0, 1.0);
  return bench.time(nullptr, kEstimateUs, once);
}

}  // namespace

ProductTuning tune_products(const Context& ctx, const std::vector<ProductUse>& uses,
                            const std::function<void(const TunedProduct&)>& told) {
  CublasLt library{ProductTable{}};  // whose choices are all the heuristic's
  ProductTuning tuning{.device = library.device(), .library = library.version(), .products = {}};
  double all_us = 0.0;
  for (const ProductUse& use : uses) {
    if (use.problem.blocks != OperandFormat::kAct) continue;
    const double us = estimate_us(ctx, library, use);
    tuning.products.push_back({.use = use, .heuristic_us = us, .chosen_us = us});
    all_us += us * static_cast<double>(use.calls());
  }
  for (TunedProduct& product : tuning.products) {
    const bool matters = product.heuristic_us * static_cast<double>(product.use.calls()) > kLeastShare * all_us;
    if (matters && product.heuristic_us >= kLeastUs) tune(ctx, library, product);
    told(product);
  }
  return tuning;
}

}  // namespace nmoe::cuda
