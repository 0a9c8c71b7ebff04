#include "base/error.h"
#include "ops/contracts/checks.h"

namespace nmoe {

void check(const SumAcross& args) {
  for (const Tensor& tensor : args.tensors) {
    const DType dtype = tensor.dtype();
    NMOE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF64 || dtype == DType::kI32,
               "a sum over domains of {}", dtype_name(dtype));
  }
}

}  // namespace nmoe
