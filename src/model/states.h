// What a model keeps of sequences between passes of generation (model/spec/state.h), for each part of a layer: what it
// keeps of positions in pages, which slots may share (ops/contracts/cache.h), the rest by slot. A slot holds one
// sequence.
//
// Z slots, P pages, B blocks of positions of a slot, C positions (capacity, at most B pages of them), T rows of one
// cached pass.
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
  Tensor pages;                     // ModelStates::pages
  std::vector<Tensor> by_position;  // [P, kPagePositions, width] act each, like keys and values
  std::vector<Tensor> fixed;        // [Z, shape] act or stat each
};

struct StateSizes {
  int64_t num_slots = 0;
  int64_t capacity = 0;
  int64_t num_pages = 0;  // 0: as many as all slots have blocks

  // Blocks of a slot's positions.
  int64_t num_blocks() const { return (capacity + kPagePositions - 1) / kPagePositions; }
};

struct ModelStates {
  StateSizes sizes = {};
  Tensor pages;                   // [Z, B] i32: the page of each block of a slot; filled by whoever runs rows
  bool goes_back = true;          // StateSpec::goes_back() of all parts
  std::vector<PartStates> parts;  // in the order of their specs

  // Enqueues a copy of what pages [from, from + count) hold to those from `to` on, which are others.
  void copy_pages(Ops& ops, int64_t from, int64_t to, int64_t count) const;
  // The same for what slot `from` holds beside pages, to slot `to`.
  void copy_fixed(Ops& ops, int64_t from, int64_t to) const;
};

// Their memory, with nothing in it.
ModelStates make_states(std::span<const StateSpec> specs, const Ops& ops, Arena& arena, const StateSizes& sizes);

// What ModelStates::pages is where every slot has pages of its own, one slot's behind the other's; sizes.num_pages is
// 0.
std::vector<int32_t> own_pages(const StateSizes& sizes);

// Tokens to run through the model, each continuing the sequence in its slot; several may have the same slot, in the
// order of their positions. The positions from 0 to a row's own in its slot must be held there or be among these rows;
// where states do not go back, the first of a slot's rows is at position 0 or directly behind what the slot holds.
struct CachedRows {
  Tensor tokens;     // [T] i32
  Tensor slots;      // [T] i32, < Z; -1: of no sequence, and nothing is kept of the row
  Tensor positions;  // [T] i32, < C
};

}  // namespace nmoe
