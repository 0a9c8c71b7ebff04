// A microbatch on the host: what a source of batches gives, and an engine copies to its device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "data/stream/documents.h"
#include "model/batch.h"

namespace nmoe {

// Views of arrays that someone else keeps, with one value for each of its tokens.
struct Microbatch {
  std::span<const int32_t> tokens;
  BatchRows<std::span<const std::byte>> rows = {};  // of values of the row's dtype; empty: without that row
  const Documents* documents = nullptr;             // those of the tokens with data.mask_documents, else null
};

// With the tokens that follow. `documents`: none if they are empty.
inline Microbatch microbatch_of(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                                const Documents& documents) {
  return {.tokens = tokens,
          .rows = {{BatchRow::kTargets, std::as_bytes(targets)}},
          .documents = documents.empty() ? nullptr : &documents};
}

}  // namespace nmoe
