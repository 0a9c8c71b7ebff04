// Messages between processes: frames of a known kind and a limited length, and values in them. Little-endian.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace nmoe {

// What came is no message of this program, or one it cannot take.
class WireFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The numbers are part of the protocol.
enum class FrameKind : uint32_t {
  // Before the processes know each other (rendezvous.cpp).
  kHello = 1,      // who connects: version, nonce
  kChallenge = 2,  // process 0: version, nonce
  kProof = 3,      // who connects: what it claims to be, code over both nonces and that
  kWelcome = 4,    // process 0: its own code over the same
  kRefusal = 5,    // process 0: why not
  kStart = 6,      // process 0: all are there, and who they are
  // Between processes that run (process_links.cpp).
  kBeat = 16,      // alive
  kArrival = 17,   // came to a call
  kFailure = 18,   // a rank or a process failed
  kLeave = 19,     // all ranks of the process have ended
  kEnd = 20,       // process 0: all processes have left
  kPatience = 21,  // how long others are to wait for it
  // Of one call, on the connections for data (process_group.cpp).
  kOffer = 32,   // what the ranks of a process bring
  kResult = 33,  // process 0: what all have brought
};

struct Frame {
  FrameKind kind;
  std::string body;
};

constexpr size_t kFrameHeaderBytes = 12;

std::string encode_frame(FrameKind kind, std::string_view body);
// The length of the body that the header announces. WireFault for what is no header, or for more than `limit`.
uint32_t frame_length(std::string_view header, uint32_t limit);
FrameKind frame_kind(std::string_view header);

// Takes bytes as they come and gives frames.
class FrameBuffer {
 public:
  explicit FrameBuffer(uint32_t limit) : limit_(limit) {}
  void add(std::string_view bytes) { bytes_ += bytes; }
  std::optional<Frame> take();  // WireFault as above

 private:
  uint32_t limit_;
  std::string bytes_;
};

class WireWriter {
 public:
  WireWriter& number(int64_t value);
  WireWriter& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// The same in the same order. WireFault where there is no such value; text refers to what is read.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}
  int64_t number();
  std::string_view text();
  void end() const;  // WireFault when something is left

 private:
  std::string_view take(size_t count);

  std::string_view bytes_;
};

}  // namespace nmoe
