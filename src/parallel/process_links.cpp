#include "parallel/process_links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/signals.h"

namespace nmoe {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kMaxControl = 1 << 20;  // bytes of a message
constexpr uint32_t kMaxData = 256 << 20;
// A process waits for process 0 so much longer than process 0 itself, which knows better whom all wait for.
constexpr milliseconds kPatience = std::chrono::seconds(5);

constexpr const char* kLostRemedy =
    "see what that process and its host say (killed, out of memory, a cut network); then go on with --resume";

}  // namespace

ProcessLinks::ProcessLinks(Meeting meeting, LinkTiming timing, std::function<void(const PeerFailure&)> on_failure)
    : process_(meeting.process),
      timing_(timing),
      on_failure_(std::move(on_failure)),
      waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  NMOE_CHECK(waker_.is_open(), "no eventfd");
  for (size_t process = 0; process < meeting.processes.size(); ++process) {
    peers_.push_back({.info = meeting.processes[process],
                      .link = std::move(meeting.links[process]),
                      .received = FrameBuffer(kMaxControl),
                      .heard = Clock::now(),
                      .patience = timing.timeout});
  }
  watcher_ = std::thread([this] { watch(); });
}

ProcessLinks::~ProcessLinks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  watcher_.join();
}

std::string ProcessLinks::describe(int64_t process) const {
  return describe_process(process, peers_[static_cast<size_t>(process)].info);
}

std::string ProcessLinks::describe(const Peer& peer) const { return describe(&peer - peers_.data()); }

// ---- calls -------------------------------------------------------------------------------------

void ProcessLinks::come(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure();
  ++call_;
  in_call_ = true;
  if (is_first()) {
    note_arrival(peers_[0], call_, name);
  } else {
    post(peers_[0], FrameKind::kArrival, WireWriter().number(call_).text(name).take());
  }
  wake();
}

int64_t ProcessLinks::call() const {
  const std::lock_guard lock(mutex_);
  return call_;
}

void ProcessLinks::send(int64_t process, std::span<const std::byte> bytes) {
  try {
    send_all(peers_[static_cast<size_t>(process)].link.data, bytes, timing_.timeout + kPatience);
  } catch (const ConnectionLost& error) {
    data_broke(process, error.what());
  }
}

void ProcessLinks::receive(int64_t process, std::span<std::byte> bytes) {
  try {
    receive_all(peers_[static_cast<size_t>(process)].link.data, bytes, timing_.timeout + kPatience);
  } catch (const ConnectionLost& error) {
    data_broke(process, error.what());
  }
}

void ProcessLinks::send(int64_t process, FrameKind kind, std::string_view body) {
  NMOE_CHECK(body.size() <= kMaxData, "{} bytes in one call, more than {}", body.size(), kMaxData);
  const std::string frame = encode_frame(kind, body);
  send(process, std::as_bytes(std::span(frame)));
}

std::string ProcessLinks::receive(int64_t process, FrameKind kind) {
  try {
    Frame frame = receive_frame(peers_[static_cast<size_t>(process)].link.data, kMaxData, timing_.timeout + kPatience);
    if (frame.kind != kind) throw WireFault("another message than is due");
    return std::move(frame.body);
  } catch (const ConnectionLost& error) {
    data_broke(process, error.what());
  } catch (const WireFault& error) {
    data_broke(process, error.what());
  }
}

void ProcessLinks::complete() {
  const std::lock_guard lock(mutex_);
  completed_ = call_;
}

void ProcessLinks::return_from_call() {
  const std::lock_guard lock(mutex_);
  in_call_ = false;
  if (failure_ && !failure_->delivered) wake();
}

// What happened is told on the connections for control, or found out there.
void ProcessLinks::data_broke(int64_t process, const std::string& how) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timing_.silence + 2 * timing_.beat, [&] { return failure_.has_value(); });
  if (failure_) throw_failure();
  throw runtime_error(fmt::format("the connection to {} broke: {}", describe(process), how), kLostRemedy);
}

void ProcessLinks::throw_failure() const { throw PeerFailure(failure_->error.what(), failure_->error.remedy()); }

// Process 0 judges.
void ProcessLinks::set_patience(milliseconds patience) {
  const std::lock_guard lock(mutex_);
  Peer& self = peers_[static_cast<size_t>(process_)];
  if (self.patience == patience) return;
  note_patience(self, patience);
  if (is_first()) return;
  post(peers_[0], FrameKind::kPatience, WireWriter().number(patience.count()).take());
  wake();
}

// ---- failures and the end ----------------------------------------------------------------------

