// Whole runs of the tiny configuration, and what they leave behind.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "support/errors.h"
#include "support/metrics.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "track/runs.h"
#include "train/loop/trainer.h"

namespace nmoe {

class TrainerTest : public test::TempDirTest {
 protected:
  TrainerTest() {
    ::unsetenv("NMOE_RUN");
    test::write_tiny_corpus(dir_ / "data");
  }

  // Trains the run `name`; `overrides` change kTinyToml.
  TrainSummary run(const std::string& name, std::vector<std::string> overrides, bool resume = false) {
    overrides.push_back("run.name=" + name);
    return train(test::tiny_config(dir_, overrides), {.resume = resume, .version = "0.0.0", .commit = "abc"});
  }
  TrainSummary resume(const std::string& name, const std::vector<std::string>& overrides) {
    return run(name, overrides, /*resume=*/true);
  }

  fs::path checkpoints(const std::string& name) const { return dir_ / "runs/checkpoints" / name; }

  // The newest run of this name.
  RunRow row(const std::string& name) const {
    for (const RunRow& found : RunStore(dir_ / "runs/experiments.db").list(100)) {
      if (found.name == name) return found;
    }
    ADD_FAILURE() << "no run " << name;
    return {};
  }

  std::map<int64_t, double> series(const std::string& name, const std::string& tag) const {
    const fs::path file = dir_ / "runs/metrics" / row(name).id / "rank_0.duckdb";
    std::map<int64_t, double> points;
    for (const test::MetricRow& point : test::read_series(file, tag)) {
      EXPECT_TRUE(points.emplace(point.step, point.value).second) << tag << " twice at a step";
    }
    return points;
  }
};

inline std::string weights_of(const fs::path& checkpoint) {
  return CheckpointReader::open(checkpoint).weights_sha256();
}

inline void expect_same_state(const fs::path& a, const fs::path& b) {
  const CheckpointReader first = CheckpointReader::open(a), second = CheckpointReader::open(b);
  EXPECT_EQ(first.weights_sha256(), second.weights_sha256());
  EXPECT_EQ(first.info().step, second.info().step);
  EXPECT_EQ(first.info().tokens, second.info().tokens);
  EXPECT_EQ(first.info().cursor, second.info().cursor);
  const auto hashes = [](const CheckpointReader& reader) {
    std::map<std::string, std::string> by_name;
    for (const ManifestTensor& tensor : reader.optimizer()) by_name[tensor.name] = tensor.sha256;
    return by_name;
  };
  EXPECT_EQ(hashes(first), hashes(second));
}

}  // namespace nmoe
