// A device that is another one, but for what is overridden: its operations.
#pragma once

#include "ops/ops.h"

namespace nmoe::checked {

class WrappedDevice : public Device {
 public:
  // `device` outlives it.
  explicit WrappedDevice(Device& device) : device_(device) {}
  Device& wrapped() const { return device_; }

  int index() const override { return device_.index(); }
  std::string description() const override { return device_.description(); }
  SoftwareVersions software() const override { return device_.software(); }
  double peak_flops() override { return device_.peak_flops(); }
  std::string peak_source() const override { return device_.peak_source(); }
  MemorySource& memory() override { return device_.memory(); }
  MemorySource& host_memory() override { return device_.host_memory(); }
  MemorySource& mapped_memory() override { return device_.mapped_memory(); }
  std::optional<DeviceMemoryUse> memory_use() const override { return device_.memory_use(); }
  void enable_peer_access(int index) override { device_.enable_peer_access(index); }
  std::unique_ptr<AcrossLink> link_across(int64_t index, int64_t count, const GatherAcross& gather) override {
    return device_.link_across(index, count, gather);
  }
  Arena& scratch(Lane lane) override { return device_.scratch(lane); }
  bool lanes_overlap() const override { return device_.lanes_overlap(); }
  void order(Lane awaited, Lane waiting) override { device_.order(awaited, waiting); }
  std::unique_ptr<Recording> record(std::function<void()> work) override { return device_.record(std::move(work)); }
  std::unique_ptr<Event> make_event(Lane lane) override { return device_.make_event(lane); }
  std::unique_ptr<Marks> make_marks() override { return device_.make_marks(); }
  std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) override {
    return device_.make_prefetch(destination, arena);
  }
  TokenSampler* token_sampler() override { return device_.token_sampler(); }
  const ProductAlgorithms* product_algorithms() const override { return device_.product_algorithms(); }
  void upload(Tensor destination, const void* host) override { device_.upload(destination, host); }
  void download(void* host, Tensor source) override { device_.download(host, source); }
  void begin_download(void* host, Tensor source) override { device_.begin_download(host, source); }

 private:
  Device& device_;
};

}  // namespace nmoe::checked
