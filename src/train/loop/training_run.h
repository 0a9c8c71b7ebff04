// What a process prepares before its ranks train, and the location of a run's row.
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
#include "data/stream/loader.h"
#include "parallel/launch.h"
#include "train/loop/batch_source.h"
#include "train/loop/in_loop_evaluation.h"
#include "train/loop/resume.h"
#include "train/loop/sample_texts.h"
#include "train/loop/train_options.h"
#include "train/loop/training_data.h"
#include "train/plan/memory_plan.h"

namespace nmoe {

struct ValidSplit {
  std::string source;
  SequenceReader reader;
};

// Data shared, read-only, by all ranks of a process.
struct TrainingRun {
  TrainingRun(const Config& raw, const TrainOptions& chosen, const Launch& launch);

  // What a rank trains on: a source of its own, which reads what all share here.
  std::unique_ptr<BatchSource> batches(int64_t rank) const;

  TrainOptions options;
  TrainingData data;
  Config config;
  std::vector<int64_t> seq_lens;
  MemoryPlan memory;
  StreamPlan stream;
  std::vector<ValidSplit> valid_splits;
  std::vector<int32_t> token_bytes;
  std::unique_ptr<const InLoopEvaluation> evaluation;  // if any is wanted
  std::optional<SampleTexts> samples;
  std::vector<std::string> alert_command;    // removed from config, since nothing that is stored may contain it
  std::string tokenizer_json;                // in every checkpoint; 10 MB for large vocabularies
  std::unique_ptr<CheckpointFolder> folder;  // of the process of rank 0
  std::optional<TrainingStart> start;
};

// The run's row in experiments.db, for ending a process in which rank 0 may hang.
class RunPlace {
 public:
  void set(fs::path database, const std::string& id);
  // Does nothing if the run has no row in this process, or not yet.
  void fail(const std::string& reason);

 private:
  std::mutex mutex_;
  fs::path database_;
  std::string id_;
};

}  // namespace nmoe
