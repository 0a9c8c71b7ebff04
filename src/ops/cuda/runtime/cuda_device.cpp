#include "ops/cuda/runtime/cuda_device.h"

#include <dlfcn.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cuda/kernel_set.h"
#include "ops/cuda/kernels/vocabulary/token_sampler.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"
#include "ops/cuda/runtime/recording.h"
#include "ops/cuda/vendor/cudnn_library.h"
#include "ops/cuda/vendor/nccl.h"
#include "ops/cuda/vendor/product_tuning.h"

namespace nmoe::cuda {
namespace {

// The compute capability that NMOE_CUDA_ARCH, "90a" or "100a", stands for.
constexpr int kCompiledMajor = NMOE_CUDA_MAJOR;

// The device's name, once it is known to run these kernels. It is the calling thread's from then on.
std::string claim_device(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw usage_error(
        fmt::format("run.device = \"cuda\", but there is no usable CUDA device ({})", cudaGetErrorString(status)),
        "check `nvidia-smi`: CUDA 13 needs driver 580 or newer; or set run.device = \"cpu\"; `n plan --device-memory` "
        "plans for a GPU anywhere");
  }
  if (index < 0 || index >= count) {
    throw usage_error(fmt::format("there is no CUDA device {}: this machine has {}, counted from 0", index, count),
                      "check `nvidia-smi` and CUDA_VISIBLE_DEVICES");
  }
  cudaDeviceProp properties{};
  NMOE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  if (properties.major != kCompiledMajor) {
    throw usage_error(fmt::format("{} has compute capability {}.{}; this program's kernels are for {}.0",
                                  properties.name, properties.major, properties.minor, kCompiledMajor),
                      "build the preset for this device: hopper is 9.0, blackwell 10.0");
  }
  make_current(index);
  return properties.name;
}

int num_sms_of(int index, int wanted) {
  int count = 0;
  NMOE_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index));
  return wanted > 0 ? std::min(wanted, count) : count;
}

// "580.159.04". The management library comes with the driver and is the only one that knows; the runtime gives the
// CUDA version that the driver can run.
std::string driver_version() {
  if (void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY)) {
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto read = reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
    char version[128] = "";
    const bool known = init != nullptr && read != nullptr && init() == 0 && read(version, sizeof(version)) == 0;
    dlclose(library);
    if (known) return version;
  }
  int cuda = 0;
  NMOE_CUDA_CHECK(cudaDriverGetVersion(&cuda));
  return fmt::format("for CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
}

}  // namespace

CudaDevice::LaneState::LaneState(CudaDevice& device, Lane lane, const char* scratch_name)
    : stream(lane == Lane::kCommunication ? StreamPriority::kFirst : StreamPriority::kNormal),
      scratch(scratch_name),
      fastest(device, lane, device.compute_dtype_, device.context_of(stream.get(), /*starts_early=*/false)),
      invariant(device, lane, device.compute_dtype_, device.context_of(stream.get(), /*starts_early=*/true)) {}

Context CudaDevice::context_of(cudaStream_t stream, bool starts_early) const {
  return {.stream = stream,
          .device_index = index_,
          .num_sms = num_sms_,
          .cublas_lt = libraries_.cublas_lt,
          .cudnn_attention = libraries_.cudnn_attention,
          .starts_early = starts_early};
}

CudaDevice::CudaDevice(int index, DType compute_dtype, int num_sms)
    : index_(index),
      compute_dtype_(compute_dtype),
      name_(claim_device(index)),
      num_sms_(num_sms_of(index, num_sms)),
      libraries_(device_libraries(index)),
      memory_(index),
      host_memory_(index),
      mapped_memory_(index),
      lanes_{LaneState(*this, Lane::kCompute, "scratch"), LaneState(*this, Lane::kCopy, "copy scratch"),
             LaneState(*this, Lane::kCommunication, "communication scratch")} {
  NMOE_CHECK(compute_dtype == DType::kBF16 || compute_dtype == DType::kF32, "CUDA computes in BF16 or F32, not {}",
             dtype_name(compute_dtype));
  if (compute_dtype == DType::kBF16) cudnn();  // or an error now, not in the first step
}

// Members are released next, which need the device to be current, and their streams to be done.
CudaDevice::~CudaDevice() {
  try_make_current(index_);
  for (const LaneState& lane : lanes_) cudaStreamSynchronize(lane.stream.get());
}

void CudaDevice::make_current() const { cuda::make_current(index_); }

std::string CudaDevice::description() const {
  return fmt::format("{}, {} SMs{}, {}", name_, num_sms_, kPlainProducts ? ", plain kernels" : "",
                     compute_dtype_ == DType::kBF16 ? fmt::format("bf16 with fp32 master weights, cuDNN {}",
                                                                  cudnn_version_text(cudnn().get_version()))
                                                    : "fp32");
}

SoftwareVersions CudaDevice::software() const {
  int runtime = 0;
  NMOE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return {.driver = driver_version(), .toolkit = fmt::format("CUDA {}.{}", runtime / 1000, runtime % 1000 / 10)};
}

std::string CudaDevice::peak_source() const {
  return fmt::format("NVIDIA's datasheet, SXM, dense {}", compute_dtype_ == DType::kBF16 ? "bf16" : "fp32");
}

double CudaDevice::peak_flops() { return cuda::peak_flops({.major = kCompiledMajor}, compute_dtype_); }

