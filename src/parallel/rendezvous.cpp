#include "parallel/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/authentication.h"
#include "base/error.h"
#include "base/process.h"

namespace nmoe {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kVersion = 1;  // of the protocol
constexpr size_t kNonceBytes = 32;
constexpr uint32_t kMaxGreeting = 256 << 10;
constexpr milliseconds kGreetingTime = std::chrono::seconds(10);  // a connection has to say who it is
constexpr milliseconds kRetryAfter{50};
// The others wait so much longer than process 0, which knows who is missing.
constexpr milliseconds kGreetingPatience = std::chrono::seconds(2);
constexpr milliseconds kStopPatience = std::chrono::seconds(5);
constexpr size_t kMaxGuests = 256;  // connections that have not said who they are

enum class Channel : int64_t { kControl = 0, kData = 1 };

// What one that connects says it is.
struct Claim {
  Channel channel = Channel::kControl;
  int64_t process = 0;
  int64_t num_processes = 0;
  int64_t ranks = 0;
  std::string identity;
  std::string host;
};

std::string encode(const Claim& claim) {
  return WireWriter()
      .number(static_cast<int64_t>(claim.channel))
      .number(claim.process)
      .number(claim.num_processes)
      .number(claim.ranks)
      .text(claim.identity)
      .text(claim.host)
      .take();
}

Claim decode_claim(std::string_view bytes) {
  WireReader reader(bytes);
  Claim claim;
  claim.channel = static_cast<Channel>(reader.number());
  if (claim.channel != Channel::kControl && claim.channel != Channel::kData) throw WireFault("an unknown channel");
  claim.process = reader.number();
  claim.num_processes = reader.number();
  claim.ranks = reader.number();
  claim.identity = reader.text();
  claim.host = reader.text();
  reader.end();
  return claim;
}

std::string greeting(const std::string& nonce) { return WireWriter().number(kVersion).text(nonce).take(); }

// The nonce of the other end.
std::string read_greeting(const Frame& frame, FrameKind kind) {
  if (frame.kind != kind) throw WireFault("another message than a greeting");
  WireReader reader(frame.body);
  const int64_t version = reader.number();
  if (version != kVersion) {
    throw usage_error(fmt::format("the other end speaks version {} of the protocol, this one {}", version, kVersion),
                      "start all with the same program");
  }
  std::string nonce(reader.text());
  if (nonce.size() != kNonceBytes) throw WireFault("a nonce of another size");
  reader.end();
  return nonce;
}

// The two ends' codes differ, so that neither can be sent back as the other.
std::string code_of(std::string_view end, const std::string& secret, const std::string& their_nonce,
                    const std::string& our_nonce, std::string_view claim) {
  return hmac_sha256(secret, WireWriter().text(end).text(their_nonce).text(our_nonce).text(claim).take());
}
constexpr std::string_view kComer = "nmoe: who connects";
constexpr std::string_view kFirst = "nmoe: process 0";

std::string encode_refusal(const Error& error) {
  return WireWriter().number(error.exit_code()).text(error.what()).text(error.remedy()).take();
}

Error decode_refusal(std::string_view bytes) {
  WireReader reader(bytes);
  const ErrorKind kind = reader.number() == 2 ? ErrorKind::kUsage : ErrorKind::kRuntime;
  const std::string what(reader.text());
  return {kind, what, std::string(reader.text())};
}

// "" or the first line in which they differ.
std::string first_difference(const std::string& here, const std::string& there) {
  std::istringstream a(here), b(there);
  for (std::string mine, theirs;;) {
    const bool more_mine = static_cast<bool>(std::getline(a, mine));
    const bool more_theirs = static_cast<bool>(std::getline(b, theirs));
    if (!more_mine && !more_theirs) return "";
    if (mine == theirs && more_mine == more_theirs) continue;
    return fmt::format("\"{}\" there, \"{}\" in process 0", more_theirs ? theirs : "", more_mine ? mine : "");
  }
}

std::vector<ProcessInfo> processes_of(const RendezvousOptions& options) {
  const int64_t each = options.ranks / options.launch.num_processes;
  std::vector<ProcessInfo> processes;
  for (int64_t process = 0; process < options.launch.num_processes; ++process) {
    processes.push_back({.first_rank = process * each, .num_ranks = each});
  }
  return processes;
}

// Until when others are waited for.
class Patience {
 public:
  explicit Patience(const RendezvousOptions& options) : options_(options), deadline_(Clock::now() + options.timeout) {}

