// Communicator: how the ranks of a run meet. A rank is a device and what drives it.
//
// All ranks make the same calls in the same order, each from the one thread that drives it; no call returns before
// every rank has made it, except that work on tensors is enqueued. A wrong order is a bug and found as one.
//
// When a rank fails, the calls of all others that it has not made, those that wait and those to come, throw
// PeerFailure; a call that all have made is completed. Nobody waits for ever: a call that waits for another rank longer
// than that one asked for (set_patience) throws an Error (runtime) that says who waited for whom, in which call.
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

// Another rank failed: which, and with what. Or the process that drives it: `what` names that.
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

  // How the ranks of this process alone meet, its *domain*: an equal share of all ranks, contiguous, numbered from 0
  // there. In a run of one process it is this communicator itself. The ranks of a domain make their calls of both in
  // one order.
  virtual Communicator& domain() = 0;

  // Returns when every rank has called it.
  virtual void barrier() = 0;
  // Throws PeerFailure when another rank has failed. No meeting.
  virtual void check() = 0;
  // Tells the other ranks that this one has failed, before it has ended; it makes no further calls.
  virtual void fail(const std::exception_ptr& failure) = 0;
  // How long others wait for this rank, from here on; at first the group's timeout. With less than that, the rank also
  // fails where it makes no call for longer, as when its device hangs.
  virtual void set_patience(std::chrono::milliseconds patience) = 0;
  // Calls `told` once, when a rank has failed, by whichever thread learns of it, at once where one has: it must not
  // wait. Not any more when what is returned is gone, whose end waits for a call that is under way.
  [[nodiscard]] virtual std::shared_ptr<void> on_failure(std::function<void()> told) = 0;
  // Keeps what other ranks may still use, such as memory that they reach, until all ranks have ended.
  virtual void keep(std::shared_ptr<void> used_by_others) = 0;

  // Every rank's bytes in the order of ranks; of any length, but meant for little: they are copied several times.
  virtual std::vector<std::string> all_gather(std::string_view bytes) = 0;
  // The same for values, in which padding must not matter.
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
  // The same over those ranks alone that have this one's index in their domains, one of each domain, in the order of
  // domains; only these need to have tensors alike. In a run of one domain it leaves all as it is.
  virtual void all_reduce_sum_across(std::span<const Tensor> tensors, Lane lane) = 0;
  // Replaces each by rank 0's. Any dtype.
  virtual void broadcast(std::span<const Tensor> tensors, Lane lane) = 0;
};

// The one of a rank that is alone. It has no state: every call returns at once.
Communicator& single_rank();

// Stands in for rank `index` of `count`, of which the first `in_domain` are its domain, while storage is counted:
// nobody is met.
std::unique_ptr<Communicator> make_unmet_ranks(int64_t index, int64_t count, int64_t in_domain);

}  // namespace nmoe
