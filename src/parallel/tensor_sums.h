// Sums of tensors over ranks: who sums what, and what communicators do in the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace nmoe {

// False when no tensor has data, as in a counting run; true when every tensor that is not empty has. Anything between
// is a bug.
bool has_data(std::span<const Tensor> tensors);

// Fails for a dtype that is not summed over ranks: all but F32, F64 and I32.
void check_summable(std::span<const Tensor> tensors);

// The elements of a flattened tensor that one of `num_ranks` ranks sums for all: whole blocks of 128 bytes, a packet of
// NVLink and two cache lines, so that no two ranks write to the same one.
struct RankPart {
  int64_t begin, end;
};
RankPart part_of_rank(const Tensor& tensor, int64_t rank, int64_t num_ranks);

// sum[i] += values[i], `bytes` of either, without need of alignment on the left: they may have come over a network.
void add_bytes(DType dtype, std::byte* sum, const std::byte* values, size_t bytes);

}  // namespace nmoe
