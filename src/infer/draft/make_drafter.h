// The drafter of a kind.
#pragma once

#include <memory>

#include "infer/cached_model.h"
#include "infer/draft/drafter.h"

namespace nmoe {

// For texts of `target`, which outlives it; null without drafts. `draft_model`: of DraftKind::kModel. Error (usage):
// that model cannot guess what the other writes (ModelDrafter).
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const CachedModel& target,
                                      std::shared_ptr<CachedModel> draft_model);

}  // namespace nmoe
