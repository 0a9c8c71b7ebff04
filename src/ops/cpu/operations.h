// The CPU's functions behind ops/ops.h: one template an operation, over the compute type Real, which `float` (training)
// and `double` (proofs) instantiate. Contracts: ops/contracts/.
#pragma once

#include "ops/cpu/context.h"
#include "ops/ops.h"

namespace nmoe::cpu {

#define NMOE_DECLARE_CPU_OPERATION(name, Arguments) \
  template <class Real>                             \
  void name(Context& ctx, const Arguments& args);
NMOE_OPERATIONS(NMOE_DECLARE_CPU_OPERATION)
#undef NMOE_DECLARE_CPU_OPERATION

// Both instantiations of an operation; goes behind its definition.
#define NMOE_CPU_INSTANTIATE(name, Arguments)            \
  template void name<float>(Context&, const Arguments&); \
  template void name<double>(Context&, const Arguments&);

}  // namespace nmoe::cpu
