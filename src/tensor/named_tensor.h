// A tensor under the name it has in checkpoints and messages.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace nmoe {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// The same for a part of a tensor that is spread over several owners: the elements [offset, offset +
// tensor.num_elements()) of the flattened whole.
struct NamedPart {
  std::string name;
  Tensor tensor;
  Shape shape;  // of the whole
  int64_t offset = 0;
};

}  // namespace nmoe
