// The plans of all operations (plans/planner.h): for a struct of arguments that needs scratch or chooses among kernels
// there is a function plan(Planner&, const Arguments&). The CUDA operation gets what it returns, and a device that only
// counts (ops/planned) makes nothing but these plans. An operation without one has no scratch, and no way to any.
#pragma once

#include <optional>
#include <utility>

#include "ops/cuda/plans/across.h"
#include "ops/cuda/plans/attention.h"
#include "ops/cuda/plans/bias.h"
#include "ops/cuda/plans/cached_attention.h"
#include "ops/cuda/plans/convolution.h"
#include "ops/cuda/plans/delta_rule.h"
#include "ops/cuda/plans/embedding.h"
#include "ops/cuda/plans/grouped_linear.h"
#include "ops/cuda/plans/head.h"
#include "ops/cuda/plans/linear.h"
#include "ops/cuda/plans/measuring.h"
#include "ops/cuda/plans/moe.h"
#include "ops/cuda/plans/muon.h"
#include "ops/cuda/plans/norm.h"
#include "ops/cuda/plans/reductions.h"
#include "ops/cuda/plans/rounding.h"
#include "ops/cuda/plans/router.h"
#include "ops/cuda/plans/ssd.h"

namespace nmoe::cuda {

template <class Arguments>
concept Planned = requires(Planner& to, const Arguments& args) {
  plan(to, args);
};
template <Planned Arguments>
using PlanOf = decltype(plan(std::declval<Planner&>(), std::declval<const Arguments&>()));

// Of a whole operation: where operands are rounded ahead of the product, of the same with those.
template <class Arguments>
struct OperationPlan {
  std::optional<Widened<Arguments>> widened;
  PlanOf<Arguments> plan;
};
template <class Arguments>
OperationPlan<Arguments> plan_operation(Planner& to, const Arguments& args) {
  if constexpr (requires { args.rounding; }) {
    check_rounds(to.kernels, args);
    if (is_emulated(to.kernels, args.rounding)) {
      Widened<Arguments> widened = claim_widened(to.scope, args);
      auto made = plan(to, widened.args);
      return {std::move(widened), std::move(made)};
    }
  }
  return {std::nullopt, plan(to, args)};
}

}  // namespace nmoe::cuda
