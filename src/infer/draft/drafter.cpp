#include "infer/draft/drafter.h"

#include "base/error.h"
#include "infer/draft/ngram_drafter.h"

namespace nmoe {

void check_drafts(const DraftOptions& options) {
  if (!options.tokens || (*options.tokens >= 1 && *options.tokens <= kMostDrafts)) return;
  throw usage_error(fmt::format("{} tokens are drafted at a time", *options.tokens),
                    fmt::format("give a number from 1 to {}, or \"auto\"", kMostDrafts));
}

int64_t most_drafts(const DraftOptions& options) {
  return options.kind == DraftKind::kNone ? 0 : options.tokens.value_or(kMostDrafts);
}

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
