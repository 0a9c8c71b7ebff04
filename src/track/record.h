// What is measured at once, and its bytes in a live file (live_file.h).
//
// A record is framed by its size and checksum, so that a reader tells a whole one from one that is still being written
// or was cut off. All numbers are little-endian:
//
//   u32 size of the body    u32 crc32c of the body
//   body: u8 kind (1 values, 2 rewind)    i64 step    i64 ts_ms    then, of values, until the end:
//         u8 type (1 scalar, 2 array)    u16 bytes of the tag    tag, UTF-8
//         scalar: f64    array: u32 count    f32 each
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "track/tag.h"

namespace nmoe {

struct MetricRecord {
  int64_t step = 0;
  int64_t ts_ms = 0;    // when it was measured, milliseconds since 1970 UTC
  bool rewind = false;  // what was recorded before for steps beyond `step` is void: they are done again
  std::vector<std::pair<std::string, double>> scalars = {};
  std::vector<std::pair<std::string, std::vector<float>>> arrays = {};

  // Adds a value of a metric, with the parts of its tag where that is a pattern.
  void put(const Metric& metric, double value) { put(metric, {}, value); }
  void put(const Metric& metric, std::initializer_list<TagPart> parts, double value) {
    scalars.emplace_back(tag_of(metric, parts), value);
  }
  void put(const Metric& metric, std::initializer_list<TagPart> parts, std::vector<float> values) {
    arrays.emplace_back(tag_of(metric, parts), std::move(values));
  }
  // Of the first with this tag; null: there is none.
  const double* find(std::string_view tag) const;
};

// As a frame. Tags have at most 65,535 bytes, arrays fit kMaxRecordBytes.
inline constexpr size_t kMaxRecordBytes = size_t{64} << 20;
std::string encode_record(const MetricRecord& record);

// Calls `take` with every whole record that `bytes` begins with, and where in them it ends; returns how many bytes
// those are. Bytes of tags that are not UTF-8 become U+FFFD.
size_t decode_records(std::string_view bytes, const std::function<void(MetricRecord record, size_t end)>& take);

}  // namespace nmoe
