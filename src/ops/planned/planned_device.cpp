#include "ops/planned/planned_device.h"

#include <type_traits>
#include <utility>

#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/cuda/plans.h"
#include "ops/cuda/plans/invariant_products.h"

namespace nmoe::planned {
namespace {

class NoEvent final : public Event {
 public:
  void record() override {}
  bool reached() const override { return true; }
  void wait() const override {}
  void before(Lane) override {}
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

WeightRounding PlannedOps::weight_rounding(OperandFormat format) const {
  return cuda::weight_rounding(kernels_, compute_dtype_, format);
}

// Products that are others where they are batch-invariant and rows are few: those take no scratch (InvariantCudaOps).
template <class Arguments>
constexpr bool kHasInvariant =
    std::is_same_v<Arguments, LinearForward> || std::is_same_v<Arguments, LinearActivationForward> ||
    std::is_same_v<Arguments, GroupedLinearForward> || std::is_same_v<Arguments, GroupedActivationForward>;

template <class Arguments>
void PlannedOps::count(const Arguments& args) {
  check(args);
  if constexpr (kHasInvariant<Arguments>) {
    if (arithmetic() == Arithmetic::kBatchInvariant) {
      cuda::check_batch_invariant(args);
      if (!cuda::takes_training_kernels(kernels_, args)) return;
    }
  }
  if constexpr (cuda::Planned<Arguments>) {
    cuda::Planner planner{scratch(), kernels_};
    cuda::plan_operation(planner, args);
  }
}
#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void PlannedOps::name(const Arguments& args) { count(args); }
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
