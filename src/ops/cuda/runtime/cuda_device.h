// A CUDA device: three lanes, each a stream with scratch of its own; memory of the device and page-locked memory of the
// host; recordings as CUDA graphs.
//
// Every method that calls CUDA makes the device current in the calling thread first, so that a thread may drive several
// devices in turn. Between lanes nothing is ordered but by order().
#pragma once

#include <array>
#include <memory>
#include <string>

#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/runtime/device_libraries.h"
#include "ops/cuda/runtime/events.h"
#include "ops/cuda/runtime/memory.h"
#include "ops/cuda/runtime/stream.h"
#include "ops/ops.h"
#include "ops/products/products.h"
#include "ops/sampling.h"

namespace nmoe::cuda {

class CudaDevice final : public Device {
 public:
  // index: as CUDA_VISIBLE_DEVICES leaves them, from 0. compute_dtype: BF16 or F32. Error (usage) when the machine has
  // no such device, one that these kernels were not compiled for, too old a driver, or, for BF16, no cuDNN or too old a
  // one. num_sms: as in ops/factory.h.
  CudaDevice(int index, DType compute_dtype, int num_sms);
  ~CudaDevice() override;

  int index() const override { return index_; }
  std::string description() const override;
  SoftwareVersions software() const override;
  double peak_flops() override;
  std::string peak_source() const override;

  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return host_memory_; }
  MemorySource& mapped_memory() override { return mapped_memory_; }
  std::optional<DeviceMemoryUse> memory_use() const override;
  void enable_peer_access(int index) override;
  std::unique_ptr<AcrossLink> link_across(int64_t index, int64_t count, const GatherAcross& gather) override;
  Arena& scratch(Lane lane) override { return state(lane).scratch; }

  bool lanes_overlap() const override { return true; }
  void order(Lane awaited, Lane waiting) override;
  std::unique_ptr<Recording> record(std::function<void()> work) override;
  std::unique_ptr<Event> make_event(Lane lane) override;
  std::unique_ptr<Marks> make_marks() override;
  std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) override;

  TokenSampler* token_sampler() override { return &token_sampler_; }
  const ProductAlgorithms* product_algorithms() const override { return &product_algorithms_; }

  void upload(Tensor destination, const void* host) override;
  void download(void* host, Tensor source) override;
  void begin_download(void* host, Tensor source) override;

 private:
  class Sampler final : public TokenSampler {
   public:
    explicit Sampler(CudaDevice& device) : device_(device) {}
    void sample_tokens(const SampleTokens& args) override;
    void penalise_logits(const PenaliseLogits& args) override;
    void pick_logits(const PickLogits& args) override;

   private:
    CudaDevice& device_;
  };
  // cuBLASLt's, as the device's libraries hold it.
  class Algorithms final : public ProductAlgorithms {
   public:
    explicit Algorithms(const CudaDevice& device) : device_(device) {}
    std::string identity() const override;
    std::vector<ProductUse> uses() const override;
    ProductTuning tune(const std::vector<ProductUse>& uses,
                       const std::function<void(const TunedProduct&)>& told) const override;

   private:
    const CudaDevice& device_;
  };
  struct LaneState {
    LaneState(CudaDevice& device, Lane lane, const char* scratch_name);
    CudaStream stream;
    Arena scratch;
    CudaOps fastest;
    InvariantCudaOps invariant;
  };
  // starts_early: as the context has it.
  Context context_of(cudaStream_t stream, bool starts_early) const;
  LaneState& state(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }
  cudaStream_t stream(Lane lane) { return state(lane).stream.get(); }
  Ops& lane_ops(Lane lane, Arithmetic arithmetic) override {
    if (arithmetic == Arithmetic::kFastest) return state(lane).fastest;
    return state(lane).invariant;
  }
  void make_current() const;

  int index_;
  DType compute_dtype_;
  std::string name_;  // of the hardware; known once the device is checked, and current from then on
  int num_sms_;       // that persistent kernels take
  DeviceLibraries& libraries_;
  DeviceMemory memory_;
  TransferMemory host_memory_;
  MappedMemory mapped_memory_;
  CudaEvent order_;                         // what order() records and waits for
  std::array<LaneState, kNumLanes> lanes_;  // in the order of kLanes; their scratch is of memory_
  Sampler token_sampler_{*this};
  Algorithms product_algorithms_{*this};
};

}  // namespace nmoe::cuda
