#include "parallel/rendezvous.h"

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <array>
#include <atomic>
#include <memory>

#include "parallel/processes.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::at_once;
using test::contains;
using test::error_of;
using test::free_port;
using test::launch_of;
using namespace std::chrono_literals;

constexpr auto kMeetingTimeout = 60s;  // far more than any of these takes
constexpr const char* kSecret = "known to all processes of the run";

RendezvousOptions options_of(int64_t process, int64_t num_processes, int port,
                             std::chrono::milliseconds timeout = kMeetingTimeout) {
  return {.launch = launch_of(process, num_processes, port),
          .ranks = 2 * num_processes,
          .identity = "model.dim=16\ntrain.steps=3\n",
          .timeout = timeout};
}

// Process 0 of 2 waits while `other` happens; then process 1 comes, and both meet all the same.
void expect_undisturbed(const std::function<void(int port)>& other, const std::string& secret = kSecret) {
  const int port = free_port();
  const auto errors = at_once(2, [&](int64_t process) {
    if (process == 1) other(port);
    RendezvousOptions options = options_of(process, 2, port);
    options.launch.secret = secret;
    meet_processes(options);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

// A connection to who listens there, which may be a little late.
Socket connect_soon(int port) {
  for (int attempt = 0;; ++attempt) {
    try {
      return connect_to(resolve("127.0.0.1", port).front(), Clock::now() + kMeetingTimeout);
    } catch (const ConnectionLost&) {
      if (attempt > 10'000) throw;
      std::this_thread::sleep_for(2ms);
    }
  }
}

TEST(Rendezvous, AllKnowAll) {
  for (const char* address : {"127.0.0.1", "::1", "[::1]", "localhost"}) {
    const int port = free_port();
    const auto errors = at_once(3, [&](int64_t process) {
      RendezvousOptions options = options_of(process, 3, port);
      options.launch.address = address;
      const Meeting meeting = meet_processes(options);
      EXPECT_EQ(meeting.process, process);
      ASSERT_EQ(meeting.processes.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NE(meeting.processes[i].host, "");
        EXPECT_EQ(meeting.processes[i].first_rank, static_cast<int64_t>(2 * i));
        const bool linked = (process == 0) != (i == 0);
        EXPECT_EQ(meeting.links[i].control.is_open(), linked);
        EXPECT_EQ(meeting.links[i].data.is_open(), linked);
      }
    });
    for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << address << ": " << error->what();
  }
  EXPECT_EQ(describe_process(1, {.host = "node7", .first_rank = 2, .num_ranks = 2}), "process 1 (node7, ranks 2 to 3)");
  EXPECT_EQ(describe_process(1, {.host = "node7", .first_rank = 1, .num_ranks = 1}), "process 1 (node7, rank 1)");
}

TEST(Rendezvous, OthersMayStartLongBeforeTheFirst) {
  const int port = free_port();
  const auto errors = at_once(2, [&](int64_t process) {
    if (process == 0) std::this_thread::sleep_for(300ms);
    meet_processes(options_of(process, 2, port));
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

TEST(Rendezvous, WhoIsMissingIsNamed) {
  const int port = free_port();
  const auto errors = at_once(2, [&](int64_t index) { meet_processes(options_of(index, 3, port, 2s)); });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->exit_code(), 1);
    EXPECT_TRUE(contains(error->what(), fmt::format("process 2 of 3 did not come to 127.0.0.1:{} within 2 s", port)));
  }
  const Error alone = error_of([&] { meet_processes(options_of(1, 2, port, 200ms)); });
  EXPECT_EQ(alone.exit_code(), 1);
  EXPECT_TRUE(contains(alone.what(), "process 1 could not reach process 0 at 127.0.0.1:"));
  EXPECT_TRUE(contains(alone.what(), "Connection refused"));
}

TEST(Rendezvous, ATakenPortIsSaid) {
  const int port = free_port();
  const Listener other = listen_at(resolve("127.0.0.1", port).front());
  ASSERT_TRUE(other.socket.is_open());
  const Error error = error_of([&] { meet_processes(options_of(0, 2, port)); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(), fmt::format("process 0 cannot listen at 127.0.0.1:{}: Address already", port)));
  EXPECT_TRUE(contains(error.remedy(), "MASTER_PORT"));
}

TEST(Rendezvous, WithoutASecretNobodyElseIsReachable) {
  for (const int64_t process : {0, 1}) {
    RendezvousOptions options = options_of(process, 2, free_port(), 200ms);
    options.launch.address = "192.0.2.1";
    const Error error = error_of([&] { meet_processes(options); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_TRUE(contains(error.what(), "MASTER_ADDR is 192.0.2.1"));
    EXPECT_TRUE(contains(error.remedy(), "NMOE_SECRET"));
    EXPECT_TRUE(contains(error.remedy(), "127.0.0.1"));
  }
}

// An address of this host that is not its loopback; "" where it has none.
std::string outer_address() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text.data(), text.size());
    if (!means_loopback(text.data())) return text.data();
  }
  return "";
}

TEST(Rendezvous, WithASecretOtherHostsCanCome) {
  const std::string address = outer_address();
  if (address.empty()) GTEST_SKIP() << "this host has no address but its loopback";
  const int port = free_port();
  const auto errors = at_once(2, [&](int64_t process) {
    RendezvousOptions options = options_of(process, 2, port);
    options.launch.address = address;
    options.launch.secret = kSecret;
    meet_processes(options);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

// Each of these is refused, is told why, and disturbs nobody.
TEST(Rendezvous, WhoDoesNotBelongIsRefused) {
  const auto expect_refusal = [](const std::function<void(RendezvousOptions&)>& change, const std::string& what) {
    expect_undisturbed([&](int port) {
      RendezvousOptions options = options_of(1, 2, port);
      options.launch.secret = kSecret;
      change(options);
      const Error error = error_of([&] { meet_processes(options); });
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_TRUE(contains(error.what(), "refused process "));
      EXPECT_TRUE(contains(error.what(), what));
      EXPECT_NE(error.remedy(), "");
    });
  };
  expect_refusal([](auto& options) { options.launch.secret = "known to another run"; }, "its secret is not that");
  expect_refusal([](auto& options) { options.launch.secret = ""; }, "its secret is not that");
  expect_refusal([](auto& options) { options.identity = "model.dim=16\ntrain.steps=4\n"; },
                 "\"train.steps=4\" there, \"train.steps=3\" in process 0");
  expect_refusal([](auto& options) { options.identity += "more=1\n"; }, "\"more=1\" there, \"\" in process 0");
  expect_refusal([](auto& options) { options.ranks = 2; }, "it has parallel.ranks = 2, process 0 4");
  expect_refusal([](auto& options) { options.launch.num_processes = 3; }, "it is one of 3 processes");
}

// Two that claim to be process 1: the second is refused, and process 2 comes after that.
TEST(Rendezvous, AnImpostorIsRefused) {
  const int port = free_port();
  std::atomic<bool> refused{false};
  const auto errors = at_once(4, [&](int64_t index) {
    while (index == 3 && !refused) std::this_thread::sleep_for(1ms);
    try {
      meet_processes(options_of(std::array{0, 1, 1, 2}[static_cast<size_t>(index)], 3, port));
    } catch (...) {
      refused = true;
      throw;
    }
  });
  EXPECT_FALSE(errors[0].has_value());
  EXPECT_FALSE(errors[3].has_value());
  ASSERT_NE(errors[1].has_value(), errors[2].has_value());
  EXPECT_TRUE(contains((errors[1] ? errors[1] : errors[2])->what(), "process 1 is there already"));
}

TEST(Rendezvous, StrangersDisturbNobody) {
  for (const std::string& words : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'), std::string("n"),
                                   encode_frame(FrameKind::kProof, "x"), encode_frame(FrameKind::kHello, ""),
                                   encode_frame(FrameKind::kHello, std::string(300'000, 'x')),
                                   encode_frame(FrameKind::kHello, WireWriter().number(1).number(-5).take()),
                                   encode_frame(FrameKind::kHello, WireWriter().number(7).text("").take())}) {
    expect_undisturbed([&](int port) {
      const Socket stranger = connect_soon(port);
      try {
        send_all(stranger, std::as_bytes(std::span(words)), 1s);
      } catch (const ConnectionLost&) {  // it has heard enough
      }
    });
  }
}

TEST(Rendezvous, SilentStrangersHoldNobodyUp) {
  std::vector<Socket> strangers;
  expect_undisturbed([&](int port) {
    for (int i = 0; i < 300; ++i) strangers.push_back(connect_soon(port));
  });
}

// Says what it takes to be taken for one that knows the secret, which it does not.
TEST(Rendezvous, ProcessZeroHasToKnowTheSecretToo) {
  const int port = free_port();
  const Listener impostor = listen_at(resolve("127.0.0.1", port).front());
  std::atomic<bool> ended{false};
  const auto errors = at_once(2, [&](int64_t index) {
    if (index == 1) {
      RendezvousOptions options = options_of(1, 2, port, 1s);
      options.launch.secret = kSecret;
      try {
        meet_processes(options);
      } catch (...) {
        ended = true;
        throw;
      }
    }
    while (index == 0 && !ended) {
      const Socket guest = accept_from(impostor.socket);
      if (!guest.is_open()) {
        std::this_thread::sleep_for(1ms);
        continue;
      }
      try {
        receive_frame(guest, 1000, 1s);
        send_frame(guest, FrameKind::kChallenge, WireWriter().number(1).text(std::string(32, 'x')).take(), 1s);
        const Frame proof = receive_frame(guest, 100'000, 1s);
        EXPECT_EQ(proof.body.find(kSecret), std::string::npos);
        send_frame(guest, FrameKind::kWelcome, std::string(32, 'x'), 1s);
      } catch (const ConnectionLost&) {
      }
    }
  });
  EXPECT_FALSE(errors[0].has_value());
  ASSERT_TRUE(errors[1].has_value());
  EXPECT_TRUE(contains(errors[1]->what(), "who answers does not know the secret"));
}

TEST(Rendezvous, WhoLeavesBeforeTheStartMayComeAgain) {
  const int port = free_port();
  const auto errors = at_once(2, [&](int64_t index) {
    if (index == 0) {
      meet_processes(options_of(0, 3, port));
      return;
    }
    // Comes and gives up: process 2 is not there yet.
    EXPECT_THROW(meet_processes(options_of(1, 3, port, 300ms)), Error);
    at_once(2, [&](int64_t other) { meet_processes(options_of(other + 1, 3, port)); });
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

}  // namespace
}  // namespace nmoe
