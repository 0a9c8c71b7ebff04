// Statistics of a step's exchanges on each rank.
//
// N ranks of the run, W of a domain, L layers with experts.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// The transfers of tokens' rows between ranks, in the order of a step. Each ends with a barrier.
enum class Transfer { kDispatch, kCombine, kCombineBackward, kDispatchBackward };
inline constexpr std::array kTransfers = {Transfer::kDispatch, Transfer::kCombine, Transfer::kCombineBackward,
                                          Transfer::kDispatchBackward};
std::string_view transfer_name(Transfer transfer);  // "dispatch_backward"

// Every microbatch of a step adds to these; Model::begin_step sets them to zero. Each rank writes only its own part, so
// a sum over ranks gives every rank all parts.
struct ExchangeStats {
  // [N, L, 2, W] i32: tokens that a rank sends to each rank of its domain, itself included, and their copies there. Of
  // one rank and layer: [2, W].
  Tensor traffic;
  // [N, L, 4] f64: nanoseconds that a rank waited for the others of its domain at the end of each transfer. Of a rank
  // and layer: [4].
  Tensor waited;
  // [N, L, 4] f64: nanoseconds that each transfer took on the communication lane, that wait included; and the part of
  // them during which the compute lane was idle, waiting for it.
  Tensor lasted, exposed;
  // [1] i64 each: when that which adds to `lasted`, or to `exposed`, next began. This rank's own, of all layers: on a
  // lane one comes after the other. Not summed.
  Tensor lasts_since = {}, exposed_since = {};

  // All that are summed; none if there are no statistics.
  std::vector<Tensor> tensors() const {
    return traffic.defined() ? std::vector{traffic, waited, lasted, exposed} : std::vector<Tensor>{};
  }
};

}  // namespace nmoe
