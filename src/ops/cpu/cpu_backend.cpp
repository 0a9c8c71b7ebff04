#include "ops/cpu/cpu_backend.h"

#include <cstring>

#include "ops/cpu/activation.h"
#include "ops/cpu/adamw.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/blas.h"
#include "ops/cpu/cached_attention.h"
#include "ops/cpu/embedding.h"
#include "ops/cpu/head_loss.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/memory.h"
#include "ops/cpu/moe.h"
#include "ops/cpu/muon.h"
#include "ops/cpu/peak.h"
#include "ops/cpu/rms_norm.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/router.h"
#include "ops/cpu/tensor_ops.h"

namespace nmoe::cpu {

// Calls the instantiation of an operation for the backend's compute dtype.
#define NMOE_CPU_DISPATCH(op, ...)            \
  do {                                        \
    if (compute_dtype_ == DType::kF32) {      \
      cpu::op<float>(context_, __VA_ARGS__);  \
    } else {                                  \
      cpu::op<double>(context_, __VA_ARGS__); \
    }                                         \
  } while (false)

CpuBackend::CpuBackend(int num_threads, DType compute_dtype, bool batch_invariant)
    : compute_dtype_(compute_dtype), pool_(num_threads), context_{pool_, scratch(), batch_invariant} {
  NMOE_CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kF64, "the CPU computes in F32 or F64, not {}",
             dtype_name(compute_dtype));
}

std::string CpuBackend::description() const {
  return fmt::format("CPU, {} thread{}, {}, {}, {}", pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s",
                     compute_dtype_ == DType::kF32 ? "fp32" : "fp64", widest_vectors(), blas_description());
}

double CpuBackend::peak_flops() { return measure_peak_flops(pool_, compute_dtype_); }

// Static: the scratch arena of the base class gives its block back when the members of this class are gone.
MemorySource& CpuBackend::memory() {
  static PageMemory memory;
  return memory;
}

std::unique_ptr<Recording> CpuBackend::record(std::function<void()> work) {
  class Repetition final : public Recording {
   public:
    explicit Repetition(std::function<void()> work) : work_(std::move(work)) {}
    void run() override { work_(); }

   private:
    std::function<void()> work_;
  };
  if (counting()) work();  // for the scratch it needs
  return std::make_unique<Repetition>(std::move(work));
}

void CpuBackend::upload(Tensor destination, const void* host) {
  if (counting()) return;
  std::memcpy(destination.raw(), host, static_cast<size_t>(destination.num_bytes()));
}

void CpuBackend::download(void* host, Tensor source) {
  if (counting()) return;
  std::memcpy(host, source.raw(), static_cast<size_t>(source.num_bytes()));
}

// Whatever was enqueued is done.
std::unique_ptr<Event> CpuBackend::make_event() {
  class Reached final : public Event {
   public:
    void set() override {}
    bool reached() const override { return true; }
    void wait() const override {}
  };
  return std::make_unique<Reached>();
}

void CpuBackend::begin_download(void* host, Tensor source) { download(host, source); }

std::unique_ptr<Prefetch> CpuBackend::make_prefetch(Tensor destination, Arena&) {
  class Copy final : public Prefetch {
   public:
    Copy(CpuBackend& ops, Tensor destination) : ops_(ops), destination_(destination) {}
    void send(const void* host) override { host_ = host; }
    void take() override { ops_.upload(destination_, host_); }

   private:
    CpuBackend& ops_;
    Tensor destination_;
    const void* host_ = nullptr;
  };
  return std::make_unique<Copy>(*this, destination);
}

