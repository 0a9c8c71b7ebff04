// Counts what this process asks of CUDA's driver, by the driver's own account: CUPTI's callbacks.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace nmoe::test {

// Calls by function name, as "cuGraphLaunch".
using CallCounts = std::map<std::string, int64_t>;

// Counts from its construction on, calls of all threads. One at a time.
class ApiCalls {
 public:
  ApiCalls();
  ~ApiCalls();
  ApiCalls(const ApiCalls&) = delete;
  ApiCalls& operator=(const ApiCalls&) = delete;

  // Since the last take().
  CallCounts take();

 private:
  static void CUPTIAPI on_call(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);

  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::mutex mutex_;  // guards what follows
  CallCounts counts_;
};

// Calls whose names begin so: versions of one function differ in their ends.
int64_t count_of(const CallCounts& counts, const std::string& prefix);

inline bool is_allocation(const std::string& name) {
  return name.find("Alloc") != std::string::npos || name.find("MemFree") != std::string::npos ||
         name.find("MemCreate") != std::string::npos || name.find("MemMap") != std::string::npos;
}
inline bool is_wait(const std::string& name) { return name.find("Synchronize") != std::string::npos; }

}  // namespace nmoe::test
