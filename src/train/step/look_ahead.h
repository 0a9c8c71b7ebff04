// What depths of multi-token prediction read of a microbatch (AheadRows, model/batch.h), and how many of them have a
// target. A window has one token beyond its inputs: of depth k, the last k positions of a sequence have no target.
// Where attention is within documents, nor have the last k + 1 of a document that ends within its sequence: what a
// target would be belongs to the next one. Nor, of course, has a position whose target training leaves out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/step/microbatch.h"

namespace nmoe {

// tokens, targets [T] = those of depth `depth`, from 1, of a microbatch in sequences of `seq_len` tokens: at position i
// what the microbatch has at i + depth; where that is in another sequence or document, the token 0, and for targets of
// another one kNoTarget.
void look_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth, std::span<int32_t> tokens,
                std::span<int32_t> targets);

// The numbers of targets of depths 1 to `depth`.
std::vector<int64_t> count_targets_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth);

}  // namespace nmoe
