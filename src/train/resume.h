// Where a run begins: with new weights, with those of another checkpoint, or where its own last checkpoint left off.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "config/config.h"
#include "optim/schedule.h"
#include "train/engine.h"
#include "train/training_data.h"

namespace nmoe {

// What training refuses of the checkpoint model.init.from, which is set: Error (usage) when its model is not that of
// `config`, or its tokenizer not `tokenizer` (null: not known yet); (runtime) when there is none, or it is damaged.
void check_starting_checkpoint(const Config& config, const Tokenizer* tokenizer);

// What a run is told that goes on where its dense products are computed by other algorithms than before (`before` and
// `now` as product_identity() has them); "" where they are the same, or one of the two has no choice. The device is
// free at a resume, so it is no error.
std::string warn_of_other_products(const std::string& before, const std::string& now);

// Decided once for a run and then applied to each engine that takes part in it. Const members may be called from
// several threads.
class TrainingStart {
 public:
  // Looks into `folder`, which holds the run's own checkpoints, and refuses what does not belong together before any
  // weight is read. `config` is resolved (vocabulary, steps); `plan` is that of `data`.
  //   checkpoints there and `resume`       resumes from the last
  //   none, and model.init.from is set     takes that checkpoint's weights; optimizer and progress begin at nothing
  //   none                                 new weights
  // Errors: (usage) checkpoints there without `resume`; a configuration, a corpus or a tokenizer that is not the
  // checkpoint's; (runtime) a damaged checkpoint.
  TrainingStart(const Config& config, const TrainingData& data, const StreamPlan& plan, const fs::path& folder,
                bool resume);

  bool resumes() const { return resumes_; }
  const Progress& progress() const { return progress_; }  // nothing unless it resumes
  // What that took; nothing where the checkpoint does not tell.
  const std::optional<double>& flops() const { return flops_; }
  const std::optional<StreamCursor>& cursor() const { return cursor_; }      // of the data plan; same
  const std::string& run_id() const { return run_id_; }                      // "" unless it resumes: a new run
  const fs::path& checkpoint() const { return checkpoint_; }                 // empty: new weights
  const std::string& product_identity() const { return product_identity_; }  // of what it ran on; "" unless it resumes
  // What checkpoints of this run carry along from an imported model (checkpoint.h).
  const std::vector<CarriedFile>& carried() const { return carried_; }

  // Gives `engine` its weights and optimizer state, of which each rank reads its own. Errors: Engine's;
  // CheckpointReader::load_model's.
  void apply(Engine& engine) const;

 private:
  void resume_from(const CheckpointReader& reader, const Config& config, const TrainingData& data,
                   const StreamPlan& plan);
  void start_from(const CheckpointReader& reader);

  fs::path checkpoint_;  // not kept open: pruning it is to give its space back
  bool resumes_ = false;
  Progress progress_;
  std::optional<double> flops_;
  std::optional<StreamCursor> cursor_;
  std::string run_id_, product_identity_;
  std::vector<CarriedFile> carried_;
};

}  // namespace nmoe
