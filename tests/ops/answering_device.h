// A device as checks see it that all devices have in common.
#pragma once

#include "ops/ops.h"
#include "tensor/tensor.h"

namespace nmoe::test {

class AnsweringDevice {
 public:
  virtual ~AnsweringDevice() = default;
  virtual Ops& answering_ops() = 0;
  virtual DType act() const = 0;
  virtual Tensor there(Tensor host, DType dtype) = 0;                     // a copy on it
  virtual Tensor here(Tensor device) = 0;                                 // on the host, BF16 as F32
  virtual OperandRounding of_weight(OperandFormat format, Tensor w) = 0;  // with codes of w, where it wants those
};

}  // namespace nmoe::test
