// Which rank of a domain has which experts, and where they go so that all ranks get equally many rows.
//
// L layers of experts, E experts of a layer, W ranks, U = E / W slots for experts on a rank.
//
// A *place* is a slot of a rank: rank * U + slot. The experts of a layer fill the places 0 to E - 1, whatever W is, so
// that a placement made for some number of ranks is one for any other that divides E: ranks that were in balance still
// are where two of them have become one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nmoe {

// [L][E]: the place of each expert.
using ExpertPlacement = std::vector<std::vector<int32_t>>;

// What a run knows of its experts' places, and a checkpoint keeps. Nothing where no ranks share experts.
struct ExpertState {
  ExpertPlacement places;
  // [L][E]: rows that each expert got since experts were rebalanced last; empty where nobody counts.
  std::vector<std::vector<int64_t>> rows;
};

// Expert e in place e.
std::vector<int32_t> places_in_order(int64_t num_experts);

// The experts in the slots of a rank, of which it has num_slots.
std::vector<int32_t> experts_at(std::span<const int32_t> places, int64_t rank, int64_t num_slots);

// The most loaded rank's rows over the mean of ranks; 1 where there are none. rows [E].
double rank_load(std::span<const int64_t> rows, std::span<const int32_t> places, int64_t num_ranks);

// A layer is left as it is up to this load: what is left to gain is less than loads change from step to step.
inline constexpr double kBalancedLoad = 1.05;

// Places of a layer's experts, rows [E] being what they got at `places`: those themselves where the load is at most
// kBalancedLoad or cannot be made lower, else others with a lower load. Experts that are still on their rank are in
// their slot. Pairs of experts change places between the most loaded rank and another, the pair that helps most first,
// so that few move. The result is a function of the arguments.
std::vector<int32_t> rebalance(std::span<const int64_t> rows, std::span<const int32_t> places, int64_t num_ranks);

}  // namespace nmoe
