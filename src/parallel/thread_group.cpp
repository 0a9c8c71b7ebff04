#include "parallel/thread_group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <thread>
#include <utility>

#include "base/failure.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/start_thread.h"
#include "base/wait_clock.h"
#include "parallel/tensor_sums.h"

namespace nmoe {

std::string reason_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& exception) {
    return as_error(exception).what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

std::string remedy_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.remedy();
  } catch (const std::bad_alloc& exception) {
    return as_error(exception).remedy();
  } catch (...) {
    return "";
  }
}

bool is_peer_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

namespace {

// Beyond a rank's patience, that it may be silent: who waits for it is to say so first.
constexpr auto kSilence = std::chrono::milliseconds(1500);
// That last words may take.
constexpr unsigned kLastWordsSeconds = 2;

constexpr const char* kWaitRemedy =
    "see what keeps that rank; where its work takes that long, raise parallel.timeout_s or, in a step, "
    "parallel.stall_s";

// tensors: one a rank, in order. The elements of `part` become their sum in all of them.
template <class T>
void sum_to_all(std::span<const Tensor> tensors, RankPart part) {
  constexpr int64_t kBlock = 1024;  // stays in the first-level cache
  std::array<T, kBlock> sum;
  for (int64_t begin = part.begin; begin < part.end; begin += kBlock) {
    const int64_t size = std::min(kBlock, part.end - begin);
    std::copy_n(tensors[0].data<T>() + begin, size, sum.data());
    for (const Tensor& tensor : tensors.subspan(1)) {
      const T* values = tensor.data<T>() + begin;
      for (int64_t i = 0; i < size; ++i) sum[static_cast<size_t>(i)] += values[i];
    }
    for (const Tensor& tensor : tensors) std::copy_n(sum.data(), size, tensor.data<T>() + begin);
  }
}

void sum_to_all(std::span<const Tensor> tensors, RankPart part) {
  switch (tensors[0].dtype()) {
    case DType::kF32:
      return sum_to_all<float>(tensors, part);
    case DType::kF64:
      return sum_to_all<double>(tensors, part);
    case DType::kI32:
      return sum_to_all<int32_t>(tensors, part);
    default:
      return;  // not summable
  }
}

}  // namespace

// A rank. Calls are made of meetings of all ranks, counted alike by all.
class ThreadGroup::Member final : public Communicator {
 public:
  Member(ThreadGroup& group, int64_t index) : group_(group), index_(index) {}

  int64_t index() const override { return index_; }
  int64_t count() const override { return static_cast<int64_t>(group_.members_.size()); }
  Communicator& process() override { return *this; }
  Communicator& counterparts() override { return single_rank(); }

  void check() override { group_.check(); }
  void fail(const std::exception_ptr& failure) override { group_.fail(index_, failure); }
  void set_patience(std::chrono::milliseconds patience) override {
    const std::lock_guard lock(group_.mutex_);
    patience_ = patience;
    since_patience.restart();
    since_call.restart();
  }
  std::shared_ptr<void> on_failure(std::function<void()> told) override { return group_.on_failure(std::move(told)); }
  void keep(std::shared_ptr<void> used_by_others) override { group_.keep(std::move(used_by_others)); }

  void barrier() override { group_.meet(*this, {.name = "barrier"}, /*reads_peers=*/false); }

  std::vector<std::string> all_gather(std::string_view bytes) override {
    group_.meet(*this, {.name = "all_gather", .bytes = std::string(bytes)}, /*reads_peers=*/false);
    std::vector<std::string> all;
    for (const auto& member : group_.members_) all.push_back(member->call(meetings).bytes);
    return all;
  }

  // Devices whose memory is the host's have done all that is enqueued, so there is nothing to order.
  void all_reduce_sum(std::span<const Tensor> tensors, Lane) override {
    check_summable(tensors);
    if (has_data(tensors)) group_.all_reduce_sum(*this, tensors);
  }
  void broadcast(std::span<const Tensor> tensors, Lane) override {
    if (has_data(tensors)) group_.broadcast(*this, tensors);
  }

  // Two slots suffice: a rank comes to meeting m + 2 only after all ranks came to m + 1, and so have read what was
  // brought to m.
  Call& call(int64_t meeting) { return calls_[static_cast<size_t>(meeting % 2)]; }
  const Call& call(int64_t meeting) const { return calls_[static_cast<size_t>(meeting % 2)]; }
  std::string last_call() const {
    return meetings == 0 ? "has made no call" : fmt::format("last came to {} ({})", call(meetings).name, meetings);
  }

  int64_t rank() const { return group_.first_rank_ + index_; }  // of the run

