// Moves stacked experts, with all of their state on a rank, between the ranks of a domain.
//
// U slots for experts on a rank (rdep/placement.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "rdep/placement.h"
#include "rdep/transport.h"

namespace nmoe {

// This rank's state of one weight's experts.
struct MovableExperts {
  size_t layer;    // index in the placement
  Tensor staging;  // [U, ...], shared and unused: departing experts wait here until another rank has fetched them
  // [U, ...] each. The tensors of a turn move together: those of one expert fit into one slot of the staging memory.
  std::vector<std::vector<Tensor>> turns;
};

// Enqueues the move of each expert from its place in `from` to its place in `to`. All ranks must call it with the
// same placements, while none of them uses the staging memory.
void move_experts(Ops& ops, Transport& transport, std::span<const MovableExperts> experts, const ExpertPlacement& from,
                  const ExpertPlacement& to);

// The result of a rebalancing.
struct Rebalancing {
  struct Layer {
    int64_t layer = 0;                           // of the model
    int64_t moves = 0;                           // number of experts that changed ranks
    double load_before = 1.0, load_after = 1.0;  // rank_load() of the counted rows with the old and the new places
  };
  std::vector<Layer> layers;  // of experts

  int64_t moves() const;
};

}  // namespace nmoe
