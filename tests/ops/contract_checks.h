// What tests of contracts' checks share: the same checks on every device, whether it computes or only counts.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "ops/contracts/checks.h"
#include "ops/factory.h"
#include "ops/peers.h"
#include "support/tensors.h"

namespace nmoe::test {

inline Tensor of(DType dtype, Shape shape) { return Tensor(nullptr, dtype, shape); }
inline Tensor floats(Shape shape) { return of(DType::kF32, shape); }
inline Tensor ints(Shape shape) { return of(DType::kI32, shape); }
inline Tensor doubles(Shape shape) { return of(DType::kF64, shape); }
inline RowCodes codes(int64_t rows, int64_t width) {
  return {.values = of(DType::kU8, {rows, width}), .scales = of(DType::kU8, {rows, (width + 127) / 128})};
}
inline ColumnCodes columns(int64_t blocks, int64_t width) {
  return {.values = of(DType::kU8, {blocks, width, 128}), .scales = of(DType::kU8, {blocks, width})};
}

class ContractChecks : public ::testing::Test {
 protected:
  // Tensors without values, which a device that counts takes, and one that computes refuses before it looks.
  template <class Arguments>
  void expect_taken(void (Ops::*operation)(const Arguments&), const Arguments& args) {
    for (Device* device : {counting_.get(), planned_.get()}) {
      EXPECT_NO_THROW((device->ops().*operation)(args)) << device->description();
    }
  }
  template <class Arguments>
  void expect_refused(void (Ops::*operation)(const Arguments&), const Arguments& args) {
    EXPECT_THROW(((*cpu_).*operation)(args), CheckFailure);
    for (Device* device : {counting_.get(), planned_.get()}) {
      EXPECT_THROW((device->ops().*operation)(args), CheckFailure) << device->description();
    }
  }
  // Good arguments, and what each of `spoil` makes of them.
  template <class Arguments>
  void expect(void (Ops::*operation)(const Arguments&), const Arguments& good,
              const std::vector<std::function<void(std::type_identity_t<Arguments>&)>>& spoil) {
    expect_taken(operation, good);
    for (size_t i = 0; i < spoil.size(); ++i) {
      SCOPED_TRACE(i);
      Arguments bad = good;
      spoil[i](bad);
      expect_refused(operation, bad);
    }
  }

  ReadyDevice cpu_ = cpu_device(DType::kF32);
  std::unique_ptr<Device> counting_ = make_device({.kind = "cpu", .num_threads = 1, .compute_dtype = DType::kF32});
  std::unique_ptr<Device> planned_ =
      make_device({.kind = "cuda", .compute_dtype = DType::kBF16, .part = GpuPart{.memory_bytes = 1}});
};

}  // namespace nmoe::test
