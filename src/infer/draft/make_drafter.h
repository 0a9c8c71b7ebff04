// The drafter of a kind.
#pragma once

#include <memory>

#include "infer/cached_model.h"
#include "infer/draft/drafter.h"

namespace nmoe {

struct PredictionPasses;

// What drafts, of the kinds that need it.
struct DraftModels {
  std::shared_ptr<CachedModel> model = nullptr;             // of kModel
  std::shared_ptr<PredictionPasses> predictions = nullptr;  // of kMtp
};

// Error (usage): check_drafts's; states of the model that writes do not go back behind a wrong guess; or its module is
// to guess, and it has none. All that can be known before weights are read.
void check_draft_target(const DraftOptions& options, bool goes_back, bool has_module);

// For texts of `target`, which outlives it; null without drafts. Error (usage): that of check_draft_target, or the
// drafting model cannot guess what the other writes (ModelDrafter, MtpDrafter).
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const CachedModel& target, DraftModels models);

}  // namespace nmoe
