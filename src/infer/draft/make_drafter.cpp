#include "infer/draft/make_drafter.h"

#include <utility>

#include "base/error.h"
#include "infer/draft/model_drafter.h"
#include "infer/draft/ngram_drafter.h"

namespace nmoe {

std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const CachedModel& target,
                                      std::shared_ptr<CachedModel> draft_model) {
  switch (options.kind) {
    case DraftKind::kNone:
      return nullptr;
    case DraftKind::kNgram:
      return std::make_unique<NgramDrafter>();
    case DraftKind::kModel:
      NMOE_CHECK(draft_model != nullptr, "no model to draft with");
      return std::make_unique<ModelDrafter>(std::move(draft_model), target);
  }
  NMOE_CHECK(false, "draft kind {}", static_cast<int>(options.kind));
}

}  // namespace nmoe
