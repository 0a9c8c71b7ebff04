#include "track/record.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/utf8.h"

namespace nmoe {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are in memory");

constexpr size_t kHeadBytes = 2 * sizeof(uint32_t);
enum class Kind : uint8_t { kValues = 1, kRewind = 2 };
enum class Type : uint8_t { kScalar = 1, kArray = 2 };

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void put_tag(std::string& bytes, Type type, const std::string& tag) {
  NMOE_CHECK(tag.size() <= UINT16_MAX, "a tag of {} bytes", tag.size());
  put(bytes, type);
  put(bytes, static_cast<uint16_t>(tag.size()));
  bytes += tag;
}

// Takes a body apart; once something is not there, everything else is not, either.
class Body {
 public:
  explicit Body(std::string_view bytes) : rest_(bytes) {}
  bool good() const { return good_; }
  bool done() const { return rest_.empty() || !good_; }

  std::string_view take(size_t size) {
    good_ = good_ && size <= rest_.size();
    if (!good_) return {};
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <class Number>
  Number take() {
    Number number{};
    if (const std::string_view bytes = take(sizeof(Number)); good_) std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }

 private:
  std::string_view rest_;
  bool good_ = true;
};

std::optional<MetricRecord> decode_body(std::string_view bytes) {
  Body body(bytes);
  const auto kind = body.take<Kind>();
  MetricRecord record;
  record.step = body.take<int64_t>();
  record.ts_ms = body.take<int64_t>();
  record.rewind = kind == Kind::kRewind;
  if (kind != Kind::kValues && kind != Kind::kRewind) return std::nullopt;
  while (!body.done()) {
    const auto type = body.take<Type>();
    std::string tag = as_utf8(body.take(body.take<uint16_t>()));
    if (type == Type::kScalar) {
      record.scalars.emplace_back(std::move(tag), body.take<double>());
    } else if (type == Type::kArray) {
      const std::string_view values = body.take(body.take<uint32_t>() * sizeof(float));
      std::vector<float> array(values.size() / sizeof(float));
      if (!values.empty()) std::memcpy(array.data(), values.data(), values.size());
      record.arrays.emplace_back(std::move(tag), std::move(array));
    } else {
      return std::nullopt;
    }
  }
  return body.good() ? std::optional(std::move(record)) : std::nullopt;
}

}  // namespace

const double* MetricRecord::find(std::string_view tag) const {
  const auto found = std::ranges::find(scalars, tag, &std::pair<std::string, double>::first);
  return found == scalars.end() ? nullptr : &found->second;
}

std::string encode_record(const MetricRecord& record) {
  std::string frame(kHeadBytes, '\0');
  put(frame, record.rewind ? Kind::kRewind : Kind::kValues);
  put(frame, record.step);
  put(frame, record.ts_ms);
  for (const auto& [tag, value] : record.scalars) {
    put_tag(frame, Type::kScalar, tag);
    put(frame, value);
  }
  for (const auto& [tag, values] : record.arrays) {
    put_tag(frame, Type::kArray, tag);
    put(frame, static_cast<uint32_t>(values.size()));
    frame.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  NMOE_CHECK(frame.size() <= kMaxRecordBytes, "a record of {} bytes", frame.size());
  const std::string_view body = std::string_view(frame).substr(kHeadBytes);
  const uint32_t head[2] = {static_cast<uint32_t>(body.size()), crc32c(body)};
  std::memcpy(frame.data(), head, sizeof(head));
  return frame;
}

size_t decode_records(std::string_view bytes, const std::function<void(MetricRecord, size_t)>& take) {
  size_t done = 0;
  while (bytes.size() - done >= kHeadBytes) {
    uint32_t head[2];
    std::memcpy(head, bytes.data() + done, sizeof(head));
    const auto [size, checksum] = head;
    if (size > kMaxRecordBytes || size > bytes.size() - done - kHeadBytes) break;
    const std::string_view body = bytes.substr(done + kHeadBytes, size);
    if (crc32c(body) != checksum) break;
    std::optional<MetricRecord> record = decode_body(body);
    if (!record) break;
    done += kHeadBytes + size;
    take(std::move(*record), done);
  }
  return done;
}

}  // namespace nmoe
