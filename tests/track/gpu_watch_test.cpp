#include "track/gpu_watch.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "track/catalogue.h"
#include "track/gpu_extremes.h"

namespace nmoe {
namespace {

TEST(GpuWatchTest, TellsWhatNvmlSays) {
  std::mutex mutex;
  std::condition_variable came;
  std::map<std::string, double> said;
  int samples = 0;
  const GpuWatch watch(
      [&](const MetricRecord& record) {
        const std::lock_guard lock(mutex);
        said = {record.scalars.begin(), record.scalars.end()};
        ++samples;
        came.notify_all();
      },
      std::chrono::milliseconds(1), NMOE_FAKE_NVML);
  ASSERT_TRUE(watch.is_watching());
  std::unique_lock lock(mutex);
  ASSERT_TRUE(came.wait_for(lock, std::chrono::seconds(30), [&] { return samples >= 3; }));
  EXPECT_EQ(said.at("gpu/00/utilization"), 91.0);
  EXPECT_EQ(said.at("gpu/01/utilization"), 92.0);
  EXPECT_EQ(said.at("gpu/00/memory_used_gib"), 3.0);
  EXPECT_EQ(said.at("gpu/00/memory_total_gib"), 8.0);
  EXPECT_EQ(said.at("gpu/00/power_w"), 650.5);
  EXPECT_FALSE(said.contains("gpu/00/power_limit_w")) << "this library has no such function";
  EXPECT_EQ(said.at("gpu/00/temperature_c"), 61.0);
  EXPECT_EQ(said.at("gpu/00/clock_sm_mhz"), 1500.0);
  EXPECT_EQ(said.at("gpu/00/clock_memory_mhz"), 2619.0);
  EXPECT_EQ(said.at("gpu/00/throttle_reasons"), 4.0);
  EXPECT_EQ(said.at("gpu/00/ecc_corrected"), 10.0);
  EXPECT_EQ(said.at("gpu/00/ecc_uncorrected"), 11.0);
  EXPECT_EQ(said.at("gpu/00/nvlink_sent_gib"), 2.0);
  EXPECT_EQ(said.at("gpu/00/nvlink_received_gib"), 1.0);
  EXPECT_FALSE(said.contains("gpu/01/ecc_corrected"));
  EXPECT_FALSE(said.contains("gpu/01/nvlink_sent_gib"));
  for (const auto& [tag, value] : said) EXPECT_NE(find_tag(tag), nullptr) << tag;
}

TEST(GpuWatchTest, DoesNothingWithoutNvml) {
  const GpuWatch watch([](const MetricRecord&) { ADD_FAILURE(); }, std::chrono::milliseconds(1), "libno-such.so.1");
  EXPECT_FALSE(watch.is_watching());
}

TEST(GpuExtremesTest, OfTheSamplesOfAStep) {
  GpuExtremes extremes;
  const auto sample = [&](int64_t step, double power, double clock, double reasons) {
    MetricRecord record{.step = step,
                        .scalars = {{"gpu/00/power_w", power},
                                    {"gpu/00/clock_sm_mhz", clock},
                                    {"gpu/00/throttle_reasons", reasons},
                                    {"gpu/01/power_w", 1.0}}};
    extremes.add(record);
    return std::map<std::string, double>(record.scalars.begin(), record.scalars.end());
  };
  sample(10, 700.0, 1500.0, 4.0);
  const auto second = sample(10, 300.0, 1900.0, 32.0);
  EXPECT_EQ(second.at("gpu/00/power_w"), 300.0);
  EXPECT_EQ(second.at("gpu/00/power_max_w"), 700.0);
  EXPECT_EQ(second.at("gpu/01/power_max_w"), 1.0);
  EXPECT_EQ(second.at("gpu/00/clock_sm_min_mhz"), 1500.0);
  EXPECT_EQ(second.at("gpu/00/throttle_reasons"), 36.0);
  const auto next = sample(20, 400.0, 1800.0, 0.0);
  EXPECT_EQ(next.at("gpu/00/power_max_w"), 400.0);
  EXPECT_EQ(next.at("gpu/00/throttle_reasons"), 0.0);
}

}  // namespace
}  // namespace nmoe
