#include "track/gpu_watch.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "track/catalogue.h"

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

}  // namespace
}  // namespace nmoe
