// What a process prepares before its ranks train, and where a run's row is.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "parallel/launch.h"
#include "train/in_loop_evaluation.h"
#include "train/memory_plan.h"
#include "train/resume.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace nmoe {

struct ValidSplit {
  std::string source;
  SequenceReader reader;
};

// What all ranks of a process read and none changes.
struct TrainingRun {
  TrainingRun(const Config& raw, const TrainOptions& chosen, const Launch& launch);

  TrainOptions options;
  TrainingData data;
  Config config;
  std::vector<int64_t> seq_lens;
  MemoryPlan memory;
  StreamPlan stream;
  std::vector<ValidSplit> valid_splits;
  std::vector<int32_t> token_bytes;
  std::unique_ptr<const InLoopEvaluation> evaluation;  // if any is wanted
  std::vector<std::string> alert_command;              // which config has no more: nothing that is kept may have it
  std::string tokenizer_json;                          // in every checkpoint; 10 MB for large vocabularies
  std::unique_ptr<CheckpointFolder> folder;            // of the process of rank 0
  std::optional<TrainingStart> start;
};

// The run's row in experiments.db, for who has to end a process in which rank 0 may hang.
class RunPlace {
 public:
  void set(fs::path database, const std::string& id);
  // Nothing where the run has no row, here or yet.
  void fail(const std::string& reason);

 private:
  std::mutex mutex_;
  fs::path database_;
  std::string id_;
};

}  // namespace nmoe
