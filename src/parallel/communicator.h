// Communicator: how the ranks of a run meet. A rank is a device and what drives it.
//
// All ranks make the same calls in the same order, each from the one thread that drives it. No call returns before
// every rank has made it, except those on tensors, which enqueue work. Calls in different orders are a bug, and
// reported.
//
// When a rank fails, all calls of other ranks that it has not made, waiting or later, throw PeerFailure; a call that
// all ranks have made is completed. No wait is endless: a call that waits for another rank longer than that one asked
// for (set_patience) throws an Error (runtime) that says who waited for whom, in which call.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "ops/device.h"
#include "tensor/tensor.h"

namespace nmoe {

// Another rank, or the process that drives it, has failed; `what` names it, and its reason.
class PeerFailure : public Error {
 public:
  PeerFailure(int64_t rank, const std::string& reason, std::string remedy)
      : PeerFailure(fmt::format("rank {} failed: {}", rank, reason), std::move(remedy)) {}
  PeerFailure(const std::string& what, std::string remedy) : Error(ErrorKind::kRuntime, what, std::move(remedy)) {}
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int64_t index() const = 0;  // of this rank, from 0
  virtual int64_t count() const = 0;  // of ranks

  // The communicators of two groups of ranks, both numbered from 0: those of this process, a contiguous share of all
  // ranks that is equally large in each process; and those with this rank's index in every process, in the order of
  // processes. In a run of one process the former is this communicator itself. Ranks that meet through several
  // communicators have to make their calls of all of them in one order. What a call means to a run is said by Mesh
  // (parallel/mesh.h).
  virtual Communicator& process() = 0;
  virtual Communicator& counterparts() = 0;

  // Returns when every rank has called it.
  virtual void barrier() = 0;
  // Throws PeerFailure when another rank has failed. Does not wait for others.
  virtual void check() = 0;
  // Tells the other ranks that this one has failed. It may make no further calls.
  virtual void fail(const std::exception_ptr& failure) = 0;
  // Sets how long others wait for this rank from here on; at first the group's timeout. With a shorter patience the
  // rank also fails when it makes no call for that long, as when its device hangs.
  virtual void set_patience(std::chrono::milliseconds patience) = 0;
  // Registers `told`, which is called once when a rank has failed (at once if one has already), by whichever thread
  // learns of it; it must not wait. It stays registered until the object returned is destroyed, whose destructor waits
  // for a call that is under way.
  [[nodiscard]] virtual std::shared_ptr<void> on_failure(std::function<void()> told) = 0;
  // Keeps an object that other ranks may still use, such as memory that they access, until all ranks have ended.
  virtual void keep(std::shared_ptr<void> used_by_others) = 0;

  // Every rank's bytes in the order of ranks. They may have any length, but are copied several times: for small ones.
  virtual std::vector<std::string> all_gather(std::string_view bytes) = 0;
  // The same for values, whose padding must not matter.
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<T> all_gather_values(const T& value) {
    std::vector<T> values;
    for (const std::string& bytes : all_gather({reinterpret_cast<const char*>(&value), sizeof(T)})) {
      NMOE_CHECK(bytes.size() == sizeof(T), "{} bytes of a rank for a value of {}", bytes.size(), sizeof(T));
      std::memcpy(&values.emplace_back(), bytes.data(), sizeof(T));
    }
    return values;
  }

  // --- on tensors in the memory of the ranks' devices, enqueued on a lane of each: the i-th has the same dtype and
  // number of elements on every rank. Those without data (of counting arenas) are left alone, and then nobody is waited
  // for.

  // Replaces each by its sum over all ranks: rank 0's value, plus rank 1's, plus rank 2's and so on, each addition
  // rounded to the tensor's dtype. So all ranks get the same bits, and get them every time. F32, F64 or I32.
  virtual void all_reduce_sum(std::span<const Tensor> tensors, Lane lane) = 0;
  // Replaces each by rank 0's. Any dtype.
  virtual void broadcast(std::span<const Tensor> tensors, Lane lane) = 0;
};

// The communicator of a rank that is alone. It has no state: every call returns at once.
Communicator& single_rank();

// Stands in for the communicator of rank `index` of `count`, of which the first `in_process` are in its process, while
// storage is counted: it meets nobody.
std::unique_ptr<Communicator> make_null_communicator(int64_t index, int64_t count, int64_t in_process);

}  // namespace nmoe
