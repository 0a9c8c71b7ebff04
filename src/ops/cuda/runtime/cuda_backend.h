// The CUDA implementation of the operations, for one device. Everything is enqueued on one stream, but for prefetches:
// their way to the device is a second one.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"
#include "ops/cuda/vendor/cublaslt.h"
#include "ops/cuda/vendor/cudnn_attention.h"

namespace nmoe::cuda {

class CudaBackend final : public Backend {
 public:
  // device_index: as cudaSetDevice counts. compute_dtype: BF16 or F32. Error (usage) when the machine has no device
  // that these kernels were compiled for, too old a driver, or, for BF16, no cuDNN or too old a one.
  CudaBackend(int device_index, DType compute_dtype);
  ~CudaBackend() override;

  std::string description() const override;
  DType compute_dtype() const override { return compute_dtype_; }
  SoftwareVersions software() const override;
  double peak_flops() override;
  std::string peak_source() const override;
  MemorySource& memory() override;
  MemorySource& host_memory() override;
  std::optional<DeviceMemoryUse> device_memory() const override;
  // A CUDA graph. What `work` uses must have run once before: libraries load kernels at their first use.
  std::unique_ptr<Recording> record(std::function<void()> work) override;

  void upload(Tensor destination, const void* host) override;
  void download(void* host, Tensor source) override;
  void begin_download(void* host, Tensor source) override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) override;
  void fill(Tensor x, double value) override;
  void fill_truncated_normal(Tensor x, const TruncatedNormal& draws) override;
  void copy(Tensor source, Tensor destination) override;
  void split_weight(Tensor master, Tensor w, Tensor low) override;
  void join_weight(Tensor w, Tensor low, Tensor master) override;
  void sum(Tensor x, Tensor out) override;
  void sum_of_squares(Tensor x, Tensor out) override;
  void clip_scale(Tensor sum_squares, Tensor loss_sum, double max_norm, Tensor scale, Tensor stopped) override;
  void count_non_finite(Tensor x, Tensor out) override;
  void embedding_forward(Tensor ids, Tensor table, Tensor y) override;
  void embedding_backward(Tensor ids, Tensor dy, Tensor dtable) override;
  void linear_forward(Tensor x, Tensor w, Tensor y, bool accumulate) override;
  void linear_backward_input(Tensor dy, Tensor w, Tensor dx, bool accumulate) override;
  void linear_backward_weight(Tensor x, Tensor dy, Tensor dw, bool accumulate) override;
  void grouped_linear_forward(Tensor x, Tensor w, Tensor offsets, Tensor y) override;
  void grouped_activation_forward(Activation kind, Tensor x, Tensor w, Tensor offsets, Tensor row_weight, Tensor pre,
                                  Tensor h) override;
  void grouped_linear_backward_input(Tensor dy, Tensor w, Tensor offsets, Tensor dx) override;
  void grouped_linear_backward_weight(Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate) override;
  void rms_norm_forward(Tensor x, Tensor gain, double eps, Tensor y, Tensor rstd) override;
  void rms_norm_backward(Tensor x, Tensor gain, Tensor rstd, Tensor dy, Tensor dx, Tensor dgain,
                         bool accumulate_dx) override;
  void activation_forward(Activation kind, Tensor pre, Tensor row_weight, Tensor h) override;
  void activation_backward(Activation kind, Tensor pre, Tensor row_weight, Tensor dh, Tensor dpre,
                           Tensor drow_weight) override;
  void rope_forward(const RopeArgs& args) override;
  void rope_backward(const RopeArgs& args) override;
  void attention_forward(const AttentionForward& args) override;
  void attention_backward(const AttentionBackward& args) override;
  void mla_expand_forward(Tensor kv, Tensor k_rope, Tensor k, Tensor v) override;
  void mla_expand_backward(Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) override;
  void cache_write(const CacheWrite& args) override;
  void cached_attention(const CachedAttention& args) override;
  void mla_absorb_query(Tensor q, Tensor kv_up, Tensor latent_q) override;
  void mla_expand_output(Tensor latents, Tensor kv_up, Tensor out) override;
  void router_forward(const RouterForward& args) override;
  void router_backward(const RouterBackward& args) override;
  void router_bias_update(Tensor counts, Tensor bias, double rate, Tensor grad_scale) override;
  void moe_plan(Tensor top_idx, const MoePlan& plan, Tensor counts) override;
  void moe_dispatch(Tensor x, const MoePlan& plan, Tensor rows) override;
  void moe_combine(Tensor rows, const MoePlan& plan, Tensor y, bool accumulate) override;
  void moe_dispatch_weights(Tensor weights, const MoePlan& plan, Tensor row_weight) override;
  void moe_combine_weights(Tensor row_weight, const MoePlan& plan, Tensor weights) override;
  void head_loss(const HeadLoss& args) override;
  void adamw_step(const AdamWStep& args) override;
  void muon_step(const MuonStep& args) override;

 private:
  int device_index_;
  DType compute_dtype_;
  std::string device_name_;
  CublasLt cublas_lt_;
  CudnnAttention cudnn_attention_;
  Context context_;
  cudaStream_t copy_stream_ = nullptr;
};

}  // namespace nmoe::cuda
