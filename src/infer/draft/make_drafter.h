// The drafter of a kind.
#pragma once

#include <memory>

#include "infer/draft/drafter.h"

namespace nmoe {

// Null without drafts.
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options);

}  // namespace nmoe
