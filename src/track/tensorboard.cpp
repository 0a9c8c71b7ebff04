#include "track/tensorboard.h"

#include <cstring>

#include "base/crc32c.h"

namespace nmoe {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, WireType type) { return varint(static_cast<uint64_t>(field << 3 | type)); }
std::string message(int field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string record(std::string_view event) {
  // So that a checksum of bytes that hold checksums is no weaker.
  const auto masked = [](std::string_view bytes) {
    const uint32_t sum = crc32c(bytes);
    return bytes_of(((sum >> 15) | (sum << 17)) + 0xa282ead8u);
  };
  const std::string length = bytes_of(static_cast<uint64_t>(event.size()));
  return length + masked(length) + std::string(event) + masked(event);
}

}  // namespace

std::string tensorboard_head(double wall_time_s) {
  return record(key(1, kFixed64) + bytes_of(wall_time_s) + message(3, "brain.Event:2"));
}

std::string tensorboard_scalar(std::string_view tag, int64_t step, double value, double wall_time_s) {
  const std::string scalar = message(1, tag) + key(2, kFixed32) + bytes_of(static_cast<float>(value));
  return record(key(1, kFixed64) + bytes_of(wall_time_s) + key(2, kVarint) + varint(static_cast<uint64_t>(step)) +
                message(5, message(1, scalar)));
}

}  // namespace nmoe
