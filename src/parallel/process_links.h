// The connections between the processes of a run, and how failures are noticed.
//
// A dedicated thread sends heartbeats over every control connection and listens for those of the others. The run ends
// in all processes when one disappears (killed, crashed), falls silent (stopped, or its host or network is gone) or
// reports a failure; process 0 passes on what the others cannot see. If a process waits too long for another,
// process 0 says which and ends the run.
//
// One thread at a time speaks for the process: the calls of all its ranks with those of other processes go through it,
// numbered identically in all processes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/rendezvous.h"

namespace nmoe {

struct LinkTiming {
  std::chrono::milliseconds timeout;             // that a process waits for another in a call, at first
  std::chrono::milliseconds beat{500};           // between two signs of life
  std::chrono::milliseconds silence{5000};       // after which a process is taken for lost
  std::chrono::milliseconds grace_period{1000};  // that a process which ends waits for others to hear why
};

class ProcessLinks {
 public:
  // `on_failure` is called once, from the thread that listens, when this process learns that another failed: not before
  // the call that it is in has returned, where the other had made that call too.
  ProcessLinks(Meeting meeting, LinkTiming timing, std::function<void(const PeerFailure&)> on_failure);
  ~ProcessLinks();  // without a word: finish() is the way to end
  ProcessLinks(const ProcessLinks&) = delete;
  ProcessLinks& operator=(const ProcessLinks&) = delete;

  int64_t process() const { return process_; }
  int64_t num_processes() const { return static_cast<int64_t>(peers_.size()); }
  std::string describe(int64_t process) const;

  // --- a call, by the thread that speaks. Once a failure is known, these throw it.
  void come(std::string_view name);  // to the next call; a literal
  int64_t call() const;              // its number, from 1
  // Between process 0 and another.
  void send(int64_t process, std::span<const std::byte> bytes);
  void receive(int64_t process, std::span<std::byte> bytes);
  void send(int64_t process, FrameKind kind, std::string_view body);
  std::string receive(int64_t process, FrameKind kind);
  void complete();          // nothing is to be sent or received any more in this call
  void return_from_call();  // all ranks of this process are out of it, or sure to come out

  // How long others wait for this process from now on; initially the timeout. From any thread.
  void set_patience(std::chrono::milliseconds patience);
  // A rank of this process failed: tells all others, unless a failure is already known. From any thread.
  void fail(int64_t rank, const std::string& reason, const std::string& remedy);
  // The ranks of this process have ended. Returns when those of all processes have, or a failure is known and told. No
  // calls afterwards.
  void finish();
  // Of another process.
  std::optional<PeerFailure> peer_failure() const;

 private:
  struct Peer {
    ProcessInfo info;
    Link link;
    FrameBuffer received;
    std::string outbox = {};
    Clock::time_point heard;
    // What process 0 knows of all, itself included.
    int64_t came_to = 0;  // number of the last call
    std::string call_name = {};
    Clock::time_point came_at = {};
    std::chrono::milliseconds patience{};  // with it
    Clock::time_point patience_at = {};    // when it asked for that
    bool left = false;
    // The connection for control has ended in this direction.
    bool hung_up = false;
  };
  struct Failure {
    PeerFailure error;
    int64_t calls;   // that the one which failed had completed; the one that is in progress may be one of them
    bool is_own;     // of a rank of this process
    bool delivered;  // to on_failure
  };
  static constexpr int64_t kNoCalls = -1;

  bool is_first() const { return process_ == 0; }
  // All of these with the mutex held.
  void post(Peer& peer, FrameKind kind, std::string_view body);
  void post_to_all(FrameKind kind, std::string_view body, const Peer* except = nullptr);
  void hear(Peer& peer);
  void take(Peer& peer, const Frame& frame);
  void lose(Peer& peer, const std::string& how);
  void record(const PeerFailure& error, int64_t calls, bool is_own, const Peer* told_by);
  void note_arrival(Peer& peer, int64_t call, std::string_view name);
  void note_leaving(Peer& peer);
  void note_patience(Peer& peer, std::chrono::milliseconds patience);
  void judge(Clock::time_point now);
  void judge_waits(Clock::time_point now);
  void flush(Peer& peer);
  bool may_complete_call() const;
  void end_data() const;
  [[noreturn]] void throw_failure() const;
  std::string describe(const Peer& peer) const;

  void watch();
  void wake() const;
  void deliver(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void data_broke(int64_t process, const std::string& how);

  const int64_t process_;
  const LinkTiming timing_;
  const std::function<void(const PeerFailure&)> on_failure_;
  std::vector<Peer> peers_;  // by process, this one included; a process other than 0 is linked to 0 alone
  Socket waker_;             // an eventfd

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;  // the first
  int64_t call_ = 0;
  int64_t completed_ = 0;
  bool in_call_ = false;
  bool ended_ = false;    // all processes have left
  bool parting_ = false;  // says no more than what is in the outboxes
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace nmoe
