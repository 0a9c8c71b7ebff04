#include "ops/planned/planned_device.h"

#include <utility>

#include "base/error.h"
#include "ops/cuda/across_scratch.h"
#include "ops/cuda/cached_attention_scratch.h"
#include "ops/mla_assembly.h"

namespace nmoe::planned {
namespace {

// What an operation claims: its arena, and which kernels there are.
struct Claims {
  Arena& scratch;
  cuda::KernelSet kernels;
};

// One for each struct of arguments, so that an operation without one does not compile.
#define NMOE_NO_SCRATCH(Arguments) \
  void claim_scratch(const Claims&, const Arguments&) {}
NMOE_NO_SCRATCH(Fill)
NMOE_NO_SCRATCH(FillTruncatedNormal)
NMOE_NO_SCRATCH(Copy)
NMOE_NO_SCRATCH(SplitWeight)
NMOE_NO_SCRATCH(JoinWeight)
NMOE_NO_SCRATCH(AddTime)
NMOE_NO_SCRATCH(SumInOrder)
NMOE_NO_SCRATCH(ClipScale)
NMOE_NO_SCRATCH(AbsMax)
NMOE_NO_SCRATCH(Quantize)
NMOE_NO_SCRATCH(WidenRows)
NMOE_NO_SCRATCH(EmbeddingForward)
NMOE_NO_SCRATCH(RmsNormForward)
NMOE_NO_SCRATCH(ActivationForward)
NMOE_NO_SCRATCH(ActivationBackward)
NMOE_NO_SCRATCH(Rope)
NMOE_NO_SCRATCH(TreeAttention)
NMOE_NO_SCRATCH(CacheWrite)
NMOE_NO_SCRATCH(RouterBiasUpdate)
NMOE_NO_SCRATCH(DivideMoeRows)
NMOE_NO_SCRATCH(MoeDispatch)
NMOE_NO_SCRATCH(MoeCombine)
NMOE_NO_SCRATCH(MoeDispatchWeights)
NMOE_NO_SCRATCH(MoeCombineWeights)
NMOE_NO_SCRATCH(AdamWSteps)
NMOE_NO_SCRATCH(PeerBarrier)
NMOE_NO_SCRATCH(ExchangeSend)
NMOE_NO_SCRATCH(ExchangeReturn)
NMOE_NO_SCRATCH(ExchangeCollect)
NMOE_NO_SCRATCH(ExchangeReturnCopies)
NMOE_NO_SCRATCH(PeerSum)
NMOE_NO_SCRATCH(PeerSpread)
NMOE_NO_SCRATCH(PeerFetch)
#undef NMOE_NO_SCRATCH

// Those that claim what cuda::claim says, whatever their arguments.
#define NMOE_CLAIMED_SCRATCH(Arguments)                             \
  void claim_scratch(const Claims& claims, const Arguments& args) { \
    ArenaScope scope(claims.scratch);                               \
    cuda::claim(scope, args);                                       \
  }
NMOE_CLAIMED_SCRATCH(RmsNormBackward)
NMOE_CLAIMED_SCRATCH(RouterForward)
NMOE_CLAIMED_SCRATCH(BuildExchangePlan)
NMOE_CLAIMED_SCRATCH(BuildMoePlan)
NMOE_CLAIMED_SCRATCH(SumAcross)
NMOE_CLAIMED_SCRATCH(SumsOfSquares)
NMOE_CLAIMED_SCRATCH(MeasureRounding)
NMOE_CLAIMED_SCRATCH(MeasureProduct)
NMOE_CLAIMED_SCRATCH(CachedAttention)
#undef NMOE_CLAIMED_SCRATCH

void claim_scratch(const Claims& claims, const Sum& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_partials(scope, args.x, DType::kF64);
}
void claim_scratch(const Claims& claims, const CountNonFinite& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_partials(scope, args.x, DType::kI32);
}

void claim_product(const Claims& claims) {
  ArenaScope scope(claims.scratch);
  cuda::claim_product_workspace(scope);
}
void claim_scratch(const Claims& claims, const LinearForward& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_linear(scope, args.rounding, args.x);
}
void claim_scratch(const Claims& claims, const LinearActivationForward& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_linear(scope, args.rounding, args.x);
}
void claim_scratch(const Claims& claims, const LinearBackwardInput& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_linear(scope, args.rounding, args.dy);
}
void claim_scratch(const Claims& claims, const LinearBackwardWeight&) { claim_product(claims); }

void claim_scratch(const Claims& claims, const HeadLoss& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim(scope, args);
  if (args.x.dim(0) > 0) claim_product(claims);
}

void claim_scratch(const Claims& claims, const EmbeddingBackward& args) {
  if (args.ids.dim(0) == 0 || args.dtable.dim(1) == 0) return;
  ArenaScope scope(claims.scratch);
  cuda::claim(scope, args);
}

void claim_scratch(const Claims& claims, const GroupedLinearForward& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_row_codes(scope, args.rounding, args.x);
}
void claim_scratch(const Claims& claims, const GroupedLinearBackwardInput& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_row_codes(scope, args.rounding, args.dy);
}
void claim_scratch(const Claims& claims, const GroupedActivationForward& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim(scope, args, cuda::fuses_activation(claims.kernels, args));
}
void claim_scratch(const Claims& claims, const GroupedActivationBackward& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim(scope, args, cuda::fuses_activation_backward(claims.kernels, args));
}
void claim_scratch(const Claims& claims, const GroupedLinearBackwardWeight& args) {
  if (args.dw.num_elements() == 0) return;
  ArenaScope scope(claims.scratch);
  if (args.rounding.format == OperandFormat::kFp8) {
    cuda::claim_fp8(scope, args);
    return;
  }
  cuda::claim(scope, args, cuda::is_sm90(claims.kernels, args), cuda::is_sm100(claims.kernels, args));
}

void claim_scratch(const Claims& claims, const MlaCachedAttention& args) {
  ArenaScope scope(claims.scratch);
  claim_scratch(claims, cuda::claim_latents(scope, args));
}
void claim_scratch(const Claims& claims, const RouteTokens& args) {
  claim_scratch(claims, args.router());
  claim_scratch(claims, BuildMoePlan{.top_idx = args.top_idx, .plan = args.plan, .counts = {}});
}
void claim_scratch(const Claims& claims, const RouterBackward& args) {
  ArenaScope scope(claims.scratch);
  cuda::claim_sequence_loads(scope, args.loss, args.logits);
}
void claim_scratch(const Claims& claims, const MuonStep& args) {
  if (args.w.num_elements() == 0) return;
  ArenaScope scope(claims.scratch);
  cuda::claim(scope, args);
}

void claim_scratch(const Claims& claims, const AttentionForward& args) {
  if (args.q.dim(0) == 0) return;
  ArenaScope scope(claims.scratch);
  const cuda::AttentionEngine engine = cuda::attention_engine(claims.kernels, args);
  if (engine == cuda::AttentionEngine::kPlain) {
    cuda::claim_spans(scope, args.q.dim(0));
  } else {
    cuda::claim_first_keys(scope, args.shape);
    if (engine == cuda::AttentionEngine::kCudnn) cuda::claim_attention_forward(scope);
  }
}
void claim_scratch(const Claims& claims, const AttentionBackward& args) {
  if (args.q.dim(0) == 0) return;
  ArenaScope scope(claims.scratch);
  const cuda::AttentionEngine engine = cuda::attention_engine(claims.kernels, args);
  if (engine == cuda::AttentionEngine::kSm90) {
    cuda::claim_first_keys(scope, args.shape);
    cuda::claim_sm90(scope, args.shape, args.q);
  } else if (engine == cuda::AttentionEngine::kCudnn) {
    cuda::claim_first_keys(scope, args.shape);
    const cuda::AttentionSizes sizes = cuda::attention_sizes(args.shape, args.q, args.k, args.v);
    cuda::claim_attention_backward(scope, sizes, cuda::attention_part(sizes));  // the first part is the largest
  } else {
    cuda::claim_spans(scope, args.q.dim(0));
    scope.allocate(DType::kF32, args.lse.shape());
  }
}

void claim_scratch(const Claims& claims, const MlaAttentionForward& args) {
  if (args.q.dim(0) == 0) return;
  ArenaScope scope(claims.scratch);
  if (cuda::sm90_attention_takes(claims.kernels, args)) {
    cuda::claim_first_keys(scope, args.shape);
  } else {
    claim_scratch(claims, claim_assembled(scope, args));
  }
}
void claim_scratch(const Claims& claims, const MlaAttentionBackward& args) {
  if (args.q.dim(0) == 0) return;
  ArenaScope scope(claims.scratch);
  if (cuda::sm90_attention_takes(claims.kernels, args)) {
    cuda::claim_shared_key_gradients(scope, args);
    cuda::claim_first_keys(scope, args.shape);
    cuda::claim_sm90(scope, args.shape, args.q);
  } else {
    claim_scratch(claims, claim_assembled(scope, args));
  }
}

void claim_scratch(const Claims& claims, const MlaTreeAttention& args) {
  ArenaScope scope(claims.scratch);
  claim_assembled(scope, args);
}

// On Blackwell: with what lies between the product and the activation.
template <class Arguments>
void claim_block_product(const Claims& claims, const Arguments& args) {
  ArenaScope scope(claims.scratch);
  if constexpr (std::is_same_v<Arguments, GroupedActivationBackward>) cuda::claim(scope, args, /*fused=*/false);
  cuda::claim_block_product(scope, args);
}

// Of a whole operation.
template <class Arguments>
void claim_operation(const Claims& claims, const Arguments& args) {
  if constexpr (requires { args.rounding; }) {
    if (cuda::multiplies_blocks(claims.kernels, args.rounding)) return claim_block_product(claims, args);
    if (cuda::is_emulated(claims.kernels, args.rounding)) {
      ArenaScope scope(claims.scratch);
      return claim_scratch(claims, cuda::claim_widened(scope, args).args);
    }
  }
  claim_scratch(claims, args);
}

class NoEvent final : public Event {
 public:
  void record() override {}
  bool reached() const override { return true; }
  void wait() const override {}
};

class NoMarks final : public Marks {
 public:
  void set(size_t) override {}
  double ms_between(size_t, size_t) const override { return 0.0; }
};

class NoPrefetch final : public Prefetch {
 public:
  void send(const void*) override {}
  void take() override {}
};

}  // namespace

#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void PlannedOps::name(const Arguments& args) { claim_operation({scratch(), kernels_}, args); }
NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

PlannedDevice::PlannedDevice(GpuPart part, DType compute_dtype)
    : part_(std::move(part)),
      compute_dtype_(compute_dtype),
      lanes_{LaneState(*this, Lane::kCompute, "scratch"), LaneState(*this, Lane::kCopy, "copy scratch"),
             LaneState(*this, Lane::kCommunication, "communication scratch")} {
  NMOE_CHECK(compute_dtype == DType::kBF16 || compute_dtype == DType::kF32, "CUDA computes in BF16 or F32, not {}",
             dtype_name(compute_dtype));
}

std::optional<DeviceMemoryUse> PlannedDevice::memory_use() const {
  return DeviceMemoryUse{.used_bytes = kGpuContextBytes, .free_bytes = part_.memory_bytes - kGpuContextBytes};
}

void* PlannedDevice::NoMemory::allocate(int64_t bytes) {
  NMOE_CHECK(false, "{} bytes of a device that only counts", bytes);
  return nullptr;
}

std::unique_ptr<Recording> PlannedDevice::record(std::function<void()>) {
  NMOE_CHECK(false, "a recording on a device that only counts");
  return nullptr;
}

std::unique_ptr<Event> PlannedDevice::make_event(Lane) { return std::make_unique<NoEvent>(); }

std::unique_ptr<Marks> PlannedDevice::make_marks() { return std::make_unique<NoMarks>(); }

std::unique_ptr<Prefetch> PlannedDevice::make_prefetch(Tensor destination, Arena& arena) {
  arena.allocate(destination.dtype(), destination.shape());  // where the next content waits
  return std::make_unique<NoPrefetch>();
}

}  // namespace nmoe::planned
