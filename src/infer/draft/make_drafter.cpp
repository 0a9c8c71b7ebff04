#include "infer/draft/make_drafter.h"

#include "base/error.h"
#include "infer/draft/ngram_drafter.h"

namespace nmoe {

std::unique_ptr<Drafter> make_drafter(const DraftOptions& options) {
  switch (options.kind) {
    case DraftKind::kNone:
      return nullptr;
    case DraftKind::kNgram:
      return std::make_unique<NgramDrafter>();
  }
  NMOE_CHECK(false, "draft kind {}", static_cast<int>(options.kind));
}

}  // namespace nmoe