std::optional<DeviceMemoryUse> CudaDevice::memory_use() const {
  make_current();
  size_t free_bytes = 0, total_bytes = 0;
  NMOE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return DeviceMemoryUse{.used_bytes = static_cast<int64_t>(total_bytes - free_bytes),
                         .free_bytes = static_cast<int64_t>(free_bytes)};
}

void CudaDevice::enable_peer_access(int index) {
  if (index == index_) return;
  make_current();
  int can_access = 0;
  NMOE_CUDA_CHECK(cudaDeviceCanAccessPeer(&can_access, index_, index));
  if (can_access == 0) {
    throw usage_error(
        fmt::format("CUDA devices {} and {} cannot reach each other's memory", index_, index),
        "share a run among devices that `nvidia-smi topo -p2p r` shows as OK, by CUDA_VISIBLE_DEVICES; or "
        "set parallel.ranks = 1");
  }
  libraries_.reach_once(index, [&] { NMOE_CUDA_CHECK(cudaDeviceEnablePeerAccess(index, 0)); });
}

std::unique_ptr<AcrossLink> CudaDevice::link_across(int64_t index, int64_t count, const GatherAcross& gather) {
  make_current();
  return std::make_unique<NcclLink>(index_, stream(Lane::kCompute), index, count, gather);
}

// An event per call is not needed: a wait is for the event as it was recorded last.
void CudaDevice::order(Lane awaited, Lane waiting) {
  if (awaited == waiting) return;
  make_current();
  NMOE_CUDA_CHECK(cudaEventRecord(order_.get(), stream(awaited)));
  const cudaError_t status = cudaStreamWaitEvent(stream(waiting), order_.get(), 0);
  NMOE_CHECK(status != cudaErrorStreamCaptureIsolation, "a recording cannot wait for a lane that did not fork from it");
  NMOE_CUDA_CHECK(status);
}

std::unique_ptr<Recording> CudaDevice::record(std::function<void()> work) {
  make_current();
  return std::make_unique<GraphRecording>(index_, stream(Lane::kCompute), work);
}

std::unique_ptr<Event> CudaDevice::make_event(Lane lane) {
  make_current();
  std::array<cudaStream_t, kNumLanes> streams{};
  for (const Lane each : kLanes) streams[static_cast<size_t>(each)] = stream(each);
  return std::make_unique<StreamEvent>(index_, streams, lane);
}

std::unique_ptr<Marks> CudaDevice::make_marks() {
  return std::make_unique<StreamMarks>(index_, stream(Lane::kCompute));
}

void CudaDevice::Sampler::sample_tokens(const SampleTokens& args) {
  if (device_.counting()) return;
  device_.make_current();
  cuda::sample_tokens(device_.state(Lane::kCompute).invariant.context(), args);
}

void CudaDevice::Sampler::penalise_logits(const PenaliseLogits& args) {
  if (device_.counting()) return;
  device_.make_current();
  cuda::penalise_logits(device_.state(Lane::kCompute).invariant.context(), args);
}

void CudaDevice::Sampler::pick_logits(const PickLogits& args) {
  if (device_.counting()) return;
  device_.make_current();
  cuda::pick_logits(device_.state(Lane::kCompute).invariant.context(), args);
}

std::string CudaDevice::Algorithms::identity() const { return device_.libraries_.cublas_lt.identity(); }

std::vector<ProductUse> CudaDevice::Algorithms::uses() const { return device_.libraries_.cublas_lt.uses(); }

ProductTuning CudaDevice::Algorithms::tune(const std::vector<ProductUse>& uses,
                                           const std::function<void(const TunedProduct&)>& told) const {
  device_.make_current();
  return cuda::tune_products(device_.context_of(/*stream=*/nullptr, /*starts_early=*/false), uses, told);
}

std::unique_ptr<Prefetch> CudaDevice::make_prefetch(Tensor destination, Arena& arena) {
  make_current();
  const Tensor staging = arena.allocate(destination.dtype(), destination.shape());
  return std::make_unique<StreamPrefetch>(index_, stream(Lane::kCompute), stream(Lane::kCopy), staging, destination);
}

// The direction of transfers follows from the addresses: tensors may be in mapped memory of the host.
//
// NOTE: the wait at the end is for the host buffer. CUDA reads pageable memory before it returns only if it chooses to,
// and page-locked memory never.
void CudaDevice::upload(Tensor destination, const void* host) {
  if (counting() || destination.num_bytes() == 0) return;
  make_current();
  NMOE_CUDA_CHECK(cudaMemcpyAsync(destination.raw(), host, static_cast<size_t>(destination.num_bytes()),
                                  cudaMemcpyDefault, stream(Lane::kCompute)));
  NMOE_CUDA_CHECK(cudaStreamSynchronize(stream(Lane::kCompute)));
}

void CudaDevice::begin_download(void* host, Tensor source) {
  if (counting() || source.num_bytes() == 0) return;
  make_current();
  NMOE_CUDA_CHECK(cudaMemcpyAsync(host, source.raw(), static_cast<size_t>(source.num_bytes()), cudaMemcpyDefault,
                                  stream(Lane::kCompute)));
}

void CudaDevice::download(void* host, Tensor source) {
  begin_download(host, source);
  if (!counting()) NMOE_CUDA_CHECK(cudaStreamSynchronize(stream(Lane::kCompute)));
}

}  // namespace nmoe::cuda
