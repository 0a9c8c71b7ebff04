#include "ops/cuda/vendor/nccl.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"
#include "ops/cuda/runtime/memory.h"

namespace nmoe::cuda {
namespace {

constexpr const char* kRemedy =
    "install NCCL 2.28 or newer for CUDA 13 (NVIDIA's packages, or Python's nvidia-nccl-cu13), name the folder of its "
    "library in LD_LIBRARY_PATH, or start one process";
constexpr int64_t kFirstBytes = 128;  // of the first exchange, for each end

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw usage_error(fmt::format("libnccl.so.2 has no {}", name), kRemedy);
}

NcclLibrary load() {
  ::setenv("NCCL_NVLS_ENABLE", "0", /*replace=*/0);
  // Never closed: it keeps threads until the process ends.
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(NMOE_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw usage_error(fmt::format("GPUs of several processes need NCCL: {}", dlerror()), kRemedy);
  NcclLibrary result{};
  find(library, "ncclGetErrorString", result.get_error_string);
  find(library, "ncclGetLastError", result.get_last_error);
  find(library, "ncclGetUniqueId", result.get_unique_id);
  find(library, "ncclCommInitRank", result.comm_init_rank);
  find(library, "ncclCommDestroy", result.comm_destroy);
  find(library, "ncclCommAbort", result.comm_abort);
  find(library, "ncclGroupStart", result.group_start);
  find(library, "ncclGroupEnd", result.group_end);
  find(library, "ncclSend", result.send);
  find(library, "ncclRecv", result.recv);
  return result;
}

// What the ends tell each other: the id that the first made, and which device they are on.
struct End {
  ncclUniqueId id{};
  std::array<char, 64> host{};
  std::array<char, 32> device{};
};

End describe_end(int device_index, int64_t index) {
  End end;
  if (index == 0) {
    const ncclResult_t result = nccl().get_unique_id(&end.id);
    NMOE_CHECK(result == ncclSuccess, "ncclGetUniqueId: {}", nccl().get_error_string(result));
  }
  ::gethostname(end.host.data(), end.host.size() - 1);
  NMOE_CUDA_CHECK(cudaDeviceGetPCIBusId(end.device.data(), static_cast<int>(end.device.size()), device_index));
  return end;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();
  return library;
}

NcclLink::NcclLink(int device_index, cudaStream_t stream, int64_t index, int64_t count, const GatherAcross& gather)
    : device_index_(device_index) {
  const End mine = describe_end(device_index, index);
  std::vector<End> ends;
  for (const std::string& bytes : gather({reinterpret_cast<const char*>(&mine), sizeof(mine)})) {
    NMOE_CHECK(bytes.size() == sizeof(End), "{} bytes of an end of a link", bytes.size());
    std::memcpy(&ends.emplace_back(), bytes.data(), sizeof(End));
  }
  NMOE_CHECK(static_cast<int64_t>(ends.size()) == count, "{} ends of a link of {}", ends.size(), count);
  for (int64_t other = 0; other < count; ++other) {
    const End& end = ends[static_cast<size_t>(other)];
    if (other == index || end.host != mine.host || end.device != mine.device) continue;
    throw usage_error(fmt::format("processes {} and {} of host {} use the same GPU ({})", std::min(index, other),
                                  std::max(index, other), mine.host.data(), mine.device.data()),
                      "set LOCAL_RANK in every process to its number on its host, or give each GPUs of its own by "
                      "CUDA_VISIBLE_DEVICES");
  }
  check(nccl().comm_init_rank(&comm_, static_cast<int>(count), ends[0].id, static_cast<int>(index)),
        "ncclCommInitRank");
  buffer_ = DeviceMemory(device_index).allocate(2 * count * kFirstBytes);
  exchange(stream, [&] {
    for (int64_t other = 0; other < count; ++other) {
      if (other == index) continue;
      auto* const place = static_cast<std::byte*>(buffer_) + 2 * other * kFirstBytes;
      send(place, kFirstBytes, other);
      receive(place + kFirstBytes, kFirstBytes, other);
    }
  });
  NMOE_CUDA_CHECK(cudaStreamSynchronize(stream));
}

NcclLink::~NcclLink() {
  try_make_current(device_index_);
  if (aborter_.joinable()) {
    aborter_.join();
  } else if (comm_ != nullptr) {
    nccl().comm_destroy(comm_);
  }
  DeviceMemory(device_index_).release(buffer_, 0);
}

void NcclLink::check(ncclResult_t result, const char* call) const {
  NMOE_CHECK(result == ncclSuccess, "{}: {}: {}", call, nccl().get_error_string(result), nccl().get_last_error(comm_));
}

void NcclLink::exchange(cudaStream_t stream, const std::function<void()>& work) {
  {
    const std::lock_guard lock(mutex_);
    NMOE_CHECK(!aborted_, "an exchange between domains after one of them failed");
    exchanging_ = true;
  }
  const auto end_exchange = [this](void*) {
    const std::lock_guard lock(mutex_);
    exchanging_ = false;
    changed_.notify_all();
  };
  const std::unique_ptr<void, decltype(end_exchange)> end(this, end_exchange);
  stream_ = stream;
  check(nccl().group_start(), "ncclGroupStart");
  try {
    work();
  } catch (...) {
    nccl().group_end();
    throw;
  }
  check(nccl().group_end(), "ncclGroupEnd");
}

void NcclLink::send(const void* source, int64_t bytes, int64_t to) {
  check(nccl().send(source, static_cast<size_t>(bytes), ncclUint8, static_cast<int>(to), comm_, stream_), "ncclSend");
}

void NcclLink::receive(void* target, int64_t bytes, int64_t from) {
  check(nccl().recv(target, static_cast<size_t>(bytes), ncclUint8, static_cast<int>(from), comm_, stream_), "ncclRecv");
}

// By a thread of its own: NCCL ends what waits at once, but returns only when graphs that use the communicator are
// gone.
void NcclLink::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(aborted_, true)) return;
  try {
    aborter_ = std::thread([this] {
      {
        std::unique_lock waiting(mutex_);
        changed_.wait(waiting, [this] { return !exchanging_; });
      }
      try_make_current(device_index_);
      nccl().comm_abort(comm_);
    });
  } catch (...) {  // no thread is to be had: the process ends without (ThreadGroup::run)
  }
}

}  // namespace nmoe::cuda
