// What a contract asks of its arguments: one check(args) an operation, which every device makes before it plans or runs
// one, a device that only counts too. A check sees shapes, dtypes and options, never values, since a counting run's
// tensors have none; it throws CheckFailure. What only one kernel cannot do is said by its plan (ops/cuda/plans).
//
// Declared from the list of operations: a program does not link while one of them has no check. Bodies: checks/, a file
// for each of contracts/.
#pragma once

#include "ops/operations.h"

namespace nmoe {

#define NMOE_DECLARE_CHECK(name, Arguments) void check(const Arguments& args);
NMOE_OPERATIONS(NMOE_DECLARE_CHECK)
#undef NMOE_DECLARE_CHECK

}  // namespace nmoe
