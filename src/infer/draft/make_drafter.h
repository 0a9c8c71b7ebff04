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

// For texts of `target`, which outlives it; null without drafts. Error (usage): the drafting model cannot guess what
// the other writes (ModelDrafter, MtpDrafter), or there are no predictions.
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const CachedModel& target, DraftModels models);

}  // namespace nmoe