void ProcessLinks::fail(int64_t rank, const std::string& reason, const std::string& remedy) {
  const std::lock_guard lock(mutex_);
  record(PeerFailure(rank, reason, remedy), completed_, /*is_own=*/true, nullptr);
}

void ProcessLinks::finish() {
  std::unique_lock lock(mutex_);
  if (is_first()) {
    note_leaving(peers_[0]);
  } else {
    post(peers_[0], FrameKind::kLeave, "");
  }
  wake();
  changed_.wait(lock, [&] { return ended_ || failure_; });
  parting_ = true;
  wake();
  const auto gone = [](const Peer& peer) { return !peer.link.control.is_open() || peer.hung_up; };
  changed_.wait_for(lock, timing_.grace_period, [&] { return std::ranges::all_of(peers_, gone); });
}

std::optional<PeerFailure> ProcessLinks::peer_failure() const {
  const std::lock_guard lock(mutex_);
  if (!failure_ || failure_->is_own) return std::nullopt;
  return failure_->error;
}

// The first counts. Who told is not told again; who is lost is: it may only have been stopped.
void ProcessLinks::record(const PeerFailure& error, int64_t calls, bool is_own, const Peer* told_by) {
  if (failure_ || ended_) return;
  failure_ = Failure{.error = error, .calls = calls, .is_own = is_own, .delivered = is_own};
  post_to_all(FrameKind::kFailure, WireWriter().number(calls).text(error.what()).text(error.remedy()).take(), told_by);
  if (!may_complete_call()) end_data();
  changed_.notify_all();
  wake();
}

// All have made the call in which this process is, and what it waits for is under way.
bool ProcessLinks::may_complete_call() const { return in_call_ && failure_->calls >= call_; }

// Ends what waits there.
void ProcessLinks::end_data() const {
  for (const Peer& peer : peers_) peer.link.data.shut_down();
}

void ProcessLinks::lose(Peer& peer, const std::string& how) {
  peer.hung_up = true;
  changed_.notify_all();
  if (peer.left || parting_) return;
  if (failure_) return end_data();  // a call that might have been completed cannot be
  record(PeerFailure(fmt::format("{} {}", describe(peer), how), kLostRemedy), kNoCalls, /*is_own=*/false, nullptr);
}

void ProcessLinks::note_arrival(Peer& peer, int64_t call, std::string_view name) {
  peer.came_to = call;
  peer.call_name = name;
  peer.came_at = Clock::now();
}

void ProcessLinks::note_patience(Peer& peer, milliseconds patience) {
  peer.patience = patience;
  peer.patience_at = Clock::now();
}

void ProcessLinks::note_leaving(Peer& peer) {
  peer.left = true;
  if (failure_ || !std::ranges::all_of(peers_, &Peer::left)) return;
  ended_ = true;
  post_to_all(FrameKind::kEnd, "");
  changed_.notify_all();
}

// ---- the thread that listens -------------------------------------------------------------------

void ProcessLinks::wake() const {
  const uint64_t one = 1;
  // Fails only when there are wakes enough already.
  [[maybe_unused]] const ssize_t written = ::write(waker_.fd(), &one, sizeof(one));
}

