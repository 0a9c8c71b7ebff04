#include "parallel/wire.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace nmoe {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x656f6d6e;  // "nmoe"

uint32_t word(std::string_view bytes, size_t index) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

std::string encode_frame(FrameKind kind, std::string_view body) {
  const uint32_t header[] = {kMagic, static_cast<uint32_t>(kind), static_cast<uint32_t>(body.size())};
  static_assert(sizeof(header) == kFrameHeaderBytes);
  std::string bytes(reinterpret_cast<const char*>(header), sizeof(header));
  bytes += body;
  return bytes;
}

uint32_t frame_length(std::string_view header, uint32_t limit) {
  if (word(header, 0) != kMagic) throw WireFault("what it sends is not a message of nmoe");
  const uint32_t length = word(header, 2);
  if (length > limit) throw WireFault(fmt::format("a message of {} bytes, more than {}", length, limit));
  return length;
}

FrameKind frame_kind(std::string_view header) { return static_cast<FrameKind>(word(header, 1)); }

std::optional<Frame> FrameBuffer::take() {
  if (bytes_.size() < kFrameHeaderBytes) return std::nullopt;
  const size_t length = frame_length(bytes_, limit_);
  if (bytes_.size() < kFrameHeaderBytes + length) return std::nullopt;
  Frame frame{frame_kind(bytes_), bytes_.substr(kFrameHeaderBytes, length)};
  bytes_.erase(0, kFrameHeaderBytes + length);
  return frame;
}

WireWriter& WireWriter::number(int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

WireWriter& WireWriter::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_ += value;
  return *this;
}

std::string_view WireReader::take(size_t count) {
  if (count > bytes_.size()) throw WireFault("a message ends too early");
  const std::string_view taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

int64_t WireReader::number() {
  int64_t value = 0;
  std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
  return value;
}

std::string_view WireReader::text() {
  const int64_t size = number();
  if (size < 0) throw WireFault("a text of negative length");
  return take(static_cast<size_t>(size));
}

void WireReader::end() const {
  if (!bytes_.empty()) throw WireFault("a message is longer than it should be");
}

}  // namespace nmoe