void CpuBackend::fill(Tensor x, double value) { cpu::fill(context_, x, value); }
void CpuBackend::fill_truncated_normal(Tensor x, const TruncatedNormal& draws) {
  cpu::fill_truncated_normal(context_, x, draws);
}
void CpuBackend::copy(Tensor source, Tensor destination) { cpu::copy(context_, source, destination); }
// Weights are their own masters here.
void CpuBackend::split_weight(Tensor master, Tensor w, Tensor low) {
  NMOE_CHECK(!low.defined(), "weights of {} have no low part", dtype_name(w.dtype()));
  copy(master, w);
}
void CpuBackend::join_weight(Tensor w, Tensor low, Tensor master) {
  NMOE_CHECK(!low.defined(), "weights of {} have no low part", dtype_name(w.dtype()));
  copy(w, master);
}
void CpuBackend::add(Tensor x, Tensor y) { NMOE_CPU_DISPATCH(add, x, y); }
void CpuBackend::sum(Tensor x, Tensor out) { NMOE_CPU_DISPATCH(sum, x, out); }
void CpuBackend::sum_of_squares(Tensor x, Tensor out) { NMOE_CPU_DISPATCH(sum_of_squares, x, out); }
void CpuBackend::clip_scale(Tensor sum_squares, Tensor loss_sum, double max_norm, Tensor scale, Tensor stopped) {
  cpu::clip_scale(context_, sum_squares, loss_sum, max_norm, scale, stopped);
}
void CpuBackend::count_non_finite(Tensor x, Tensor out) { NMOE_CPU_DISPATCH(count_non_finite, x, out); }
void CpuBackend::embedding_forward(Tensor ids, Tensor table, Tensor y) {
  NMOE_CPU_DISPATCH(embedding_forward, ids, table, y);
}
void CpuBackend::embedding_backward(Tensor ids, Tensor dy, Tensor dtable) {
  NMOE_CPU_DISPATCH(embedding_backward, ids, dy, dtable);
}
void CpuBackend::linear_forward(Tensor x, Tensor w, Tensor y, bool accumulate) {
  NMOE_CPU_DISPATCH(linear_forward, x, w, y, accumulate);
}
void CpuBackend::linear_backward_input(Tensor dy, Tensor w, Tensor dx, bool accumulate) {
  NMOE_CPU_DISPATCH(linear_backward_input, dy, w, dx, accumulate);
}
void CpuBackend::linear_backward_weight(Tensor x, Tensor dy, Tensor dw, bool accumulate) {
  NMOE_CPU_DISPATCH(linear_backward_weight, x, dy, dw, accumulate);
}
void CpuBackend::grouped_linear_forward(Tensor x, Tensor w, Tensor offsets, Tensor y) {
  NMOE_CPU_DISPATCH(grouped_linear_forward, x, w, offsets, y);
}
void CpuBackend::grouped_activation_forward(Activation kind, Tensor x, Tensor w, Tensor offsets, Tensor row_weight,
                                            Tensor pre, Tensor h) {
  grouped_linear_forward(x, w, offsets, pre);
  activation_forward(kind, pre, row_weight, h);
}
void CpuBackend::grouped_linear_backward_input(Tensor dy, Tensor w, Tensor offsets, Tensor dx) {
  NMOE_CPU_DISPATCH(grouped_linear_backward_input, dy, w, offsets, dx);
}
void CpuBackend::grouped_linear_backward_weight(Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate) {
  NMOE_CPU_DISPATCH(grouped_linear_backward_weight, x, dy, offsets, dw, accumulate);
}
void CpuBackend::rms_norm_forward(Tensor x, Tensor gain, double eps, Tensor y, Tensor rstd) {
  NMOE_CPU_DISPATCH(rms_norm_forward, x, gain, eps, y, rstd);
}
void CpuBackend::rms_norm_backward(Tensor x, Tensor gain, Tensor rstd, Tensor dy, Tensor dx, Tensor dgain,
                                   bool accumulate_dx) {
  NMOE_CPU_DISPATCH(rms_norm_backward, x, gain, rstd, dy, dx, dgain, accumulate_dx);
}
void CpuBackend::activation_forward(Activation kind, Tensor pre, Tensor row_weight, Tensor h) {
  NMOE_CPU_DISPATCH(activation_forward, kind, pre, row_weight, h);
}
void CpuBackend::activation_backward(Activation kind, Tensor pre, Tensor row_weight, Tensor dh, Tensor dpre,
                                     Tensor drow_weight) {
  NMOE_CPU_DISPATCH(activation_backward, kind, pre, row_weight, dh, dpre, drow_weight);
}
void CpuBackend::rope_forward(const RopeArgs& args) { NMOE_CPU_DISPATCH(rope_forward, args); }
void CpuBackend::rope_backward(const RopeArgs& args) { NMOE_CPU_DISPATCH(rope_backward, args); }
void CpuBackend::attention_forward(const AttentionForward& args) { NMOE_CPU_DISPATCH(attention_forward, args); }
void CpuBackend::attention_backward(const AttentionBackward& args) { NMOE_CPU_DISPATCH(attention_backward, args); }
void CpuBackend::mla_expand_forward(Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  NMOE_CPU_DISPATCH(mla_expand_forward, kv, k_rope, k, v);
}
void CpuBackend::mla_expand_backward(Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) {
  NMOE_CPU_DISPATCH(mla_expand_backward, dk, dv, dkv, dk_rope);
}
void CpuBackend::cache_write(const CacheWrite& args) { NMOE_CPU_DISPATCH(cache_write, args); }
void CpuBackend::cached_attention(const CachedAttention& args) { NMOE_CPU_DISPATCH(cached_attention, args); }
void CpuBackend::mla_absorb_query(Tensor q, Tensor kv_up, Tensor latent_q) {
  NMOE_CPU_DISPATCH(mla_absorb_query, q, kv_up, latent_q);
}
void CpuBackend::mla_expand_output(Tensor latents, Tensor kv_up, Tensor out) {
  NMOE_CPU_DISPATCH(mla_expand_output, latents, kv_up, out);
}
void CpuBackend::router_forward(const RouterForward& args) { NMOE_CPU_DISPATCH(router_forward, args); }
void CpuBackend::router_backward(const RouterBackward& args) { NMOE_CPU_DISPATCH(router_backward, args); }
void CpuBackend::router_bias_update(Tensor counts, Tensor bias, double rate, Tensor grad_scale) {
  NMOE_CPU_DISPATCH(router_bias_update, counts, bias, rate, grad_scale);
}
void CpuBackend::moe_plan(Tensor top_idx, const MoePlan& plan, Tensor counts) {
  cpu::moe_plan(context_, top_idx, plan, counts);
}
void CpuBackend::moe_dispatch(Tensor x, const MoePlan& plan, Tensor rows) {
  NMOE_CPU_DISPATCH(moe_dispatch, x, plan, rows);
}
void CpuBackend::moe_combine(Tensor rows, const MoePlan& plan, Tensor y, bool accumulate) {
  NMOE_CPU_DISPATCH(moe_combine, rows, plan, y, accumulate);
}
void CpuBackend::moe_dispatch_weights(Tensor weights, const MoePlan& plan, Tensor row_weight) {
  NMOE_CPU_DISPATCH(moe_dispatch_weights, weights, plan, row_weight);
}
void CpuBackend::moe_combine_weights(Tensor row_weight, const MoePlan& plan, Tensor weights) {
  NMOE_CPU_DISPATCH(moe_combine_weights, row_weight, plan, weights);
}
void CpuBackend::head_loss(const HeadLoss& args) { NMOE_CPU_DISPATCH(head_loss, args); }
void CpuBackend::adamw_step(const AdamWStep& args) { NMOE_CPU_DISPATCH(adamw_step, args); }
void CpuBackend::muon_step(const MuonStep& args) { NMOE_CPU_DISPATCH(muon_step, args); }

#undef NMOE_CPU_DISPATCH

}  // namespace nmoe::cpu