  // Guarded by the group's mutex; what a rank wrote there before a meeting may be read after it.
  int64_t meetings = 0;  // that this rank came to
  bool left = false;
  int64_t calls = 0;  // that it is in: a meeting may be part of a larger one
  WaitClock since_call = {};
  WaitClock since_patience = {};
  std::chrono::milliseconds patience() const { return patience_; }

 private:
  ThreadGroup& group_;
  int64_t index_;
  std::chrono::milliseconds patience_ = group_.timeout_;
  std::array<Call, 2> calls_ = {};
};

// As long as a rank is in a call. Made and ended with the group's mutex held.
class ThreadGroup::InCall {
 public:
  explicit InCall(Member& member) : member_(member) { ++member_.calls; }
  ~InCall() {
    --member_.calls;
    member_.since_call.restart();
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  Member& member_;
};

// The end of meet(..., reads_peers).
struct ThreadGroup::Reading {
  explicit Reading(ThreadGroup& group) : group_(group) {}
  ~Reading() {
    const std::lock_guard lock(group_.mutex_);
    if (--group_.num_readers_ == 0) group_.changed_.notify_all();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  ThreadGroup& group_;
};

ThreadGroup::ThreadGroup(int64_t count, std::chrono::milliseconds timeout, int64_t first_rank)
    : timeout_(timeout), first_rank_(first_rank) {
  NMOE_CHECK(count >= 1, "a group of {} ranks", count);
  for (int64_t rank = 0; rank < count; ++rank) members_.push_back(std::make_unique<Member>(*this, rank));
}

ThreadGroup::~ThreadGroup() = default;

Communicator& ThreadGroup::communicator(int64_t rank) { return *members_[static_cast<size_t>(rank)]; }

bool ThreadGroup::all_met(int64_t meeting) const {
  return std::ranges::all_of(members_, [&](const auto& member) { return member->meetings >= meeting; });
}

// Returns when all ranks have come, even if one has failed meanwhile: what ranks agree on in a call is then known to
// all.
//
// With `reads_peers` this rank uses tensors of other ranks until its Reading ends. Those tensors must stay: so a rank
// that learns of a failure waits for the readers before it throws, and after a failure no rank begins to read.
void ThreadGroup::meet(Member& self, Call call, bool reads_peers) {
  std::unique_lock lock(mutex_);
  if (failure_) {
    wait_for_readers(lock);
    throw_peer_failure();
  }
  const InCall in_call(self);
  const int64_t meeting = ++self.meetings;
  self.call(meeting) = std::move(call);
  if (all_met(meeting)) {
    check_same_call(self);
    changed_.notify_all();
  }
  WaitClock clock;
  while (!all_met(meeting)) {
    WaitClock::Duration slice = WaitClock::kSlice;
    for (const auto& member : members_) {
      if (member->meetings >= meeting) continue;
      check_not_left(self, *member);
      const WaitClock::Duration waited = std::min(clock.waited(), member->since_patience.waited());
      if (!self.call(meeting).bounded) continue;
      if (waited >= member->patience()) give_up(lock, self, *member);
      slice = std::min<WaitClock::Duration>(slice, member->patience() - waited);
    }
    changed_.wait_for(lock, slice);
    if (failure_ && (reads_peers || !all_met(meeting))) {
      wait_for_readers(lock);
      throw_peer_failure();
    }
  }
  if (reads_peers) ++num_readers_;
}

void ThreadGroup::wait_for_readers(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return num_readers_ == 0; });
}

void ThreadGroup::throw_peer_failure() const {
  if (is_peer_failure(failure_->exception)) {
    throw PeerFailure(reason_of(failure_->exception), remedy_of(failure_->exception));
  }
  throw PeerFailure(first_rank_ + failure_->rank, reason_of(failure_->exception), remedy_of(failure_->exception));
}

void ThreadGroup::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_peer_failure();
}

std::shared_ptr<void> ThreadGroup::on_failure(std::function<void()> told) {
  const auto entry = std::make_shared<Told>();
  entry->call = std::move(told);
  bool has_failed = false;
  {
    const std::lock_guard lock(mutex_);
    told_.push_back(entry);
    has_failed = failure_.has_value();
  }
  if (has_failed) tell();
  return {entry.get(), [entry](void*) {
            const std::lock_guard lock(entry->mutex);
            entry->call = nullptr;
          }};
}

void ThreadGroup::tell() {
  std::vector<std::weak_ptr<Told>> all;
  {
    const std::lock_guard lock(mutex_);
    all = std::exchange(told_, {});
  }
  for (const auto& weak : all) {
    const auto entry = weak.lock();
    if (!entry) continue;
    const std::lock_guard lock(entry->mutex);
    if (entry->call) std::exchange(entry->call, nullptr)();
  }
}

void ThreadGroup::keep(std::shared_ptr<void> used_by_others) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(used_by_others));
}

