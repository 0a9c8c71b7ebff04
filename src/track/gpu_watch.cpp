#include "track/gpu_watch.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/start_thread.h"
#include "track/metrics.h"
#include "track/tags/gpu.h"

namespace nmoe {
namespace {

// From NVML's API reference; a call returns 0 when it succeeds.
using NvmlDevice = struct OpaqueNvmlDevice*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned int gpu, memory;
};
struct NvmlField {
  unsigned int field, scope;
  long long timestamp, latency_us;
  int value_type, result;
  union {
    double f64;
    unsigned int u32;
    unsigned long u64;
    unsigned long long u128_low;
    long long i64;
  } value;
};
static_assert(sizeof(NvmlField) == 40);
constexpr int kTemperatureGpu = 0;
constexpr int kClockSm = 1, kClockMemory = 2;
constexpr int kEccCorrected = 0, kEccUncorrected = 1, kEccVolatile = 0;  // volatile: since the driver was loaded
constexpr unsigned int kNvlinkSentKib = 138, kNvlinkReceivedKib = 139, kAllLinks = std::numeric_limits<unsigned>::max();
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

}  // namespace

class GpuWatch::Library {
 public:
  // Null where there is no such library or no GPU.
  static std::unique_ptr<Library> open(const std::string& name) {
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    std::unique_ptr<Library> library(new Library(handle));
    return library->start() ? std::move(library) : nullptr;
  }
  ~Library() {
    if (is_initialised_) call<>("nvmlShutdown");
    ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void sample(MetricRecord& record) const {
    for (size_t gpu = 0; gpu < devices_.size(); ++gpu) {
      sample(devices_[gpu], gpu, record);
    }
  }

 private:
  explicit Library(void* handle) : handle_(handle) {}

  bool start() {
    is_initialised_ = call<>("nvmlInit_v2");
    unsigned int count = 0;
    if (!is_initialised_ || !call<unsigned int*>("nvmlDeviceGetCount_v2", &count)) return false;
    for (unsigned int i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      if (!call<unsigned int, NvmlDevice*>("nvmlDeviceGetHandleByIndex_v2", i, &device)) return false;
      devices_.push_back(device);
    }
    return !devices_.empty();
  }

  // Whether the library has the function and it succeeds.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, name));
    return function != nullptr && function(arguments...) == 0;
  }

  void sample(NvmlDevice device, size_t gpu, MetricRecord& record) const {
    const auto put = [&](const Metric& metric, double value) { record.put(metric, {gpu}, value); };
    unsigned int number = 0;
    unsigned long long large = 0;
    if (NvmlUtilization use{}; call<NvmlDevice, NvmlUtilization*>("nvmlDeviceGetUtilizationRates", device, &use)) {
      put(tags::kGpuUtilization, use.gpu);
    }
    if (NvmlMemory memory{}; call<NvmlDevice, NvmlMemory*>("nvmlDeviceGetMemoryInfo", device, &memory)) {
      put(tags::kGpuMemoryUsedGib, static_cast<double>(memory.used) / kGib);
      put(tags::kGpuMemoryTotalGib, static_cast<double>(memory.total) / kGib);
    }
    if (call<NvmlDevice, unsigned int*>("nvmlDeviceGetPowerUsage", device, &number))
      put(tags::kGpuPowerW, 1e-3 * number);
    if (call<NvmlDevice, unsigned int*>("nvmlDeviceGetEnforcedPowerLimit", device, &number)) {
      put(tags::kGpuPowerLimitW, 1e-3 * number);
    }
    if (call<NvmlDevice, int, unsigned int*>("nvmlDeviceGetTemperature", device, kTemperatureGpu, &number)) {
      put(tags::kGpuTemperatureC, number);
    }
    if (call<NvmlDevice, int, unsigned int*>("nvmlDeviceGetClockInfo", device, kClockSm, &number)) {
      put(tags::kGpuClockSmMhz, number);
    }
    if (call<NvmlDevice, int, unsigned int*>("nvmlDeviceGetClockInfo", device, kClockMemory, &number)) {
      put(tags::kGpuClockMemoryMhz, number);
    }
    if (call<NvmlDevice, unsigned long long*>("nvmlDeviceGetCurrentClocksThrottleReasons", device, &large)) {
      put(tags::kGpuThrottleReasons, static_cast<double>(large));
    }
    const auto ecc = [&](int kind) {
      return call<NvmlDevice, int, int, unsigned long long*>("nvmlDeviceGetTotalEccErrors", device, kind, kEccVolatile,
                                                             &large);
    };
    if (ecc(kEccCorrected)) put(tags::kGpuEccCorrected, static_cast<double>(large));
    if (ecc(kEccUncorrected)) put(tags::kGpuEccUncorrected, static_cast<double>(large));
    std::array<NvmlField, 2> links{};
    links[0] = {.field = kNvlinkSentKib, .scope = kAllLinks};
    links[1] = {.field = kNvlinkReceivedKib, .scope = kAllLinks};
    if (call<NvmlDevice, int, NvmlField*>("nvmlDeviceGetFieldValues", device, 2, links.data())) {
      if (links[0].result == 0)
        put(tags::kGpuNvlinkSentGib, static_cast<double>(links[0].value.u128_low) * 1024.0 / kGib);
      if (links[1].result == 0)
        put(tags::kGpuNvlinkReceivedGib, static_cast<double>(links[1].value.u128_low) * 1024.0 / kGib);
    }
  }

  void* handle_;
  bool is_initialised_ = false;
  std::vector<NvmlDevice> devices_;
};

GpuWatch::GpuWatch(std::function<void(MetricRecord)> take, std::chrono::milliseconds interval,
                   const std::string& library)
    : take_(std::move(take)), interval_(interval), library_(Library::open(library)) {
  if (library_) thread_ = start_thread("for the GPUs' state", [this] { run(); });
}

GpuWatch::~GpuWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GpuWatch::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stop_; })) {
    lock.unlock();
    MetricRecord record{.ts_ms = now_ms()};
    library_->sample(record);
    take_(std::move(record));
    lock.lock();
  }
}

}  // namespace nmoe
