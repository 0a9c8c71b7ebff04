// A device that only counts: it stands for a CUDA part that is not here, so that a plan can be made anywhere. Arenas on
// it stay counting ones; of operations it makes the plans that CUDA's would run by (ops/cuda/plans.h), nothing else.
#pragma once

#include <array>

#include "ops/cuda/kernel_set.h"
#include "ops/ops.h"
#include "ops/planned/gpu_part.h"

namespace nmoe::planned {

class PlannedOps final : public Ops {
 public:
  PlannedOps(Device& device, Lane lane, Arithmetic arithmetic, DType compute_dtype, cuda::KernelSet kernels)
      : Ops(device, lane, arithmetic), compute_dtype_(compute_dtype), kernels_(kernels) {}

  DType compute_dtype() const override { return compute_dtype_; }
  WeightRounding weight_rounding(OperandFormat format) const override;
#define NMOE_DECLARE_OVERRIDE(name, Arguments) void name(const Arguments& args) override;
  NMOE_OPERATIONS(NMOE_DECLARE_OVERRIDE)
#undef NMOE_DECLARE_OVERRIDE

 private:
  template <class Arguments>
  void count(const Arguments& args);

  DType compute_dtype_;
  cuda::KernelSet kernels_;
};

class PlannedDevice final : public Device {
 public:
  // compute_dtype: BF16 or F32.
  PlannedDevice(GpuPart part, DType compute_dtype);

  int index() const override { return 0; }
  std::string description() const override { return part_.name + ", planned"; }
  SoftwareVersions software() const override { return {}; }
  double peak_flops() override { return cuda::peak_flops(kernels(), compute_dtype_); }
  std::string peak_source() const override { return "NVIDIA's datasheet"; }

  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return host_memory_; }
  MemorySource& mapped_memory() override { return host_memory_; }
  std::optional<DeviceMemoryUse> memory_use() const override;
  void enable_peer_access(int) override {}
  std::unique_ptr<AcrossLink> link_across(int64_t, int64_t, const GatherAcross&) override { return nullptr; }
  Arena& scratch(Lane lane) override { return lanes_[static_cast<size_t>(lane)].scratch; }

  bool lanes_overlap() const override { return true; }
  void order(Lane, Lane) override {}
  std::unique_ptr<Recording> record(std::function<void()> work) override;
  std::unique_ptr<Event> make_event(Lane lane) override;
  std::unique_ptr<Marks> make_marks() override;
  std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) override;

  void upload(Tensor, const void*) override {}
  void download(void*, Tensor) override {}
  void begin_download(void*, Tensor) override {}

 private:
  // There is none to be had.
  class NoMemory final : public MemorySource {
   public:
    explicit NoMemory(bool on_device) : on_device_(on_device) {}
    void* allocate(int64_t bytes) override;
    void release(void*, int64_t) noexcept override {}
    int64_t allocation_bytes(int64_t bytes) const override {
      return on_device_ ? cuda::device_allocation_bytes(bytes) : bytes;
    }

   private:
    bool on_device_;
  };
  struct LaneState {
    LaneState(PlannedDevice& device, Lane lane, const char* scratch_name)
        : scratch(scratch_name),
          fastest(device, lane, Arithmetic::kFastest, device.compute_dtype_, device.kernels()),
          invariant(device, lane, Arithmetic::kBatchInvariant, device.compute_dtype_, device.kernels()) {}
    Arena scratch;
    PlannedOps fastest, invariant;
  };
  cuda::KernelSet kernels() const { return {.major = part_.compute_major}; }
  Ops& lane_ops(Lane lane, Arithmetic arithmetic) override {
    LaneState& state = lanes_[static_cast<size_t>(lane)];
    return arithmetic == Arithmetic::kFastest ? state.fastest : state.invariant;
  }

  GpuPart part_;
  DType compute_dtype_;
  NoMemory memory_{true}, host_memory_{false};
  std::array<LaneState, kNumLanes> lanes_;  // in the order of kLanes
};

}  // namespace nmoe::planned
