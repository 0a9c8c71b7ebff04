// The CPU as a device: always linked, the default, and the oracle for all others. Its lanes are one: whatever is
// enqueued is done at once, by all threads of the pool.
#pragma once

#include "base/thread_pool.h"
#include "ops/cpu/context.h"
#include "ops/ops.h"
#include "tensor/page_memory.h"

namespace nmoe::cpu {

// The operations of operations.h for one compute dtype.
class CpuOps final : public Ops {
 public:
  CpuOps(Device& device, Lane lane, Arithmetic arithmetic, Context context, DType compute_dtype)
      : Ops(device, lane, arithmetic), context_(context), compute_dtype_(compute_dtype) {}

  DType compute_dtype() const override { return compute_dtype_; }
  WeightRounding weight_rounding(OperandFormat) const override {
    return compute_dtype_ == DType::kF32 ? WeightRounding::kInside : WeightRounding::kNone;
  }

#define NMOE_DECLARE_OVERRIDE(name, Arguments) void name(const Arguments& args) override;
  NMOE_OPERATIONS(NMOE_DECLARE_OVERRIDE)
#undef NMOE_DECLARE_OVERRIDE

 private:
  Context context_;
  DType compute_dtype_;
};

class CpuDevice final : public Device {
 public:
  // num_threads 0: one per available CPU. compute_dtype: F32 or F64.
  CpuDevice(int num_threads, DType compute_dtype);

  int index() const override { return 0; }
  std::string description() const override;
  SoftwareVersions software() const override { return {}; }
  double peak_flops() override;
  std::string peak_source() const override { return "measured: fused multiply-adds on all threads"; }
  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return memory_; }
  MemorySource& mapped_memory() override { return memory_; }
  std::optional<DeviceMemoryUse> memory_use() const override { return std::nullopt; }
  void enable_peer_access(int) override {}  // all of the process shares the host's memory
  std::unique_ptr<AcrossLink> link_across(int64_t, int64_t, const GatherAcross&) override { return nullptr; }
  Arena& scratch(Lane lane) override { return lanes_[static_cast<size_t>(lane)].scratch; }
  bool lanes_overlap() const override { return false; }
  void order(Lane, Lane) override {}
  std::unique_ptr<Recording> record(std::function<void()> work) override;
  std::unique_ptr<Event> make_event(Lane lane) override;
  std::unique_ptr<Marks> make_marks() override;
  std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) override;
  void upload(Tensor destination, const void* host) override;
  void download(void* host, Tensor source) override;
  void begin_download(void* host, Tensor source) override { download(host, source); }

 private:
  struct LaneState {
    LaneState(CpuDevice& device, Lane lane);
    Arena scratch;
    CpuOps fastest, invariant;
  };
  Ops& lane_ops(Lane lane, Arithmetic arithmetic) override {
    LaneState& state = lanes_[static_cast<size_t>(lane)];
    return arithmetic == Arithmetic::kFastest ? state.fastest : state.invariant;
  }

  DType compute_dtype_;
  PageMemory memory_;
  ThreadPool pool_;
  std::array<LaneState, kNumLanes> lanes_;  // in the order of kLanes
};

}  // namespace nmoe::cpu
