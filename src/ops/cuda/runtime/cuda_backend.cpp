#include "ops/cuda/runtime/cuda_backend.h"

#include <dlfcn.h>

#include "base/error.h"
#include "ops/cuda/kernels/activation.h"
#include "ops/cuda/kernels/adamw.h"
#include "ops/cuda/kernels/attention.h"
#include "ops/cuda/kernels/cached_attention.h"
#include "ops/cuda/kernels/embedding.h"
#include "ops/cuda/kernels/grouped_linear.h"
#include "ops/cuda/kernels/head_loss.h"
#include "ops/cuda/kernels/mla_expand.h"
#include "ops/cuda/kernels/moe.h"
#include "ops/cuda/kernels/muon.h"
#include "ops/cuda/kernels/rms_norm.h"
#include "ops/cuda/kernels/rope.h"
#include "ops/cuda/kernels/router.h"
#include "ops/cuda/kernels/tensor_ops.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/events.h"
#include "ops/cuda/runtime/memory.h"
#include "ops/cuda/vendor/cudnn_library.h"
#include "ops/cuda/vendor/linear.h"

namespace nmoe::cuda {
namespace {

// The compute capability that NMOE_CUDA_ARCH, "90a" or "100a", stands for.
constexpr int kCompiledMajor = NMOE_CUDA_MAJOR;

class Graph final : public Recording {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    NMOE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);  // the failure of `work` is the one to report
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    NMOE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    NMOE_CUDA_CHECK(status);
  }
  ~Graph() override {
    cudaStreamSynchronize(stream_);  // it may be running still
    cudaGraphExecDestroy(graph_);
  }
  void run() override { NMOE_CUDA_CHECK(cudaGraphLaunch(graph_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

// The device's name, once it is known to run these kernels.
std::string check_device(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw usage_error(
        fmt::format("run.device = \"cuda\", but there is no usable CUDA device ({})", cudaGetErrorString(status)),
        "check `nvidia-smi`: CUDA 13 needs driver 580 or newer; or set run.device = \"cpu\"");
  }
  cudaDeviceProp properties{};
  NMOE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  if (properties.major != kCompiledMajor) {
    throw usage_error(fmt::format("{} has compute capability {}.{}; this program's kernels are for {}.0",
                                  properties.name, properties.major, properties.minor, kCompiledMajor),
                      "build the preset for this device: hopper is 9.0, blackwell 10.0");
  }
  NMOE_CUDA_CHECK(cudaSetDevice(index));
  return properties.name;
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

CudaBackend::CudaBackend(int device_index, DType compute_dtype)
    : device_index_(device_index),
      compute_dtype_(compute_dtype),
      device_name_(check_device(device_index)),
      cudnn_attention_(device_index),
      context_{.scratch = scratch(), .cublas_lt = cublas_lt_, .cudnn_attention = cudnn_attention_} {
  NMOE_CHECK(compute_dtype == DType::kBF16 || compute_dtype == DType::kF32, "CUDA computes in BF16 or F32, not {}",
             dtype_name(compute_dtype));
  if (compute_dtype == DType::kBF16) cudnn();  // or an error now, not in the first step
  NMOE_CUDA_CHECK(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking));
  NMOE_CUDA_CHECK(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking));
  NMOE_CUDA_CHECK(cudaDeviceGetAttribute(&context_.num_sms, cudaDevAttrMultiProcessorCount, device_index));
}

CudaBackend::~CudaBackend() {
  cudaStreamDestroy(copy_stream_);
  cudaStreamDestroy(context_.stream);
}

std::string CudaBackend::description() const {
  return fmt::format("{}, {} SMs, {}", device_name_, context_.num_sms,
                     compute_dtype_ == DType::kBF16 ? fmt::format("bf16 with fp32 master weights, cuDNN {}",
                                                                  cudnn_version_text(cudnn().get_version()))
                                                    : "fp32");
}

SoftwareVersions CudaBackend::software() const {
  int runtime = 0;
  NMOE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return {.driver = driver_version(), .toolkit = fmt::format("CUDA {}.{}", runtime / 1000, runtime % 1000 / 10)};
}

std::string CudaBackend::peak_source() const {
  return fmt::format("NVIDIA's datasheet, SXM, dense {}", compute_dtype_ == DType::kBF16 ? "bf16" : "fp32");
}

// The vendor's dense figures for the SXM parts: H100 and H200, B200.
double CudaBackend::peak_flops() {
  constexpr bool kHopper = kCompiledMajor == 9;
  if (compute_dtype_ == DType::kBF16) return kHopper ? 989.4e12 : 2250e12;
  return kHopper ? 66.9e12 : 75e12;
}

// Static, as on the CPU: arenas give their blocks back when this object is gone.
MemorySource& CudaBackend::memory() {
  static DeviceMemory memory;
  return memory;
}
MemorySource& CudaBackend::host_memory() {
  static PinnedMemory memory;
  return memory;
}

std::optional<DeviceMemoryUse> CudaBackend::device_memory() const {
  size_t free_bytes = 0, total_bytes = 0;
  NMOE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return DeviceMemoryUse{.used_bytes = static_cast<int64_t>(total_bytes - free_bytes),
                         .free_bytes = static_cast<int64_t>(free_bytes)};
}

std::unique_ptr<Recording> CudaBackend::record(std::function<void()> work) {
  return std::make_unique<Graph>(context_.stream, work);
}

void CudaBackend::upload(Tensor destination, const void* host) {
  if (counting() || destination.num_bytes() == 0) return;
  NMOE_CUDA_CHECK(cudaMemcpyAsync(destination.raw(), host, static_cast<size_t>(destination.num_bytes()),
                                  cudaMemcpyHostToDevice, context_.stream));
}

void CudaBackend::begin_download(void* host, Tensor source) {
  if (counting() || source.num_bytes() == 0) return;
  NMOE_CUDA_CHECK(cudaMemcpyAsync(host, source.raw(), static_cast<size_t>(source.num_bytes()), cudaMemcpyDeviceToHost,
                                  context_.stream));
}

void CudaBackend::download(void* host, Tensor source) {
  begin_download(host, source);
  if (!counting()) NMOE_CUDA_CHECK(cudaStreamSynchronize(context_.stream));
}

std::unique_ptr<Event> CudaBackend::make_event() { return std::make_unique<StreamEvent>(context_.stream); }

std::unique_ptr<Prefetch> CudaBackend::make_prefetch(Tensor destination, Arena& arena) {
  const Tensor staging = arena.allocate(destination.dtype(), destination.shape());
  return std::make_unique<StreamPrefetch>(context_.stream, copy_stream_, staging, destination);
}

void CudaBackend::fill(Tensor x, double value) { cuda::fill(context_, x, value); }
void CudaBackend::fill_truncated_normal(Tensor x, const TruncatedNormal& draws) {
  cuda::fill_truncated_normal(context_, x, draws);
}
void CudaBackend::copy(Tensor source, Tensor destination) { cuda::copy(context_, source, destination); }
void CudaBackend::split_weight(Tensor master, Tensor w, Tensor low) { cuda::split_weight(context_, master, w, low); }
void CudaBackend::join_weight(Tensor w, Tensor low, Tensor master) { cuda::join_weight(context_, w, low, master); }
void CudaBackend::sum(Tensor x, Tensor out) { cuda::sum(context_, x, out); }
void CudaBackend::sum_of_squares(Tensor x, Tensor out) { cuda::sum_of_squares(context_, x, out); }
void CudaBackend::clip_scale(Tensor sum_squares, Tensor loss_sum, double max_norm, Tensor scale, Tensor stopped) {
  cuda::clip_scale(context_, sum_squares, loss_sum, max_norm, scale, stopped);
}
void CudaBackend::count_non_finite(Tensor x, Tensor out) { cuda::count_non_finite(context_, x, out); }
void CudaBackend::embedding_forward(Tensor ids, Tensor table, Tensor y) {
  cuda::embedding_forward(context_, ids, table, y);
}
void CudaBackend::embedding_backward(Tensor ids, Tensor dy, Tensor dtable) {
  cuda::embedding_backward(context_, ids, dy, dtable);
}
void CudaBackend::linear_forward(Tensor x, Tensor w, Tensor y, bool accumulate) {
  cuda::linear_forward(context_, x, w, y, accumulate);
}
void CudaBackend::linear_backward_input(Tensor dy, Tensor w, Tensor dx, bool accumulate) {
  cuda::linear_backward_input(context_, dy, w, dx, accumulate);
}
void CudaBackend::linear_backward_weight(Tensor x, Tensor dy, Tensor dw, bool accumulate) {
  cuda::linear_backward_weight(context_, x, dy, dw, accumulate);
}
void CudaBackend::grouped_linear_forward(Tensor x, Tensor w, Tensor offsets, Tensor y) {
  cuda::grouped_linear_forward(context_, x, w, offsets, y);
}
void CudaBackend::grouped_activation_forward(Activation kind, Tensor x, Tensor w, Tensor offsets, Tensor row_weight,
                                             Tensor pre, Tensor h) {
  cuda::grouped_activation_forward(context_, kind, x, w, offsets, row_weight, pre, h);
}
void CudaBackend::grouped_linear_backward_input(Tensor dy, Tensor w, Tensor offsets, Tensor dx) {
  cuda::grouped_linear_backward_input(context_, dy, w, offsets, dx);
}
void CudaBackend::grouped_linear_backward_weight(Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate) {
  cuda::grouped_linear_backward_weight(context_, x, dy, offsets, dw, accumulate);
}
void CudaBackend::rms_norm_forward(Tensor x, Tensor gain, double eps, Tensor y, Tensor rstd) {
  cuda::rms_norm_forward(context_, x, gain, eps, y, rstd);
}
void CudaBackend::rms_norm_backward(Tensor x, Tensor gain, Tensor rstd, Tensor dy, Tensor dx, Tensor dgain,
                                    bool accumulate_dx) {
  cuda::rms_norm_backward(context_, x, gain, rstd, dy, dx, dgain, accumulate_dx);
}
void CudaBackend::activation_forward(Activation kind, Tensor pre, Tensor row_weight, Tensor h) {
  cuda::activation_forward(context_, kind, pre, row_weight, h);
}
void CudaBackend::activation_backward(Activation kind, Tensor pre, Tensor row_weight, Tensor dh, Tensor dpre,
                                      Tensor drow_weight) {
  cuda::activation_backward(context_, kind, pre, row_weight, dh, dpre, drow_weight);
}
void CudaBackend::rope_forward(const RopeArgs& args) { cuda::rope_forward(context_, args); }
void CudaBackend::rope_backward(const RopeArgs& args) { cuda::rope_backward(context_, args); }
void CudaBackend::attention_forward(const AttentionForward& args) { cuda::attention_forward(context_, args); }
void CudaBackend::attention_backward(const AttentionBackward& args) { cuda::attention_backward(context_, args); }
void CudaBackend::mla_expand_forward(Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  cuda::mla_expand_forward(context_, kv, k_rope, k, v);
}
void CudaBackend::mla_expand_backward(Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) {
  cuda::mla_expand_backward(context_, dk, dv, dkv, dk_rope);
}
void CudaBackend::cache_write(const CacheWrite& args) { cuda::cache_write(context_, args); }
void CudaBackend::cached_attention(const CachedAttention& args) { cuda::cached_attention(context_, args); }
void CudaBackend::mla_absorb_query(Tensor q, Tensor kv_up, Tensor latent_q) {
  cuda::mla_absorb_query(context_, q, kv_up, latent_q);
}
void CudaBackend::mla_expand_output(Tensor latents, Tensor kv_up, Tensor out) {
  cuda::mla_expand_output(context_, latents, kv_up, out);
}
void CudaBackend::router_forward(const RouterForward& args) { cuda::router_forward(context_, args); }
void CudaBackend::router_backward(const RouterBackward& args) { cuda::router_backward(context_, args); }
void CudaBackend::router_bias_update(Tensor counts, Tensor bias, double rate, Tensor grad_scale) {
  cuda::router_bias_update(context_, counts, bias, rate, grad_scale);
}
void CudaBackend::moe_plan(Tensor top_idx, const MoePlan& plan, Tensor counts) {
  cuda::moe_plan(context_, top_idx, plan, counts);
}
void CudaBackend::moe_dispatch(Tensor x, const MoePlan& plan, Tensor rows) {
  cuda::moe_dispatch(context_, x, plan, rows);
}
void CudaBackend::moe_combine(Tensor rows, const MoePlan& plan, Tensor y, bool accumulate) {
  cuda::moe_combine(context_, rows, plan, y, accumulate);
}
void CudaBackend::moe_dispatch_weights(Tensor weights, const MoePlan& plan, Tensor row_weight) {
  cuda::moe_dispatch_weights(context_, weights, plan, row_weight);
}
void CudaBackend::moe_combine_weights(Tensor row_weight, const MoePlan& plan, Tensor weights) {
  cuda::moe_combine_weights(context_, row_weight, plan, weights);
}
void CudaBackend::head_loss(const HeadLoss& args) { cuda::head_loss(context_, args); }
void CudaBackend::adamw_step(const AdamWStep& args) { cuda::adamw_step(context_, args); }
void CudaBackend::muon_step(const MuonStep& args) { cuda::muon_step(context_, args); }

}  // namespace nmoe::cuda
