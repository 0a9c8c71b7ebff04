// Moves stacked experts, with all that a rank keeps of them, between the ranks of a domain.
//
// U slots for experts on a rank (parallel/expert_placement.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "ops/peers.h"
#include "parallel/expert_placement.h"

namespace nmoe {

// What this rank keeps of one weight's experts.
struct MovableExperts {
  size_t layer;  // among those of a placement
  Tensor room;   // [U, ...], shared and free: what goes away waits here until it is fetched
  // [U, ...] each. Those of a turn move together: an expert's fit into a slot of the room.
  std::vector<std::vector<Tensor>> turns;
};

// Enqueues what brings each expert from its place in `from` to that in `to`. All ranks call it alike, when none of them
// uses the rooms.
void move_experts(Ops& ops, const Peers& peers, std::span<const MovableExperts> experts, const ExpertPlacement& from,
                  const ExpertPlacement& to);

// What came of a rebalancing.
struct Rebalancing {
  struct Layer {
    int64_t layer = 0;                           // of the model
    int64_t moves = 0;                           // experts that have another rank now
    double load_before = 1.0, load_after = 1.0;  // rank_load() of the rows that decided, where experts were and now are
  };
  std::vector<Layer> layers;  // of experts

  int64_t moves() const;
};

}  // namespace nmoe
