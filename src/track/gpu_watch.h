// What the host's NVIDIA GPUs do, once a second, through the driver's management library (NVML), which is loaded where
// there is one: this needs neither CUDA nor a device of the run's.
//
// NVML's names and structs are those of its API reference; what a driver or a GPU does not have is left out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "track/record.h"

namespace nmoe {

class GpuWatch {
 public:
  // Every `interval` a thread of the watch's own calls `take` with a record of step 0 that has gpu/GG/... of each GPU
  // (track/tags/gpu.h), GG being its number in NVML and nvidia-smi. It does nothing where `library` cannot be loaded
  // or finds no GPU.
  explicit GpuWatch(std::function<void(MetricRecord record)> take,
                    std::chrono::milliseconds interval = std::chrono::seconds(1),
                    const std::string& library = "libnvidia-ml.so.1");
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  bool is_watching() const { return thread_.joinable(); }

 private:
  class Library;
  void run();

  std::function<void(MetricRecord)> take_;
  std::chrono::milliseconds interval_;
  std::unique_ptr<Library> library_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nmoe
