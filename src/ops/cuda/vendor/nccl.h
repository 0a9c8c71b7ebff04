// NCCL, found and loaded when it is first wanted: only GPUs of several processes need it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "ops/across.h"

namespace nmoe::cuda {

// The functions of libnccl.so.2 that this program calls.
struct NcclLibrary {
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) comm_init_rank;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
};

// Looks where the loader looks, then in the folder it was found in when this program was built. Error (usage) when it
// is nowhere. NVLink multicast is off, unless NCCL_NVLS_ENABLE is set.
const NcclLibrary& nccl();

// One device's end of a communicator of counterparts, one of each domain.
//
// NOTE: a communicator's first exchange must not be captured (NCCL 2.28.9 fails and corrupts its heap); the constructor
// makes it, with every other end. Graphs in which exchanges were captured go before the link does.
class NcclLink final : public AcrossLink {
 public:
  // Device::link_across, on the stream of that device, which is current.
  NcclLink(int device_index, cudaStream_t stream, int64_t index, int64_t count, const GatherAcross& gather);
  // Waits for the other ends, unless it was aborted.
  ~NcclLink() override;

  // Enqueues on `stream`, as one exchange, what `work` sends and receives. CheckFailure where NCCL fails, or after
  // abort().
  void exchange(cudaStream_t stream, const std::function<void()>& work);
  // Within it: sends to one end and receives from it match in their order.
  void send(const void* source, int64_t bytes, int64_t to);
  void receive(void* target, int64_t bytes, int64_t from);

  void abort() noexcept override;

 private:
  void check(ncclResult_t result, const char* call) const;

  const int device_index_;
  void* buffer_ = nullptr;  // of the first exchange
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;  // of the exchange that is enqueued
  std::mutex mutex_;
  std::condition_variable changed_;
  bool exchanging_ = false;  // a thread uses the communicator
  bool aborted_ = false;
  std::thread aborter_;  // NCCL waits there until graphs are gone
};

}  // namespace nmoe::cuda
