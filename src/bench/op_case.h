// An operation at one size, as `n bench ops` times it.
#pragma once

#include <functional>
#include <string>

#include "bench/workbench.h"

namespace nmoe {

struct OpCase {
  using Work = std::function<void()>;

  std::string name, shape;          // as OpTiming's (ops_bench.h)
  double flops = 0.0, bytes = 0.0;  // likewise
  // Makes what a call needs in the workbench's arena, and returns the call, which the workbench has to outlive.
  std::function<Work(Workbench&)> prepare;
  // A part of the call that does not count, timed by itself and subtracted; empty: there is none.
  std::function<Work(Workbench&)> prepare_excluded = {};
};

}  // namespace nmoe
