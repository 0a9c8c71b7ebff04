// Of the sort behind embedding_backward.
#pragma once

#include <cstdint>

namespace nmoe::cuda {

// Bytes that CUB's radix sort of pairs of I32 asks for.
int64_t sort_workspace(int64_t num_keys);

}  // namespace nmoe::cuda
