// Where a run begins: with new weights, with those of another checkpoint, or at its own last checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "config/config.h"
#include "optim/schedule.h"
#include "train/loop/training_data.h"
#include "train/step/engine.h"

namespace nmoe {

// Checks the checkpoint model.init.from, which must be set: Error (usage) if its model is not that of `config`, or its
// tokenizer is not `tokenizer` (null: not yet known); (runtime) if there is none, or it is damaged.
void check_starting_checkpoint(const Config& config, const Tokenizer* tokenizer);

// Error (usage) if `folder`, where the run's own checkpoints are to be, holds some already.
void check_name_is_free(const Config& config, const fs::path& folder);

// The warning for a run that is resumed where its dense products are computed by other algorithms than before (`before`
// and `now` as from product_identity()); "" if they are the same, or one of the two has no choice. It is not an error,
// since the device may change at a resume.
std::string warn_of_other_products(const std::string& before, const std::string& now);

// Decided once for a run, and then applied to each of its engines. Const
// members may be called from several threads.
class TrainingStart {
 public:
  // Inspects `folder`, which holds the run's own checkpoints, and refuses what does not fit together before any weight
  // is read. `config` must be resolved (vocabulary, steps); `plan` is that of `data`.
  //   checkpoints there and `resume`       resumes from the last
  //   none, and model.init.from is set     takes that checkpoint's weights; optimizer and progress start from zero
  //   none                                 new weights
  // Errors: (usage) checkpoints there without `resume`; a configuration, a corpus or a tokenizer that is not the
  // checkpoint's; (runtime) a damaged checkpoint.
  TrainingStart(const Config& config, const TrainingData& data, const StreamPlan& plan, const fs::path& folder,
                bool resume);

  bool resumes() const { return resumes_; }
  const Progress& progress() const { return progress_; }  // nothing unless it resumes
  int64_t tokens() const { return tokens_; }              // that it trained on, without padding; same
  // FLOPs up to there; nothing if the checkpoint does not say.
  const std::optional<double>& flops() const { return flops_; }
  const std::optional<StreamCursor>& cursor() const { return cursor_; }      // of the data plan; same
  const std::string& run_id() const { return run_id_; }                      // "" unless it resumes: a new run
  const fs::path& checkpoint() const { return checkpoint_; }                 // empty: new weights
  int64_t arithmetic_changes() const { return arithmetic_changes_; }         // that it was trained with; same
  const std::string& product_identity() const { return product_identity_; }  // of what it ran on; "" unless it resumes
  // Files from an imported model, and the chat template of the data, that this run's checkpoints keep (checkpoint.h).
  const std::vector<CarriedFile>& carried() const { return carried_; }

  // Gives `engine` its weights and optimizer state, of which each rank reads its own. Errors: Engine's;
  // CheckpointReader::load_model's.
  void apply(Engine& engine) const;

 private:
  void resume_from(const CheckpointReader& reader, const Config& config, const TrainingData& data,
                   const StreamPlan& plan);
  void start_from(const CheckpointReader& reader);
  void carry_chat_template(const TrainingData& data);

  fs::path checkpoint_;  // not kept open: pruning it is to give its space back
  bool resumes_ = false;
  Progress progress_;
  int64_t tokens_ = 0;
  std::optional<double> flops_;
  std::optional<StreamCursor> cursor_;
  int64_t arithmetic_changes_ = 0;
  std::string run_id_, product_identity_;
  std::vector<CarriedFile> carried_;
};

}  // namespace nmoe
