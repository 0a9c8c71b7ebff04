// What the exchanges of a step did on each rank: of one layer where it is counted, of all layers where it is summed.
//
// N ranks of the run, W of a domain, L layers with experts.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// The ways of a token's rows between ranks, in the order of a step: each ends in a barrier.
enum class Transfer { kDispatch, kCombine, kCombineBackward, kDispatchBackward };
inline constexpr std::array kTransfers = {Transfer::kDispatch, Transfer::kCombine, Transfer::kCombineBackward,
                                          Transfer::kDispatchBackward};
std::string_view transfer_name(Transfer transfer);  // "dispatch_backward"

// Added to by every microbatch of a step; zeroed by Model::begin_step. Each rank adds to what is its own, so that a sum
// over ranks gives every rank everybody's.
struct ExchangeStats {
  // [N, L, 2, W] i32: tokens that a rank sends to each rank of its domain, itself included, and their copies there. Of
  // a rank and layer: [2, W].
  Tensor traffic;
  // [N, L, 4] f64: nanoseconds that a rank waited for the others of its domain at the end of each transfer. Of a rank
  // and layer: [4].
  Tensor waited;
  // [N, L, 4] i32: nanoseconds that each transfer took on the communication lane, that wait included; and of those that
  // the compute lane stood still for it, having nothing else to do. Wrong where a step's are more than 2 s.
  Tensor lasted, exposed;

  // All of them; none where there are no statistics.
  std::vector<Tensor> tensors() const {
    return traffic.defined() ? std::vector{traffic, waited, lasted, exposed} : std::vector<Tensor>{};
  }
};

}  // namespace nmoe
