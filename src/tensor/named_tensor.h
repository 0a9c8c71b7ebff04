// A tensor under the name it has in checkpoints and messages.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace nmoe {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

}  // namespace nmoe
