// Pre-activations that wait for backward as codes, on every device: forward leaves the codes of what it makes without
// them and nothing else changes, and backward makes of codes what it makes of the values that they stand for.
#pragma once

#include <cstdint>

#include "ops/answering_device.h"
#include "support/tensors.h"

namespace nmoe::test {

// Of an MLP of rows and of experts, with `hidden` hidden units, whose products round their operands to `format`.
void expect_saved_codes(AnsweringDevice& device, TensorPool& pool, Activation kind, int64_t hidden,
                        OperandFormat format);

}  // namespace nmoe::test