void ThreadGroup::check_not_left(const Member& self, const Member& missing) const {
  NMOE_CHECK(!missing.left, "rank {} has ended, and rank {} waits for it in {} ({}); it {}", missing.rank(),
             self.rank(), self.call(self.meetings).name, self.meetings, missing.last_call());
}

void ThreadGroup::give_up(std::unique_lock<std::mutex>& lock, const Member& self, const Member& missing) {
  const Error error =
      runtime_error(fmt::format("rank {} waited {:.3g} s for rank {} in {} ({}), which {}", self.rank(),
                                std::chrono::duration<double>(missing.patience()).count(), missing.rank(),
                                self.call(self.meetings).name, self.meetings, missing.last_call()),
                    kWaitRemedy);
  fail_locked(self.index(), std::make_exception_ptr(error));
  wait_for_readers(lock);
  throw error;
}

// By the last to come, while the others wait and keep what they brought.
void ThreadGroup::check_same_call(const Member& self) {
  const int64_t meeting = self.meetings;
  const Call& mine = self.call(meeting);
  try {
    for (const auto& member : members_) {
      const Call& other = member->call(meeting);
      NMOE_CHECK(other.name == mine.name && (!mine.alike || other.tensors.size() == mine.tensors.size()),
                 "ranks differ in call {}: {} of {} tensors on rank {}, {} of {} on rank {}", meeting, mine.name,
                 mine.tensors.size(), self.rank(), other.name, other.tensors.size(), member->rank());
      for (size_t i = 0; mine.alike && i < mine.tensors.size(); ++i) {
        const Tensor &a = mine.tensors[i], &b = other.tensors[i];
        NMOE_CHECK(a.dtype() == b.dtype() && a.num_elements() == b.num_elements(),
                   "ranks differ in tensor {} of {} in call {}: {} {} on rank {}, {} {} on rank {}", i, mine.name,
                   meeting, dtype_name(a.dtype()), a.shape(), self.rank(), dtype_name(b.dtype()), b.shape(),
                   member->rank());
      }
    }
  } catch (...) {
    fail_locked(self.index(), std::current_exception());
    throw;
  }
}

void ThreadGroup::all_reduce_sum(Member& self, std::span<const Tensor> tensors) {
  std::vector<Tensor> peers(members_.size());  // before other ranks use this one's tensors: nothing throws from there
  meet(self, {.name = "all_reduce_sum", .tensors = tensors}, /*reads_peers=*/true);
  {
    const Reading reading(*this);
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::ranges::transform(members_, peers.begin(),
                             [&](const auto& member) { return member->call(self.meetings).tensors[i]; });
      sum_to_all(peers, part_of_rank(tensors[i], self.index(), self.count()));
    }
  }
  meet(self, {.name = "end of all_reduce_sum"}, /*reads_peers=*/false);
}

void ThreadGroup::broadcast(Member& self, std::span<const Tensor> tensors) {
  meet(self, {.name = "broadcast", .tensors = tensors}, /*reads_peers=*/true);
  {
    const Reading reading(*this);
    const std::span<const Tensor> first = members_[0]->call(self.meetings).tensors;
    for (size_t i = 0; i < tensors.size() && self.index() > 0; ++i) {
      std::copy_n(static_cast<const std::byte*>(first[i].raw()), tensors[i].num_bytes(),
                  static_cast<std::byte*>(tensors[i].raw()));
    }
  }
  meet(self, {.name = "end of broadcast"}, /*reads_peers=*/false);
}

void ThreadGroup::together(int64_t rank, Call call, const Completion& complete) {
  Member& self = *members_[static_cast<size_t>(rank)];
  std::vector<const Call*> calls(members_.size());
  std::optional<InCall> in_call;
  {
    const std::lock_guard lock(mutex_);
    in_call.emplace(self);
  }
  const auto leave_call = [&](void*) {
    const std::lock_guard lock(mutex_);
    in_call.reset();
  };
  const std::unique_ptr<void, decltype(leave_call)> end(&self, leave_call);
  meet(self, std::move(call), /*reads_peers=*/rank == 0);
  if (rank == 0) {
    const Reading reading(*this);
    std::ranges::transform(members_, calls.begin(), [&](const auto& member) { return &member->call(self.meetings); });
    complete(calls);
  }
  // Rank 0 may wait for other ranks than these, and does not wait for ever.
  meet(self, {.name = "end of a call of all processes", .bounded = false}, /*reads_peers=*/false);
}

void ThreadGroup::leave(int64_t rank) {
  const std::lock_guard lock(mutex_);
  members_[static_cast<size_t>(rank)]->left = true;
  changed_.notify_all();
  ended_.notify_all();
}

bool ThreadGroup::all_left() const {
  return std::ranges::all_of(members_, [](const auto& member) { return member->left; });
}

