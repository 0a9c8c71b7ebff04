// Documents that begin at multiples of a number of tokens (data.align_documents): padding follows each one up to the
// next multiple. Then attention divides a document into the same blocks of keys wherever it lies.
//
// In streams padding repeats its document from the beginning. It is a document of its own, which no other token attends
// to, and none of its tokens is a target. Routers see it as text that begins, so that it does not bend the balance of
// experts as one token repeated would. Nor is the first token of a document a target: what is learned of a document
// does not depend on what lies before it.
//
// Sequences are multiples of the alignment. So what is left of a document that a sequence cuts begins the next one, and
// padding is never cut.
#pragma once

#include <cstdint>

#include "data/shards/dataset.h"

namespace nmoe {

// Tokens of a document of so many with the padding behind it.
constexpr int64_t aligned(int64_t num_tokens, int64_t alignment) {
  return (num_tokens + alignment - 1) / alignment * alignment;
}

// Tokens of padding behind all documents. Goes through their lengths, unless alignment is 1. Error (runtime) if an
// index is damaged.
int64_t padding_tokens(const TokenDataset& dataset, int64_t alignment);

}  // namespace nmoe
