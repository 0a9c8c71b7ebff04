// What a model keeps of sequences between passes of generation (model/spec/state.h): for each part of a layer, tensors
// by slot. A slot holds one sequence.
//
// Z slots, C positions (capacity), T rows of one cached pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec/state.h"
#include "ops/ops.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace nmoe {

// Of one part, as its StateSpec describes it.
struct PartStates {
  std::vector<Tensor> by_position;  // [Z, C, width] act each, like keys and values
  std::vector<Tensor> fixed;        // [Z, shape] act or stat each
};

struct ModelStates {
  int64_t num_slots = 0;
  int64_t capacity = 0;
  bool goes_back = true;          // StateSpec::goes_back() of all parts
  std::vector<PartStates> parts;  // in the order of their specs

  // Enqueues a copy of everything that slot `from` holds to slot `to`.
  void copy_slot(Ops& ops, int64_t from, int64_t to) const;
};

// Their memory, with nothing in it.
ModelStates make_states(std::span<const StateSpec> specs, const Ops& ops, Arena& arena, int64_t num_slots,
                        int64_t capacity);

// Tokens to run through the model, each continuing the sequence in its slot; several may have the same slot, in the
// order of their positions. The positions from 0 to a row's own in its slot must be held there or be among these rows;
// where states do not go back, the first of a slot's rows is at position 0 or directly behind what the slot holds.
struct CachedRows {
  Tensor tokens;     // [T] i32
  Tensor slots;      // [T] i32, < Z; -1: of no sequence, and nothing is kept of the row
  Tensor positions;  // [T] i32, < C
};

}  // namespace nmoe