// A rank that makes no call, in a run in which none has asked for patience.
std::optional<Error> ThreadGroup::find_silent(int64_t& rank) {
  const auto is_patient = [&](const auto& member) { return !member->left && member->patience() >= timeout_; };
  const bool any_patient = std::ranges::any_of(members_, is_patient);
  std::optional<Error> error;
  for (const auto& member : members_) {
    const WaitClock::Duration silent = member->since_call.waited();
    member->since_patience.waited();
    if (error || any_patient || member->left || member->calls > 0 || silent <= member->patience() + kSilence) continue;
    rank = member->index();
    error = runtime_error(fmt::format("rank {} has made no call for {:.2g} s: it {}", member->rank(),
                                      std::chrono::duration<double>(silent).count(), member->last_call()),
                          kWaitRemedy);
  }
  return error;
}

void ThreadGroup::watch(const Failed& on_failure, const LastWords& last_words) {
  std::unique_lock lock(mutex_);
  while (!failure_ && !all_left()) {
    ended_.wait_for(lock, WaitClock::kSlice);
    int64_t rank = 0;
    const std::optional<Error> silent = failure_ ? std::nullopt : find_silent(rank);
    if (!silent) continue;
    lock.unlock();
    on_failure(rank, std::make_exception_ptr(*silent));
    fail(rank, std::make_exception_ptr(*silent));
    lock.lock();
  }
  const WaitClock::Duration grace_period = std::min(kGracePeriod, timeout_);
  WaitClock clock;
  for (auto waited = clock.waited(); !all_left() && waited < grace_period; waited = clock.waited()) {
    ended_.wait_for(lock, std::min<WaitClock::Duration>(WaitClock::kSlice, grace_period - waited));
  }
  if (all_left()) return;
  std::string stuck;
  for (const auto& member : members_) {
    if (!member->left) stuck += fmt::format("{}rank {}", stuck.empty() ? "" : ", ", member->rank());
  }
  const std::exception_ptr failure = failure_->exception;
  lock.unlock();
  // Whoever hangs may hold what the following needs.
  ::alarm(kLastWordsSeconds);
  say("error: {}\nremedy: {}\n{} did not end within {:.3g} s of that: the process is ended without it\n",
      reason_of(failure), remedy_of(failure), stuck, std::chrono::duration<double>(grace_period).count());
  if (last_words) last_words(reason_of(failure));
  std::_Exit(1);
}

void ThreadGroup::fail(int64_t rank, std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    fail_locked(rank, std::move(failure));
  }
  tell();
}

void ThreadGroup::fail_locked(int64_t rank, std::exception_ptr failure) {
  const bool replaces = failure_ && is_peer_failure(failure_->exception) && !is_peer_failure(failure);
  if (!failure_ || replaces) failure_ = Failure{rank, std::move(failure)};
  changed_.notify_all();
  ended_.notify_all();
}

std::exception_ptr ThreadGroup::first_failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failure_->exception : nullptr;
}

void ThreadGroup::run(const std::function<void(int64_t)>& drive, const Failed& on_failure,
                      const LastWords& last_words) {
  const auto failed = [&](int64_t rank) {
    on_failure(rank, std::current_exception());
    fail(rank, std::current_exception());
  };
  const auto drive_rank = [&](int64_t rank) {
    try {
      drive(rank);
    } catch (...) {
      failed(rank);
    }
    leave(rank);
  };
  const auto count = static_cast<int64_t>(members_.size());
  std::vector<std::thread> threads;
  std::thread watcher;
  try {
    watcher = start_thread("to watch over ranks", [&] {
      block_stop_signals();
      watch(on_failure, last_words);
    });
    for (int64_t rank = 1; rank < count; ++rank) {
      threads.push_back(start_thread(fmt::format("rank {}", rank), [&drive_rank, rank] {
        block_stop_signals();
        drive_rank(rank);
      }));
    }
    drive_rank(0);
  } catch (...) {  // no thread could be had
    failed(0);
    for (auto rank = static_cast<int64_t>(threads.size()) + 1; rank < count; ++rank) leave(rank);
    leave(0);
  }
  for (std::thread& thread : threads) thread.join();
  if (watcher.joinable()) watcher.join();
}

void run_ranks(int64_t count, std::chrono::milliseconds timeout, const std::function<void(Communicator&)>& drive,
               const ThreadGroup::LastWords& last_words) {
  if (count == 1) return drive(single_rank());
  ThreadGroup group(count, timeout);
  group.run([&](int64_t rank) { drive(group.communicator(rank)); }, [](int64_t, const std::exception_ptr&) {},
            last_words);
  if (const std::exception_ptr failure = group.first_failure()) std::rethrow_exception(failure);
}

}  // namespace nmoe
