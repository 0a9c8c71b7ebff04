// Rows of a pass of generation, ordered by the slots of their sequences.
#pragma once

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

// [Z + 2] and [T] I32: where each slot's rows begin among all, ordered by slots, -1 first, and which rows those are.
struct SlotRows {
  Tensor begins, order;
};
inline SlotRows claim_slot_rows(ArenaScope& scope, int64_t num_slots, int64_t num_rows) {
  return {.begins = scope.allocate(DType::kI32, {num_slots + 2}), .order = scope.allocate(DType::kI32, {num_rows})};
}

}  // namespace nmoe::cuda
