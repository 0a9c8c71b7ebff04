#include "ops/cpu/cpu_device.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "ops/contracts/checks.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/peak.h"

namespace nmoe::cpu {

#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void CpuOps::name(const Arguments& args) {  \
    check(args);                              \
    if (compute_dtype_ == DType::kF32) {      \
      cpu::name<float>(context_, args);       \
    } else {                                  \
      cpu::name<double>(context_, args);      \
    }                                         \
  }
NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

CpuDevice::LaneState::LaneState(CpuDevice& device, Lane lane)
    : scratch("scratch"),
      fastest(device, lane, Arithmetic::kFastest, {.pool = device.pool_, .scratch = scratch}, device.compute_dtype_),
      invariant(device, lane, Arithmetic::kBatchInvariant,
                {.pool = device.pool_, .scratch = scratch, .batch_invariant = true}, device.compute_dtype_) {}

CpuDevice::CpuDevice(int num_threads, DType compute_dtype)
    : compute_dtype_(compute_dtype),
      pool_(num_threads),
      lanes_{LaneState(*this, Lane::kCompute), LaneState(*this, Lane::kCopy), LaneState(*this, Lane::kCommunication)} {
  NMOE_CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kF64, "the CPU computes in F32 or F64, not {}",
             dtype_name(compute_dtype));
}

std::string CpuDevice::description() const {
  return fmt::format("CPU, {} thread{}, {}, {}", pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s",
                     compute_dtype_ == DType::kF32 ? "fp32" : "fp64", widest_vectors());
}

double CpuDevice::peak_flops() { return measure_peak_flops(pool_, compute_dtype_); }

std::unique_ptr<Recording> CpuDevice::record(std::function<void()> work) {
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

std::unique_ptr<Event> CpuDevice::make_event(Lane) {
  // Whatever was enqueued is done.
  class Reached final : public Event {
   public:
    void record() override {}
    bool reached() const override { return true; }
    void wait() const override {}
    void before(Lane) override {}
  };
  return std::make_unique<Reached>();
}

std::unique_ptr<Marks> CpuDevice::make_marks() {
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
  return std::make_unique<ClockMarks>();
}

std::unique_ptr<Prefetch> CpuDevice::make_prefetch(Tensor destination, Arena&) {
  class CopyOnTake final : public Prefetch {
   public:
    CopyOnTake(CpuDevice& device, Tensor destination) : device_(device), destination_(destination) {}
    void send(const void* host) override { host_ = host; }
    void take() override { device_.upload(destination_, host_); }

   private:
    CpuDevice& device_;
    Tensor destination_;
    const void* host_ = nullptr;
  };
  return std::make_unique<CopyOnTake>(*this, destination);
}

void CpuDevice::upload(Tensor destination, const void* host) {
  if (counting()) return;
  std::memcpy(destination.raw(), host, static_cast<size_t>(destination.num_bytes()));
}

void CpuDevice::download(void* host, Tensor source) {
  if (counting()) return;
  std::memcpy(host, source.raw(), static_cast<size_t>(source.num_bytes()));
}

}  // namespace nmoe::cpu
