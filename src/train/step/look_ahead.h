// What depths of multi-token prediction read of a microbatch (AheadRows, model/batch.h), and how many of them have a
// target. A window has one token beyond its inputs: of depth k, the last k positions of each sequence, or document
// where attention is within them, have no target, nor have those whose target no depth is to learn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/step/microbatch.h"

namespace nmoe {

// tokens, targets [T] = those of depth `depth`, from 1, of a microbatch in sequences of `seq_len` tokens: at position i
// what the microbatch has at i + depth, if that is in the same sequence and document, else 0 and kNoTarget.
void look_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth, std::span<int32_t> tokens,
                std::span<int32_t> targets);

// The numbers of targets of depths 1 to `depth`.
std::vector<int64_t> count_targets_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth);

}  // namespace nmoe
