#include "infer/draft/make_drafter.h"

#include <utility>

#include "base/error.h"
#include "infer/draft/model_drafter.h"
#include "infer/draft/mtp_drafter.h"
#include "infer/draft/ngram_drafter.h"

namespace nmoe {

void check_draft_target(const DraftOptions& options, bool goes_back, bool has_module) {
  check_drafts(options);
  if (options.kind == DraftKind::kNone) return;
  if (!goes_back) {
    throw usage_error(
        "tokens cannot be drafted for this model: states of its layers do not go back behind a wrong guess",
        "leave out --draft");
  }
  if (options.kind == DraftKind::kMtp && !has_module) {
    throw usage_error("--draft mtp: the model has no module of multi-token prediction",
                      "give --draft ngram or a checkpoint; a model that is trained with [model.mtp] depth = 1 has one");
  }
}

std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const CachedModel& target, DraftModels models) {
  check_draft_target(options, target.goes_back(), models.predictions != nullptr);
  switch (options.kind) {
    case DraftKind::kNone:
      return nullptr;
    case DraftKind::kNgram:
      return std::make_unique<NgramDrafter>();
    case DraftKind::kModel:
      NMOE_CHECK(models.model != nullptr, "no model to draft with");
      return std::make_unique<ModelDrafter>(std::move(models.model), target);
    case DraftKind::kMtp:
      return std::make_unique<MtpDrafter>(std::move(models.predictions));
  }
  NMOE_CHECK(false, "draft kind {}", static_cast<int>(options.kind));
}

}  // namespace nmoe
