// Ranks that are threads of this process, on devices whose memory is the host's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"

namespace nmoe {

// How long a rank waits for another before it gives the run up.
inline constexpr std::chrono::milliseconds kDefaultRankTimeout = std::chrono::minutes(10);
// How long after a failure ranks have to end by themselves.
inline constexpr std::chrono::milliseconds kGracePeriod = std::chrono::seconds(3);

// What the ranks share. Outlives their communicators' use, and all that they keep(). Ranks are numbered from 0 here;
// messages add `first_rank`.
class ThreadGroup {
 public:
  explicit ThreadGroup(int64_t count, std::chrono::milliseconds timeout = kDefaultRankTimeout, int64_t first_rank = 0);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // To be used by one thread at a time.
  Communicator& communicator(int64_t rank);

  // What a rank brings to a call. `name` is a literal; `tensors` belong to the caller, who stays until all are done
  // with them.
  struct Call {
    std::string_view name;
    std::string bytes = {};
    std::span<const Tensor> tensors = {};
    bool alike = true;    // whether all ranks have to bring as many tensors, of the same dtypes and sizes
    bool bounded = true;  // whether who comes late is given up
  };
  // A call that rank 0 completes for all, beside those of Communicator: when all ranks have come, alike, rank 0 calls
  // `complete` with what each brought, in their order, and may read and write all of it. Nobody returns before it has.
  using Completion = std::function<void(std::span<const Call* const>)>;
  void together(int64_t rank, Call call, const Completion& complete);

  // Calls `drive` once for each rank: rank 0 on the calling thread, the others on threads of their own, from which
  // signals to stop (base/signals.h) are kept. What is thrown goes to `on_failure`, then to fail(). Returns when all
  // have left.
  //
  // A thread watches over them. A rank that makes no call for longer than its patience, by which others would have
  // given up, fails. After a failure ranks have kGracePeriod to leave, or the timeout, where that is less; if one has
  // not by then, the failure and that rank are printed to stderr, `last_words` gets both, and the process ends with
  // status 1: threads cannot be ended from outside.
  using Failed = std::function<void(int64_t rank, const std::exception_ptr& failure)>;
  using LastWords = std::function<void(const std::string& reason)>;
  void run(const std::function<void(int64_t rank)>& drive, const Failed& on_failure, const LastWords& last_words = {});

  // The rank makes no further calls: it ended (left), or failed and ends. Who waits for it learns of it at once. From
  // any thread.
  void leave(int64_t rank);
  // A PeerFailure is passed on as it is: it says itself who failed.
  void fail(int64_t rank, std::exception_ptr failure);
  // What a rank failed with before any other did; null: none has failed. A PeerFailure, of a rank elsewhere, only where
  // no rank failed by itself.
  std::exception_ptr first_failure() const;

 private:
  class Member;
  class InCall;
  struct Reading;
  struct Failure {
    int64_t rank;
    std::exception_ptr exception;
  };

  void meet(Member& self, Call call, bool reads_peers);
  bool all_met(int64_t meeting) const;
  void wait_for_readers(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void throw_peer_failure() const;
  void check() const;
  void keep(std::shared_ptr<void> used_by_others);
  std::shared_ptr<void> on_failure(std::function<void()> told);
  void tell();
  bool all_left() const;
  std::optional<Error> find_silent(int64_t& rank);
  void watch(const Failed& on_failure, const LastWords& last_words = {});
  void check_not_left(const Member& self, const Member& missing) const;
  [[noreturn]] void give_up(std::unique_lock<std::mutex>& lock, const Member& self, const Member& missing);
  void check_same_call(const Member& self);
  void fail_locked(int64_t rank, std::exception_ptr failure);
  void all_reduce_sum(Member& self, std::span<const Tensor> tensors);
  void broadcast(Member& self, std::span<const Tensor> tensors);

  const std::chrono::milliseconds timeout_;
  const int64_t first_rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable ended_;                 // a rank left or failed
  std::vector<std::unique_ptr<Member>> members_;  // by rank
  std::optional<Failure> failure_;                // the first
  int64_t num_readers_ = 0;                       // ranks that read and write tensors of others just now
  std::vector<std::shared_ptr<void>> kept_;
  // Who wants to be told of a failure; each call is guarded by its own mutex, and is made once.
  struct Told {
    std::mutex mutex;
    std::function<void()> call;
  };
  std::vector<std::weak_ptr<Told>> told_;
};

// What an exception says; "" where it has no remedy.
std::string reason_of(const std::exception_ptr& failure);
std::string remedy_of(const std::exception_ptr& failure);
bool is_peer_failure(const std::exception_ptr& failure);

// Calls `drive` once for each of `count` ranks, all of this process, and returns when all have returned (ThreadGroup's
// run). When one throws, the others are told by their communicators; what was thrown first is rethrown here after all
// have ended (ThreadGroup::run). With one rank this is a call of `drive` with single_rank().
void run_ranks(int64_t count, std::chrono::milliseconds timeout, const std::function<void(Communicator&)>& drive,
               const ThreadGroup::LastWords& last_words = {});

}  // namespace nmoe
