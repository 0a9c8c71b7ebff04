#include "track/record.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/crc32c.h"

namespace nmoe {
namespace {

// RFC 3720, appendix B.4, and the check value of the polynomial.
TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(RecordTest, ComesBackAsItWas) {
  const MetricRecord record{.step = 7,
                            .ts_ms = 1'700'000'000'123,
                            .scalars = {{"train/loss", 2.5}, {"", -INFINITY}, {"é", std::nan("")}},
                            .arrays = {{"load", {1.0f, 2.0f, 3.0f}}, {"none", {}}}};
  const std::string bytes = encode_record(record) + encode_record({.step = 3, .ts_ms = 9, .rewind = true});
  std::vector<MetricRecord> found;
  std::vector<size_t> ends;
  EXPECT_EQ(decode_records(bytes,
                           [&](MetricRecord next, size_t end) {
                             found.push_back(std::move(next));
                             ends.push_back(end);
                           }),
            bytes.size());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 7);
  EXPECT_EQ(found[0].ts_ms, 1'700'000'000'123);
  EXPECT_EQ(found[0].scalars[0], record.scalars[0]);
  EXPECT_EQ(found[0].scalars[1], record.scalars[1]);
  EXPECT_EQ(found[0].scalars[2].first, "é");
  EXPECT_TRUE(std::isnan(found[0].scalars[2].second));
  EXPECT_EQ(found[0].arrays, record.arrays);
  EXPECT_TRUE(found[1].rewind);
  EXPECT_EQ(found[1].step, 3);
  EXPECT_EQ(ends, (std::vector<size_t>{encode_record(record).size(), bytes.size()}));
}

// Cut anywhere, or with any byte another: the record is not there, and nothing worse.
TEST(RecordTest, DamagedOnesAreNone) {
  const std::string bytes = encode_record({.step = 1, .scalars = {{"a", 1.0}}, .arrays = {{"b", {1.0f}}}});
  const auto count = [](std::string_view damaged) {
    int records = 0;
    decode_records(damaged, [&](const MetricRecord&, size_t) { ++records; });
    return records;
  };
  EXPECT_EQ(count(bytes), 1);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(count(std::string_view(bytes).substr(0, i)), 0);
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_EQ(count(changed), 0) << i;
  }
}

// The checksum is right, what it is of is not.
TEST(RecordTest, BodiesThatAreNoRecords) {
  const auto frame = [](std::string_view body) {
    const uint32_t head[2] = {static_cast<uint32_t>(body.size()), crc32c(body)};
    return std::string(reinterpret_cast<const char*>(head), sizeof(head)) + std::string(body);
  };
  const std::string good = encode_record({.step = 1, .scalars = {{"a", 1.0}}}).substr(8);
  const auto decoded = [&](const std::string& body) {
    return decode_records(frame(body), [](const MetricRecord&, size_t) {}) > 0;
  };
  EXPECT_TRUE(decoded(good));
  EXPECT_TRUE(decoded(good.substr(0, 17))) << "without values";
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(decoded(good.substr(0, size)), size == 17) << size;
  }
  std::string bad = good;
  bad[0] = 9;
  EXPECT_FALSE(decoded(bad)) << "a kind that is not known";
  bad = good;
  bad[17] = 9;
  EXPECT_FALSE(decoded(bad)) << "nor a type";
}

}  // namespace
}  // namespace nmoe