  Clock::time_point deadline() {
    if (!stopped_ && options_.stop != nullptr && options_.stop->requested()) {
      stopped_ = true;
      deadline_ = std::min(deadline_, Clock::now() + kStopPatience);
    }
    return deadline_;
  }
  bool is_over() { return Clock::now() >= deadline(); }
  // Why it was not longer, for the end of a sentence: "within 60 s", "after SIGTERM".
  std::string words() const {
    return stopped_ ? fmt::format("after {}", options_.stop->name())
                    : fmt::format("within {:.3g} s", std::chrono::duration<double>(options_.timeout).count());
  }

 private:
  const RendezvousOptions& options_;
  Clock::time_point deadline_;
  bool stopped_ = false;
};

void require_secret(const Launch& launch, const std::vector<Address>& addresses) {
  if (!launch.secret.empty() || std::ranges::all_of(addresses, &Address::is_loopback)) return;
  throw usage_error(
      fmt::format(
          "MASTER_ADDR is {}, which other hosts can reach, and there is no secret to know the run's processes by",
          launch.address),
      "set NMOE_SECRET, or a file's name in NMOE_SECRET_FILE, to the same secret in every process (openssl rand -hex "
      "32); without one only addresses of the host itself are accepted, such as 127.0.0.1 or ::1");
}

// ---- process 0 ---------------------------------------------------------------------------------

class Reception {
 public:
  explicit Reception(const RendezvousOptions& options)
      : options_(options), patience_(options), seats_(static_cast<size_t>(options.launch.num_processes)) {
    listen();
  }

  Meeting wait_for_all();

 private:
  // A connection that has not said who it is.
  struct Guest {
    Socket socket;
    Clock::time_point deadline;
    std::string its_nonce = {};  // "": has not greeted yet
    std::string nonce = random_bytes(kNonceBytes);
    FrameBuffer received = FrameBuffer(kMaxGreeting);
  };
  struct Seat {
    Link link;
    std::string host;
  };

  void listen();
  bool is_missing(size_t process) const;
  void wait_for_news();
  void free_deserted_seats();
  void admit_guests();
  bool hear(Guest& guest);
  void admit(Guest& guest, const Frame& proof);
  void answer(const Guest& guest, FrameKind kind, std::string_view body) const;
  void seat(Guest& guest, const Claim& claim);
  void check(const Claim& claim) const;
  void note_refusal(const Guest& guest, const std::string& why);
  [[noreturn]] void give_up();