void ProcessLinks::watch() {
  block_stop_signals();
  std::unique_lock lock(mutex_);
  Clock::time_point next_beat = Clock::now();
  std::vector<pollfd> descriptors;
  while (!stopping_) {
    descriptors.assign(1, {waker_.fd(), POLLIN, 0});
    for (const Peer& peer : peers_) {
      if (!peer.link.control.is_open() || peer.hung_up) continue;
      const bool sends = !peer.outbox.empty();
      descriptors.push_back({peer.link.control.fd(), static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const Clock::time_point before = Clock::now();
    const auto until_beat = std::chrono::ceil<milliseconds>(next_beat - before).count();
    lock.unlock();
    poll(descriptors.data(), descriptors.size(), static_cast<int>(std::max<int64_t>(until_beat, 0)));
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t read = ::read(waker_.fd(), &wakes, sizeof(wakes));
    lock.lock();

    const Clock::time_point now = Clock::now();
    // Stopped itself, as a debugger does, or starved: that others were not heard meanwhile says nothing about them.
    if (now - before > 2 * timing_.beat) {
      for (Peer& peer : peers_) {
        peer.heard = std::min(now, peer.heard + (now - before));
        peer.came_at = std::min(now, peer.came_at + (now - before));
      }
    }
    for (Peer& peer : peers_) hear(peer);
    judge(now);
    if (now >= next_beat) {
      next_beat = now + timing_.beat;
      for (Peer& peer : peers_) {
        if (!parting_ && peer.outbox.empty()) post(peer, FrameKind::kBeat, "");
      }
    }
    for (Peer& peer : peers_) flush(peer);
    deliver(lock);
  }
}

void ProcessLinks::deliver(std::unique_lock<std::mutex>& lock) {
  if (!failure_ || failure_->delivered || may_complete_call()) return;
  failure_->delivered = true;
  const PeerFailure error = failure_->error;
  lock.unlock();
  on_failure_(error);
  lock.lock();
}

void ProcessLinks::hear(Peer& peer) {
  if (!peer.link.control.is_open() || peer.hung_up) return;
  try {
    const bool open = receive_some(peer.link.control, peer.received);
    while (const std::optional<Frame> frame = peer.received.take()) take(peer, *frame);
    if (!open) lose(peer, "ended without saying why: it was killed, or it crashed");
  } catch (const WireFault& error) {
    lose(peer, fmt::format("sends what is not a message: {}", error.what()));
  }
}

void ProcessLinks::take(Peer& peer, const Frame& frame) {
  peer.heard = Clock::now();
  WireReader reader(frame.body);
  switch (frame.kind) {
    case FrameKind::kBeat:
      return;
    case FrameKind::kArrival: {
      const int64_t call = reader.number();
      return note_arrival(peer, call, reader.text());
    }
    case FrameKind::kPatience:
      return note_patience(peer, milliseconds(reader.number()));
    case FrameKind::kFailure: {
      peer.left = true;  // it ends, and has said why
      const int64_t calls = reader.number();
      const std::string what(reader.text());
      return record(PeerFailure(what, std::string(reader.text())), calls, /*is_own=*/false, &peer);
    }
    case FrameKind::kLeave:
      return note_leaving(peer);
    case FrameKind::kEnd:
      peer.left = true;
      ended_ = true;
      return changed_.notify_all();
    default:
      throw WireFault("it is of an unknown kind");
  }
}

void ProcessLinks::judge(Clock::time_point now) {
  if (failure_ || ended_) return;
  for (Peer& peer : peers_) {
    if (!peer.link.control.is_open() || peer.hung_up || peer.left || now - peer.heard <= timing_.silence) continue;
    lose(peer, fmt::format("has not answered for {:.3g} s: it was stopped, or its host or network is gone",
                           seconds(timing_.silence)));
  }
  if (is_first()) judge_waits(now);
}

void ProcessLinks::judge_waits(Clock::time_point now) {
  for (const Peer& waiting : peers_) {
    for (const Peer& missing : peers_) {
      if (missing.came_to >= waiting.came_to) continue;
      const std::string place = fmt::format("in {} ({})", waiting.call_name, waiting.came_to);
      if (missing.left) {
        return record(PeerFailure(fmt::format("{} has ended, and {} waits for it {}", describe(missing),
                                              describe(waiting), place),
                                  "this is a bug in nmoe; please report it"),
                      kNoCalls, /*is_own=*/false, nullptr);
      }
      const auto waited = now - std::max(waiting.came_at, missing.patience_at);
      if (waited <= missing.patience) continue;
      const std::string last = missing.came_to == 0
                                   ? "has made no call"
                                   : fmt::format("last came to {} ({})", missing.call_name, missing.came_to);
      return record(
          PeerFailure(fmt::format("{} waited {:.3g} s for {} {}, which {}", describe(waiting),
                                  seconds(missing.patience), describe(missing), place, last),
                      "see what keeps that process; where its work takes that long, raise parallel.timeout_s or, in a "
                      "step, parallel.stall_s"),
          kNoCalls, /*is_own=*/false, nullptr);
    }
  }
}

void ProcessLinks::post(Peer& peer, FrameKind kind, std::string_view body) {
  if (peer.link.control.is_open()) peer.outbox += encode_frame(kind, body);
}

void ProcessLinks::post_to_all(FrameKind kind, std::string_view body, const Peer* except) {
  for (Peer& peer : peers_) {
    if (&peer != except) post(peer, kind, body);
  }
}

void ProcessLinks::flush(Peer& peer) {
  if (!peer.link.control.is_open()) return;
  try {
    if (!peer.outbox.empty()) peer.outbox.erase(0, send_some(peer.link.control, peer.outbox));
  } catch (const ConnectionLost&) {  // hear() finds out
    peer.outbox.clear();
  }
  if (parting_ && peer.outbox.empty()) peer.link.control.shut_down_sending();
}

}  // namespace nmoe
