#include "infer/draft/drafter.h"

#include "base/error.h"

namespace nmoe {

void check_drafts(const DraftOptions& options) {
  if (options.kind == DraftKind::kNone && options.tokens) {
    throw usage_error(fmt::format("{} tokens are to be drafted at a time, and nothing drafts", *options.tokens),
                      "name a drafter with --draft, or leave out --draft-tokens");
  }
  if (!options.tokens || (*options.tokens >= 1 && *options.tokens <= kMostDrafts)) return;
  throw usage_error(fmt::format("{} tokens are drafted at a time", *options.tokens),
                    fmt::format("give a number from 1 to {}, or \"auto\"", kMostDrafts));
}

int64_t most_drafts(const DraftOptions& options) {
  return options.kind == DraftKind::kNone ? 0 : options.tokens.value_or(kMostDrafts);
}

}  // namespace nmoe
