// The changes that have been made to training's arithmetic: steps of the same run that give other bits than they did
// before. A checkpoint has the number of changes that it was trained with (CheckpointInfo::arithmetic_changes). There
// is one arithmetic, the last: a run that is resumed from a smaller number is told what has changed, and goes on with
// it.
//
// Whoever changes bits of weights or losses adds a line at the end of the list in arithmetic_changes.cpp. Lines are
// never removed or put in another order, since checkpoints count them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "config/config.h"

namespace nmoe {

struct ArithmeticChange {
  std::string_view now;            // what is true from then on, as part of a sentence
  bool (*affects)(const Config&);  // whether runs of this configuration have other bits since
};

// All changes, the oldest first.
std::span<const ArithmeticChange> arithmetic_changes();

// The warning for a run of `config` that is resumed from a checkpoint with the first `before` of `changes`: names those
// since then that affect it. "" if none does. A checkpoint of a later nmoe may have more than all.
std::string warn_of_changed_arithmetic(std::span<const ArithmeticChange> changes, int64_t before, const Config& config);

}  // namespace nmoe
