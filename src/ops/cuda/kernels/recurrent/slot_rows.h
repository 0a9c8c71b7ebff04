// Rows of generation by the slots of their sequences.
#pragma once

#include "ops/cuda/plans/slot_rows.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Fills in `rows`. slots: [T] I32, of sequences in num_slots slots, or of none (-1); rows of slots that do not exist
// are in none.
void order_by_slots(Context& ctx, const Tensor& slots, int64_t num_slots, const SlotRows& rows);

}  // namespace nmoe::cuda
