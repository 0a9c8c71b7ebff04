#include "rdep/moves.h"

#include <algorithm>

#include "base/error.h"

namespace nmoe {
namespace {

// What of a slot of staging memory is for `like`, behind `first` bytes of it.
Tensor part_of_staging(const Tensor& staging, int64_t slot, int64_t first, const Tensor& like) {
  const Tensor whole = staging[slot];
  NMOE_CHECK(first + like.num_bytes() <= whole.num_bytes(), "{} bytes of an expert in staging memory for {}",
             first + like.num_bytes(), whole.num_bytes());
  return {static_cast<std::byte*>(whole.raw()) + first, like.dtype(), like.shape()};
}

struct Move {
  int64_t from_rank, from_slot, to_rank, to_slot;
};

std::vector<Move> moves_of(std::span<const int32_t> from, std::span<const int32_t> to, int64_t num_ranks) {
  const int64_t num_slots = static_cast<int64_t>(from.size()) / num_ranks;
  std::vector<Move> moves;
  for (size_t expert = 0; expert < from.size(); ++expert) {
    if (from[expert] == to[expert]) continue;
    moves.push_back({.from_rank = from[expert] / num_slots,
                     .from_slot = from[expert] % num_slots,
                     .to_rank = to[expert] / num_slots,
                     .to_slot = to[expert] % num_slots});
  }
  return moves;
}

}  // namespace

// A turn: whatever leaves its slot is laid into the staging memory of its rank, and all is there before any slot gets
// its new expert. So cycles of any length need no more of it.
void move_experts(Ops& ops, Transport& transport, std::span<const MovableExperts> experts, const ExpertPlacement& from,
                  const ExpertPlacement& to) {
  std::vector<std::vector<Move>> moves;
  for (size_t layer = 0; layer < from.size(); ++layer) {
    moves.push_back(moves_of(from[layer], to[layer], transport.count()));
  }
  size_t num_turns = 0;
  for (const MovableExperts& weight : experts) num_turns = std::max(num_turns, weight.turns.size());
  for (size_t turn = 0; turn < num_turns; ++turn) {
    const auto for_each_part = [&](const auto& visit) {
      for (const MovableExperts& weight : experts) {
        if (turn >= weight.turns.size()) continue;
        for (const Move& move : moves[weight.layer]) {
          int64_t first = 0;
          for (const Tensor& tensor : weight.turns[turn]) {
            visit(move, tensor, part_of_staging(weight.staging, move.from_slot, first, tensor[move.from_slot]));
            first += tensor[0].num_bytes();
          }
        }
      }
    };
    for_each_part([&](const Move& move, const Tensor& tensor, const Tensor& staging) {
      if (move.from_rank == transport.index()) ops.copy({.source = tensor[move.from_slot], .destination = staging});
    });
    transport.signal(ops);
    transport.wait(ops, {}, {});
    for_each_part([&](const Move& move, const Tensor& tensor, const Tensor& staging) {
      if (move.to_rank != transport.index()) return;
      transport.get(ops, move.from_rank, staging, tensor[move.to_slot]);
    });
    transport.signal(ops);
    transport.wait(ops, {}, {});
  }
}

int64_t Rebalancing::moves() const {
  int64_t sum = 0;
  for (const Layer& layer : layers) sum += layer.moves;
  return sum;
}

}  // namespace nmoe
