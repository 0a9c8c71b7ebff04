#include "track/config_differences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/braille_plot.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"
#include "track/tensorboard.h"

namespace nmoe {
namespace {

TEST(ConfigDifferences, ByKeyWithoutPlaces) {
  const std::vector<std::string> configs = {R"({"a": 1, "b": {"c": [1]}, "run": {"name": "x", "seed": 1}})",
                                            R"({"b": {"c": [1], "d": "x"}, "run.name": "y", "run.seed": 2})"};
  const auto differences = config_differences(configs);
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].key, "a");
  EXPECT_EQ(differences[0].values, (std::vector<std::string>{"1", ""}));
  EXPECT_EQ(differences[1].values, (std::vector<std::string>{"", "\"x\""}));
  EXPECT_EQ(differences[2].key, "run.seed");
}

TEST(BraillePlotTest, ASpikeAndANan) {
  Series series;
  for (int64_t step = 1; step <= 10'000; ++step) series.put(step, step == 5050 ? 9.0 : 1.0, 0);
  series.put(7500, NAN, 0);
  const std::string plot = braille_plot(series, 51, 9);  // 40 by 6 characters
  std::vector<std::string> lines;
  for (size_t at = 0; at < plot.size(); at = plot.find('\n', at) + 1)
    lines.push_back(plot.substr(at, plot.find('\n', at) - at));
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_TRUE(lines[0].starts_with("        9 ┤")) << plot;
  EXPECT_TRUE(lines[5].starts_with("        1 ┤")) << plot;
  // Each line has blanks (U+2800) but for the spike's column; the last is full but for it, at most.
  const auto num_filled = [&](const std::string& line) {
    int filled = 0;
    for (size_t i = line.find("│") == std::string::npos ? line.find("┤") + 3 : line.find("│") + 3; i + 3 <= line.size();
         i += 3) {
      filled += line.substr(i, 3) != "\u2800" ? 1 : 0;
    }
    return filled;
  };
  for (int row = 0; row < 5; ++row) EXPECT_EQ(num_filled(lines[size_t(row)]), 1) << plot;
  EXPECT_EQ(num_filled(lines[5]), 40) << plot;
  EXPECT_EQ(std::ranges::count(lines[6].substr(0, 13 + 40), 'x'), 1) << plot;
  Series bad;
  bad.put(1, NAN, 0);
  EXPECT_EQ(braille_plot(bad, 80, 20), "no finite value in 1 steps\n");
}

// As TensorFlow's own writer puts them down: its record of a version, and the fields of an event.
TEST(TensorboardTest, Bytes) {
  const std::string head = tensorboard_head(0.0);
  EXPECT_EQ(head.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(head.size(), 8 + 4 + 24 + 4u);
  EXPECT_EQ(head.substr(12, 11), std::string("\x09\0\0\0\0\0\0\0\0\x1a\x0d", 11));
  EXPECT_EQ(head.substr(23, 13), "brain.Event:2");
  // The checksum that every TensorBoard file of this length begins with.
  EXPECT_EQ(head.substr(8, 4), std::string("\xa3\x7f\x4b\x22", 4));
  const std::string event = tensorboard_scalar("a", 300, 1.0, 2.0);
  EXPECT_EQ(event.substr(12, event.size() - 16),
            std::string("\x09\0\0\0\0\0\0\0\x40"  // 1: wall time 2.0
                        "\x10\xac\x02"            // 2: step 300
                        "\x2a\x0a\x0a\x08"        // 5: summary of 10 bytes, 1: value of 8
                        "\x0a\x01\x61"            // 1: tag
                        "\x15\0\0\x80\x3f",
                        9 + 3 + 4 + 3 + 5));  // 2: 1.0f
}

}  // namespace
}  // namespace nmoe
