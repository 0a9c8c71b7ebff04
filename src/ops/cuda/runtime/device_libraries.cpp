#include "ops/cuda/runtime/device_libraries.h"

#include <map>
#include <memory>
#include <mutex>

#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {

DeviceLibraries& device_libraries(int device_index) {
  struct Registry {
    std::mutex mutex;
    std::map<int, std::unique_ptr<DeviceLibraries>> of_index;
  };
  // Never destroyed: CUDA may be gone by the time that static objects are.
  static Registry& registry = *new Registry;
  const std::lock_guard lock(registry.mutex);
  auto& libraries = registry.of_index[device_index];
  if (!libraries) {
    make_current(device_index);
    libraries = std::make_unique<DeviceLibraries>(device_index);
  }
  return *libraries;
}

}  // namespace nmoe::cuda
