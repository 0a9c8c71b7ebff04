// What is kept for a device as long as the process lives: NVIDIA's libraries' handles, choices of algorithms and
// compiled kernels, and which other devices' memory it reaches.
#pragma once

#include <mutex>
#include <set>

#include "ops/cuda/vendor/cublaslt.h"
#include "ops/cuda/vendor/cudnn_attention.h"

namespace nmoe::cuda {

// Of one physical device. All CudaDevice objects of its index share it, one after another or side by side: a run counts
// its scratch on one, with which it compiles the kernels that the next one then has. Thread-safe, as its members are.
struct DeviceLibraries {
  explicit DeviceLibraries(int device_index) : cudnn_attention(device_index) {}

  // Calls `enable` unless it was called before for that device. Thread-safe.
  template <class Enable>
  void reach_once(int peer_index, const Enable& enable) {
    const std::lock_guard lock(mutex);
    if (reached.contains(peer_index)) return;
    enable();
    reached.insert(peer_index);
  }

  std::mutex mutex;
  std::set<int> reached;  // indices of devices
  CublasLt cublas_lt{product_table()};
  CudnnAttention cudnn_attention;
};

// Made at the first call for an index, which makes that device current; kept until the process ends. Thread-safe.
DeviceLibraries& device_libraries(int device_index);

}  // namespace nmoe::cuda
