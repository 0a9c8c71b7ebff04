// Two GPUs, as NVML would tell of them. The second has neither ECC nor NVLink.
#include <cstring>

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;
};
struct Field {
  unsigned int field, scope;
  long long timestamp, latency_us;
  int value_type, result;
  unsigned long long value;
};

int number_of(void* device) { return static_cast<int>(reinterpret_cast<unsigned long>(device)); }

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = reinterpret_cast<void*>(index + 1ul);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* use) {
  *use = {90u + static_cast<unsigned>(number_of(device)), 1};
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {8ull << 30, 5ull << 30, 3ull << 30};
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned int* milliwatts) {
  *milliwatts = 650500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned int* celsius) {
  *celsius = 61;
  return sensor;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned int* mhz) {
  *mhz = clock == 1 ? 1500 : 2619;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 4;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int kind, int, unsigned long long* count) {
  *count = static_cast<unsigned long long>(10 + kind);
  return number_of(device) == 2 ? 3 : 0;
}
int nvmlDeviceGetFieldValues(void* device, int count, Field* fields) {
  for (int i = 0; i < count; ++i) {
    fields[i].result = number_of(device) == 2 ? 3 : 0;
    fields[i].value = fields[i].field == 138 && fields[i].scope == ~0u ? 1ull << 21 : 1ull << 20;
  }
  return 0;
}

}  // extern "C"
