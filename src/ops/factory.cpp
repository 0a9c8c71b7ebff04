#include "ops/factory.h"

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_device.h"
#include "ops/marks.h"
#include "ops/planned/planned_device.h"
#include "ops/products.h"
#include "ops/sampling.h"
#ifdef NMOE_CUDA
#include "ops/cuda/kernels/token_sampler.h"
#include "ops/cuda/runtime/cuda_device.h"
#include "ops/cuda/runtime/current_device.h"
#include "ops/cuda/vendor/product_tuning.h"
#endif

namespace nmoe {
namespace {

// NMOE_CUDA_ARCH is the architecture of the compiled CUDA kernels, "" without any.
constexpr std::string_view kCudaArch = NMOE_CUDA_ARCH;

}  // namespace

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  if (options.kind == "cpu") {
    NMOE_CHECK(options.index == 0, "CPU {}: there is one", options.index);
    return std::make_unique<cpu::CpuDevice>(options.num_threads, options.compute_dtype, options.batch_invariant);
  }
  NMOE_CHECK(options.kind == "cuda", "device {}", options.kind);
  if (options.part) return std::make_unique<planned::PlannedDevice>(*options.part, options.compute_dtype);
#ifdef NMOE_CUDA
  return std::make_unique<cuda::CudaDevice>(options.index, options.compute_dtype, options.batch_invariant,
                                            options.num_sms);
#else
  throw usage_error("run.device = \"cuda\", but this program was built for the CPU only",
                    "build the preset 'hopper' or 'blackwell', or set run.device = \"cpu\"; `n plan --device-memory` "
                    "plans for a GPU anywhere");
#endif
}

bool is_tested_device_kind(std::string_view kind) { return kind == "cpu" || kCudaArch == "90a"; }

std::string compiled_devices() {
  std::string text = "cpu: x86-64-v3, fp32";
  if (!kCudaArch.empty()) text += fmt::format("\ncuda: sm_{}, bf16 and fp32", kCudaArch);
  if (kCudaArch == "90a") text += ", operands in fp8, mxfp8 and nvfp4";
  if (kCudaArch == "100a") text += cuda::kPlainProducts ? ", by plain kernels" : ", operands in mxfp8 and nvfp4";
  return text;
}

namespace {

// Of a device on which everything is done when the call that enqueues it returns.
class ClockMarks final : public Marks {
 public:
  void set(size_t index) override {
    if (index >= times_.size()) times_.resize(index + 1);
    times_[index] = Clock::now();
  }
  double ms_between(size_t from, size_t to) const override {
    return std::chrono::duration<double, std::milli>(times_.at(to) - times_.at(from)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> times_;
};

}  // namespace

std::unique_ptr<Marks> make_marks([[maybe_unused]] Device& device) {
#ifdef NMOE_CUDA
  if (auto* gpu = dynamic_cast<cuda::CudaDevice*>(&device)) return gpu->make_marks();
#endif
  return std::make_unique<ClockMarks>();
}

#ifdef NMOE_CUDA
bool has_token_sampler(const Device& device) { return dynamic_cast<const cuda::CudaDevice*>(&device) != nullptr; }

static cuda::Context& sampling_context(Device& device) {
  cuda::make_current(device.index());
  return dynamic_cast<cuda::CudaDevice&>(device).context(Lane::kCompute);
}
void sample_tokens(Device& device, const SampleTokens& args) { cuda::sample_tokens(sampling_context(device), args); }
void penalise_logits(Device& device, const PenaliseLogits& args) {
  cuda::penalise_logits(sampling_context(device), args);
}
#else
bool has_token_sampler(const Device& /*device*/) { return false; }
void sample_tokens(Device& device, const SampleTokens& /*args*/) {
  NMOE_CHECK(false, "{} samples no tokens", device.description());
}
void penalise_logits(Device& device, const PenaliseLogits& /*args*/) {
  NMOE_CHECK(false, "{} samples no tokens", device.description());
}
#endif

#ifdef NMOE_CUDA
// Null where there is none.
static cuda::CublasLt* library_of_products(const Device& device) {
  const auto* gpu = dynamic_cast<const cuda::CudaDevice*>(&device);
  return gpu == nullptr ? nullptr : &cuda::device_libraries(gpu->index()).cublas_lt;
}
std::string product_identity(const Device& device) {
  const cuda::CublasLt* library = library_of_products(device);
  return library == nullptr ? "" : library->identity();
}
std::vector<cuda::ProductUse> products_of(const Device& device) {
  cuda::CublasLt* library = library_of_products(device);
  return library == nullptr ? std::vector<cuda::ProductUse>() : library->uses();
}
#else
std::string product_identity(const Device& /*device*/) { return ""; }
std::vector<cuda::ProductUse> products_of(const Device& /*device*/) { return {}; }
#endif

ProductTuning tune_products(const Device& device, [[maybe_unused]] const std::vector<cuda::ProductUse>& uses,
                            [[maybe_unused]] const std::function<void(const TunedProduct&)>& told) {
#ifdef NMOE_CUDA
  if (library_of_products(device) != nullptr) {
    cuda::make_current(device.index());
    return cuda::tune_products(uses, told);
  }
#endif
  throw usage_error(fmt::format("{} has one algorithm for a product: there is nothing to tune", device.description()),
                    "set run.device = \"cuda\"");
}

}  // namespace nmoe