  const RendezvousOptions& options_;
  Patience patience_;
  std::vector<Socket> listeners_;
  std::list<Guest> guests_;
  std::vector<Seat> seats_;  // by process; the first is empty
  std::deque<std::string> refusals_;
};

void Reception::listen() {
  const Launch& launch = options_.launch;
  std::vector<Address> addresses;
  const bool everywhere = !launch.secret.empty() && !means_loopback(launch.address);
  try {
    addresses = everywhere ? any_interface(launch.port) : resolve(launch.address, launch.port);
  } catch (const ConnectionLost& error) {
    throw runtime_error(fmt::format("MASTER_ADDR: {}", error.what()), "set it to the address of process 0's host");
  }
  if (!everywhere) require_secret(launch, addresses);
  std::string fault;
  for (const Address& address : addresses) {
    if (everywhere && !listeners_.empty()) break;
    Listener listener = listen_at(address);
    if (listener.socket.is_open()) {
      listeners_.push_back(std::move(listener.socket));
      continue;
    }
    fault = fmt::format("process 0 cannot listen at {}: {}", address.text(), listener.fault);
    if (listener.in_use) throw runtime_error(fault, "something else has that port: choose another MASTER_PORT");
  }
  if (listeners_.empty()) throw runtime_error(fault, "MASTER_ADDR is to be an address of process 0's host");
}

bool Reception::is_missing(size_t process) const {
  return process > 0 && (!seats_[process].link.control.is_open() || !seats_[process].link.data.is_open());
}

Meeting Reception::wait_for_all() {
  const auto missing = [&] {
    for (size_t process = 1; process < seats_.size(); ++process) {
      if (is_missing(process)) return true;
    }
    return false;
  };
  while (missing()) {
    if (patience_.is_over()) give_up();
    wait_for_news();
    free_deserted_seats();
    admit_guests();
  }
  Meeting meeting{.process = 0, .processes = processes_of(options_), .links = {}};
  seats_[0].host = host_name();
  WireWriter roster;
  for (size_t process = 0; process < seats_.size(); ++process) {
    meeting.processes[process].host = seats_[process].host;
    roster.text(seats_[process].host);
  }
  const std::string hosts = roster.take();
  for (size_t process = 0; process < seats_.size(); ++process) {
    Link& link = meeting.links.emplace_back(std::move(seats_[process].link));
    if (process == 0) continue;
    try {
      send_frame(link.control, FrameKind::kStart, hosts, kGreetingTime);
    } catch (const ConnectionLost& error) {
      throw runtime_error(
          fmt::format("{} was lost as the run began: {}",
                      describe_process(static_cast<int64_t>(process), meeting.processes[process]), error.what()),
          "see what that process says");
    }
  }
  return meeting;
}

// Something to read, or to accept, or a deadline.
void Reception::wait_for_news() {
  std::vector<pollfd> descriptors;
  const auto add = [&](const Socket& socket) {
    if (socket.is_open()) descriptors.push_back({socket.fd(), POLLIN, 0});
  };
  Clock::time_point until = patience_.deadline();
  for (const Socket& listener : listeners_) add(listener);
  for (const Guest& guest : guests_) {
    add(guest.socket);
    until = std::min(until, guest.deadline);
  }
  for (const Seat& seat : seats_) {
    add(seat.link.control);
    add(seat.link.data);
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  poll(descriptors.data(), descriptors.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
}

// Those that wait say nothing: what is to be read is the end. The process may come again.
void Reception::free_deserted_seats() {
  for (Seat& seat : seats_) {
    for (const Socket* socket : {&seat.link.control, &seat.link.data}) {
      if (!socket->is_open()) continue;
      pollfd descriptor{socket->fd(), POLLIN, 0};
      if (poll(&descriptor, 1, 0) > 0) {
        seat = {};
        break;
      }
    }
  }
}

void Reception::admit_guests() {
  for (const Socket& listener : listeners_) {
    while (true) {
      Socket socket = accept_from(listener);
      if (!socket.is_open()) break;
      guests_.push_back({.socket = std::move(socket), .deadline = Clock::now() + kGreetingTime});
      if (guests_.size() > kMaxGuests) guests_.pop_front();
    }
  }
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    bool stays = false;
    try {
      stays = hear(*guest);
      if (stays && Clock::now() >= guest->deadline) throw WireFault("it does not say who it is");
    } catch (const std::runtime_error& error) {  // a stranger
      stays = false;
      note_refusal(*guest, error.what());
    }
    guest = stays ? std::next(guest) : guests_.erase(guest);
  }
}

// What a guest said since. False when it is none any more: seated, refused or gone.
bool Reception::hear(Guest& guest) {
  const bool open = receive_some(guest.socket, guest.received);
  while (const std::optional<Frame> frame = guest.received.take()) {
    try {
      if (guest.its_nonce.empty()) {
        guest.its_nonce = read_greeting(*frame, FrameKind::kHello);
        answer(guest, FrameKind::kChallenge, greeting(guest.nonce));
        continue;
      }
      admit(guest, *frame);
    } catch (const Error& error) {
      answer(guest, FrameKind::kRefusal, encode_refusal(error));
      note_refusal(guest, error.what());
    }
    return false;
  }
  return open;
}

void Reception::admit(Guest& guest, const Frame& proof) {
  if (proof.kind != FrameKind::kProof) throw WireFault("another message than a proof");
  WireReader reader(proof.body);
  const std::string_view encoded = reader.text(), code = reader.text();
  reader.end();
  const std::string& secret = options_.launch.secret;
  if (!same_bytes(code, code_of(kComer, secret, guest.its_nonce, guest.nonce, encoded))) {
    throw usage_error("its secret is not that of process 0",
                      "set NMOE_SECRET, or NMOE_SECRET_FILE, to the same secret in every process");
  }
  const Claim claim = decode_claim(encoded);
  check(claim);
  answer(guest, FrameKind::kWelcome, code_of(kFirst, secret, guest.its_nonce, guest.nonce, encoded));
  seat(guest, claim);
}

// Little enough for the system to take at once.
void Reception::answer(const Guest& guest, FrameKind kind, std::string_view body) const {
  const std::string frame = encode_frame(kind, body);
  if (send_some(guest.socket, frame) != frame.size()) throw ConnectionLost("it does not read");
}

void Reception::check(const Claim& claim) const {
  const Launch& launch = options_.launch;
  if (claim.num_processes != launch.num_processes) {
    throw usage_error(
        fmt::format("it is one of {} processes, process 0 one of {}", claim.num_processes, launch.num_processes),
        "start all with the same WORLD_SIZE");
  }
  if (claim.process < 1 || claim.process >= launch.num_processes) {
    throw usage_error(
        fmt::format("it is process {}, where 1 to {} are missing", claim.process, launch.num_processes - 1),
        "give every process a RANK of its own");
  }
  if (claim.ranks != options_.ranks) {
    throw usage_error(fmt::format("it has parallel.ranks = {}, process 0 {}", claim.ranks, options_.ranks),
                      "start all with the same configuration");
  }
  if (const std::string difference = first_difference(options_.identity, claim.identity); !difference.empty()) {
    throw usage_error(fmt::format("its run is not that of process 0: {}", difference),
                      "start all with the same program and the same configuration");
  }
  const Link& link = seats_[static_cast<size_t>(claim.process)].link;
  if ((claim.channel == Channel::kControl ? link.control : link.data).is_open()) {
    throw usage_error(fmt::format("process {} is there already", claim.process),
                      "give every process a RANK of its own");
  }
}

void Reception::seat(Guest& guest, const Claim& claim) {
  Seat& seat = seats_[static_cast<size_t>(claim.process)];
  seat.host = claim.host;
  (claim.channel == Channel::kControl ? seat.link.control : seat.link.data) = std::move(guest.socket);
}

void Reception::note_refusal(const Guest& guest, const std::string& why) {
  constexpr size_t kKept = 3;
  refusals_.push_back(fmt::format("{}: {}", guest.socket.peer(), why));
  if (refusals_.size() > kKept) refusals_.pop_front();
}

void Reception::give_up() {
  std::string missing, refused;
  for (size_t process = 1; process < seats_.size(); ++process) {
    if (is_missing(process)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", process);
  }
  for (const std::string& refusal : refusals_) {
    refused += fmt::format("{}{}", refused.empty() ? "; refused were " : ", ", refusal);
  }
  const Launch& launch = options_.launch;
  const Error error =
      runtime_error(fmt::format("process {} of {} did not come to {}:{} {}{}", missing, launch.num_processes,
                                launch.address, launch.port, patience_.words(), refused),
                    "see whether it was started and what it says; raise parallel.timeout_s where it takes that long");
  const std::string frame = encode_frame(FrameKind::kRefusal, encode_refusal(error));
  for (const Seat& seat : seats_) {
    try {
      if (seat.link.control.is_open()) send_some(seat.link.control, frame);
    } catch (const ConnectionLost&) {  // it has gone itself
    }
  }
  throw error;
}

// ---- the others --------------------------------------------------------------------------------

class Visit {
 public:
  explicit Visit(const RendezvousOptions& options) : options_(options), patience_(options) {}

  Meeting join() {
    Meeting meeting{.process = options_.launch.process, .processes = processes_of(options_), .links = {}};
    meeting.links.resize(meeting.processes.size());
    Link& link = meeting.links[0];
    link.control = knock(Channel::kControl);
    link.data = knock(Channel::kData);
    read_roster(link.control, meeting);
    return meeting;
  }

 private:
  std::string place() const { return fmt::format("{}:{}", options_.launch.address, options_.launch.port); }
  milliseconds left() {
    return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(patience_.deadline() - Clock::now()));
  }

  // Again and again until process 0 answers: it may be the last to start.
  Socket knock(Channel channel) {
    std::string fault, stranger;  // no connection; or somebody who is not process 0, which says more
    do {
      try {
        const std::vector<Address> addresses = resolve(options_.launch.address, options_.launch.port);
        require_secret(options_.launch, addresses);
        for (const Address& address : addresses) {
          try {
            Socket socket = connect_to(address, patience_.deadline());
            introduce(socket, channel);
            return socket;
          } catch (const WireFault& error) {
            stranger = fmt::format("{}: {}", address.text(), error.what());
          } catch (const ConnectionLost& error) {
            fault = error.what();
          }
        }
      } catch (const ConnectionLost& error) {
        fault = error.what();
      }
      std::this_thread::sleep_for(std::min(kRetryAfter, left()));
    } while (!patience_.is_over());
    throw runtime_error(fmt::format("process {} could not reach process 0 at {} {}: {}", options_.launch.process,
                                    place(), patience_.words(), stranger.empty() ? fault : stranger),
                        "see whether process 0 was started and what it says, and whether MASTER_ADDR and MASTER_PORT "
                        "are the same everywhere");
  }

  void introduce(const Socket& socket, Channel channel) {
    const Launch& launch = options_.launch;
    const milliseconds patience = std::min(left(), kGreetingTime);
    const auto receive = [&](FrameKind kind) {
      Frame frame = receive_frame(socket, kMaxGreeting, patience);
      if (frame.kind == FrameKind::kRefusal) throw_refusal(frame);
      if (frame.kind != kind && kind != FrameKind::kChallenge) throw WireFault("an answer of another kind");
      return frame;
    };
    const std::string nonce = random_bytes(kNonceBytes);
    send_frame(socket, FrameKind::kHello, greeting(nonce), patience);
    const std::string its_nonce = read_greeting(receive(FrameKind::kChallenge), FrameKind::kChallenge);
    const std::string claim = encode({.channel = channel,
                                      .process = launch.process,
                                      .num_processes = launch.num_processes,
                                      .ranks = options_.ranks,
                                      .identity = options_.identity,
                                      .host = host_name()});
    const std::string code = code_of(kComer, launch.secret, nonce, its_nonce, claim);
    send_frame(socket, FrameKind::kProof, WireWriter().text(claim).text(code).take(), patience);
    const Frame welcome = receive(FrameKind::kWelcome);
    if (!same_bytes(welcome.body, code_of(kFirst, launch.secret, nonce, its_nonce, claim))) {
      throw WireFault("who answers does not know the secret");
    }
  }

  [[noreturn]] void throw_refusal(const Frame& frame) const {
    const Error error = decode_refusal(frame.body);
    throw Error(error.kind(),
                fmt::format("process 0 at {} refused process {}: {}", place(), options_.launch.process, error.what()),
                error.remedy());
  }

  // A while longer than process 0 waits for the others.
  void wait_for_roster(const Socket& control) {
    for (pollfd descriptor{control.fd(), POLLIN, 0}; poll(&descriptor, 1, 100) <= 0;) {
      if (Clock::now() < patience_.deadline() + kGreetingPatience) continue;
      throw ConnectionLost(fmt::format("it did not begin {}", patience_.words()));
    }
  }

  void read_roster(const Socket& control, Meeting& meeting) {
    try {
      wait_for_roster(control);
      const Frame frame = receive_frame(control, kMaxGreeting, kGreetingTime);
      if (frame.kind == FrameKind::kRefusal) throw_refusal(frame);
      if (frame.kind != FrameKind::kStart) throw WireFault("another message than the start");
      WireReader reader(frame.body);
      for (ProcessInfo& process : meeting.processes) process.host = reader.text();
      reader.end();
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      throw runtime_error(
          fmt::format("process 0 at {} was lost before all processes were there: {}", place(), error.what()),
          "see what process 0 says");
    }
  }

  const RendezvousOptions& options_;
  Patience patience_;
};

}  // namespace

std::string describe_process(int64_t process, const ProcessInfo& info) {
  const int64_t last = info.first_rank + info.num_ranks - 1;
  return info.num_ranks == 1
             ? fmt::format("process {} ({}, rank {})", process, info.host, last)
             : fmt::format("process {} ({}, ranks {} to {})", process, info.host, info.first_rank, last);
}

Meeting meet_processes(const RendezvousOptions& options) {
  return options.launch.process == 0 ? Reception(options).wait_for_all() : Visit(options).join();
}

}  // namespace nmoe
