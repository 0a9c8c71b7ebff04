// CUDA's functions behind ops/ops.h, one an operation, which runs by its plan if it has one (plans.h). Contracts:
// ops/contracts/. What they share: runtime/context.h.
//
// A device cannot report what is wrong with the numbers in a tensor. What the contracts exclude shows itself later:
//   an embedding's id outside of the vocabulary    its row becomes NaN, and its gradient goes nowhere
//   a position outside of rope's tables            what it would rotate becomes NaN
//   a target beyond the vocabulary                 its loss becomes NaN, its gradient 0
//   a slot or position outside of the cache        is not written, and attends as NaN
//   a choice that is not an expert                 stops the device (a trap): the next synchronisation reports it
#pragma once

#include "ops/cuda/plans.h"
#include "ops/cuda/runtime/context.h"
#include "ops/operations.h"

namespace nmoe::cuda {

template <class Arguments>
struct RunOf {
  using type = void(Context& ctx, const Arguments& args);
};
template <Planned Arguments>
struct RunOf<Arguments> {
  using type = void(Context& ctx, const Arguments& args, const PlanOf<Arguments>& plan);
};
template <class Arguments>
using Run = typename RunOf<Arguments>::type;
#define NMOE_DECLARE_CUDA_OPERATION(name, Arguments) Run<Arguments> name;
NMOE_OPERATIONS(NMOE_DECLARE_CUDA_OPERATION)
#undef NMOE_DECLARE_CUDA_OPERATION

}  // namespace nmoe::cuda
