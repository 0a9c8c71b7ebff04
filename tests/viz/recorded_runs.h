// Runs as trainers leave them, made up.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "track/live_file.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"
#include "track/runs.h"

namespace nmoe::test {

inline constexpr int64_t kRecordedSteps = 400;
inline constexpr int64_t kSpikeStep = 137, kNanStep = 250;
inline constexpr int64_t kRecordedLayers = 6, kRecordedExperts = 24;

inline double recorded_loss(int64_t step, double level) {
  if (step == kNanStep) return std::nan("");
  if (step == kSpikeStep) return 9.5;
  return level + 5.0 * std::exp(-static_cast<double>(step) / 80.0) + 0.05 * std::sin(static_cast<double>(step));
}

inline MetricRecord recorded_step(int64_t step, double level) {
  const auto at = static_cast<double>(step);
  MetricRecord record{.step = step, .ts_ms = now_ms() + step * 250};
  record.scalars = {{"train/loss", recorded_loss(step, level)},
                    {"train/grad_norm", 0.5 + 0.4 * std::abs(std::sin(at / 9.0))},
                    {"train/tokens_seen", at * 4096},
                    {"train/flops", at * 3e12},
                    {"optimizer/lr", 3e-3 * std::min(1.0, at / 40.0)},
                    {"throughput/ms_per_step", 80.0},
                    {"throughput/tokens_per_s", 52000.0 + 900.0 * std::sin(at / 5.0)},
                    {"efficiency/mfu", 0.41},
                    {"phase/attention_forward", 20.0 + std::sin(at / 9.0)},
                    {"phase/feed_forward_forward", 35.0},
                    {"phase/update", 5.0},
                    {"gpu/00/power_w", 640.0 + 30.0 * std::sin(at)},
                    {"gpu/01/power_w", 655.0 + 30.0 * std::cos(at)},
                    {"gpu/00/temperature_c", 61.0},
                    {"gpu/01/temperature_c", 64.0}};
  if (step % 50 == 0) record.scalars.emplace_back("valid/loss", recorded_loss(step, level + 0.1));
  if (step % 10 != 0) return record;
  for (int64_t layer = 1; layer <= kRecordedLayers; ++layer) {
    std::vector<float> load, bias;
    for (int64_t expert = 0; expert < kRecordedExperts; ++expert) {
      const bool dead = layer == 3 && expert == 7 && step > 200;
      const auto place = static_cast<double>(layer * 31 + expert * 7);
      load.push_back(dead ? 0.0f : static_cast<float>(std::round(600.0 + 400.0 * std::sin(place + at / 40.0))));
      bias.push_back(static_cast<float>(0.01 * std::cos(place)));
    }
    record.arrays.emplace_back("router/layer_0" + std::to_string(layer) + "/load", load);
    record.arrays.emplace_back("router/layer_0" + std::to_string(layer) + "/bias", bias);
  }
  return record;
}

// A run of this name in `run_dir`, whose rank 0 has recorded the steps and whose process said `log`. Its id.
inline std::string record_run(const fs::path& run_dir, const std::string& name, double level, const std::string& config,
                              const std::string& log, bool ended = true) {
  RunStore store(run_dir / "experiments.db");
  std::string id = store.start({.name = name, .experiment = "made up", .config_json = config});
  {
    MetricsWriter writer(metrics_path(run_dir, id));
    for (int64_t step = 1; step <= kRecordedSteps; ++step) writer.append(recorded_step(step, level));
  }
  const double loss = recorded_loss(kRecordedSteps, level);
  store.progress(id, {.step = kRecordedSteps,
                      .tokens = kRecordedSteps * 4096,
                      .loss = loss,
                      .smooth_loss = loss,
                      .tokens_per_s = 52000.0});
  store.validated(id, recorded_loss(kRecordedSteps, level + 0.1), 1.0);
  if (ended) store.finish(id, RunStatus::kCompleted, "");
  write_file_atomically(metrics_path(run_dir, id).parent_path() / "train.log", log);
  return id;
}

// A run whose routers have recorded so many steps of `layers` x `experts`, all of it still in its live file: a database
// takes half a minute to write as much. Its id.
inline std::string record_routers(const fs::path& run_dir, int64_t layers, int64_t experts, int64_t steps) {
  const std::string id = RunStore(run_dir / "experiments.db").start({.name = "wide"});
  const fs::path path = live_path(metrics_path(run_dir, id));
  make_directories(path.parent_path());
  LiveFile file(path);
  for (int64_t step = 1; step <= steps; ++step) {
    MetricRecord record{.step = step, .ts_ms = step};
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<float> load(static_cast<size_t>(experts));
      for (size_t expert = 0; expert < load.size(); ++expert) {
        load[expert] = static_cast<float>((static_cast<size_t>(step * 31 + layer * 7) + expert * 13) % 997);
      }
      record.arrays.emplace_back(fmt::format("router/layer_{:02}/load", layer), std::move(load));
    }
    file.append(encode_record(record));
  }
  return id;
}

}  // namespace nmoe::test
