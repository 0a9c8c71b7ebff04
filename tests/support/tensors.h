// Tensors for tests: storage, fillers and comparison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/factory.h"
#include "tensor/tensor.h"

namespace nmoe::test {

// Where element `index`, in row-major order, lies.
inline int64_t place_of(Tensor x, int64_t index) {
  if (x.dense()) return index;
  const int64_t width = x.shape().row_elements();
  return index / width * x.stride() + index % width;
}

// One element as a double, whatever the dtype (F64, F32 or I32).
inline double get(Tensor x, int64_t index) {
  index = place_of(x, index);
  switch (x.dtype()) {
    case DType::kF64:
      return x.rows_data<double>()[index];
    case DType::kF32:
      return x.rows_data<float>()[index];
    case DType::kI32:
      return x.rows_data<int32_t>()[index];
    default:
      break;
  }
  NMOE_CHECK(false, "tests do not read {}", dtype_name(x.dtype()));
}

inline void set(Tensor x, int64_t index, double value) {
  index = place_of(x, index);
  switch (x.dtype()) {
    case DType::kF64:
      x.rows_data<double>()[index] = value;
      return;
    case DType::kF32:
      x.rows_data<float>()[index] = static_cast<float>(value);
      return;
    case DType::kI32:
      x.rows_data<int32_t>()[index] = static_cast<int32_t>(value);
      return;
    default:
      break;
  }
  NMOE_CHECK(false, "tests do not write {}", dtype_name(x.dtype()));
}

inline std::vector<double> values(Tensor x) {
  std::vector<double> result;
  for (int64_t i = 0; i < x.num_elements(); ++i) result.push_back(get(x, i));
  return result;
}

// The same shape as a counting arena gives it.
inline Tensor without_data(Tensor x) { return {nullptr, x.dtype(), x.shape()}; }

// Tensors whose rows lie apart are made as the middle columns of a matrix, with as many on either side.
inline Tensor middle_columns(Tensor matrix, Shape shape) {
  const int64_t width = shape.row_elements(), beside = (matrix.dim(1) - width) / 2;
  return matrix.columns(beside, beside + width).reshape(shape);
}
inline Tensor matrix_around(Tensor middle) {
  const int64_t beside = (middle.stride() - middle.shape().row_elements()) / 2;
  char* const first =
      static_cast<char*>(middle.rows_raw()) - beside * static_cast<int64_t>(dtype_bytes(middle.dtype()));
  return {first, middle.dtype(), {middle.dim(0), middle.stride()}};
}

// Owner of tensors, each in an allocation of its own and exact size, so that a sanitizer sees every
// overrun. The random fillers draw from one stream a tensor: pools of different dtypes filled by
// the same calls hold the same numbers up to rounding.
class TensorPool {
 public:
  // `real` is the dtype of every tensor whose maker does not name another.
  explicit TensorPool(DType real = DType::kF64, uint64_t seed = 1) : real_(real), seed_(seed) {}

  DType real() const { return real_; }

  Tensor zeros(DType dtype, Shape shape) {
    Tensor x(nullptr, dtype, shape);
    const auto bytes = static_cast<size_t>(x.num_bytes());
    blocks_.emplace_back(static_cast<std::byte*>(operator new(bytes, kAlignment)));
    if (bytes > 0) std::memset(blocks_.back().get(), 0, bytes);
    return {blocks_.back().get(), dtype, shape};
  }
  Tensor zeros(Shape shape) { return zeros(real_, shape); }
  Tensor full(Shape shape, double value) {
    return fill(zeros(shape), [&](int64_t) { return value; });
  }
  Tensor normal(Shape shape, double scale = 1.0, double mean = 0.0) {
    const Philox rng(seed_, next_stream_++);
    return fill(zeros(shape), [&](int64_t i) { return mean + scale * rng.normal(static_cast<uint64_t>(i)); });
  }
  // Integers in [0, bound), I32.
  Tensor random_ints(Shape shape, int64_t bound) {
    const Philox rng(seed_, next_stream_++);
    return fill(zeros(DType::kI32, shape), [&](int64_t i) {
      return static_cast<double>(rng.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(bound));
    });
  }
  Tensor of(Shape shape, const std::vector<double>& values) { return of(real_, shape, values); }
  Tensor ints(Shape shape, const std::vector<double>& values) { return of(DType::kI32, shape, values); }
  Tensor clone(Tensor x) { return of(x.dtype(), x.shape(), test::values(x)); }
  // A copy whose rows lie apart, with `beside` columns of NaN on either side.
  Tensor apart(Tensor x, int64_t beside) {
    const Tensor matrix = fill(zeros(x.dtype(), {x.dim(0), x.shape().row_elements() + 2 * beside}),
                               [](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
    const Tensor copy = middle_columns(matrix, x.shape());
    return fill(copy, [&](int64_t i) { return get(x, i); });
  }

 private:
  static constexpr std::align_val_t kAlignment{static_cast<size_t>(Arena::kAlignment)};
  struct Free {
    void operator()(std::byte* block) const { operator delete(block, kAlignment); }
  };

  template <class Fn>
  static Tensor fill(Tensor x, Fn&& value) {
    for (int64_t i = 0; i < x.num_elements(); ++i) set(x, i, value(i));
    return x;
  }
  Tensor of(DType dtype, Shape shape, const std::vector<double>& values) {
    NMOE_CHECK(shape.num_elements() == static_cast<int64_t>(values.size()), "{} values for {}", values.size(), shape);
    return fill(zeros(dtype, shape), [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  }

  DType real_;
  uint64_t seed_;
  uint64_t next_stream_ = 0;
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

// A device whose scratch is ready for use, reached as its operations of one arithmetic: ops->fill({x, 0.0}).
class ReadyDevice {
 public:
  ReadyDevice() = default;
  ReadyDevice(const DeviceOptions& options, int64_t scratch_bytes, Arithmetic arithmetic = Arithmetic::kFastest)
      : device_(make_device(options)), arithmetic_(arithmetic) {
    device_->scratch(Lane::kCompute).reserve(device_->memory(), scratch_bytes);
  }
  Device& device() const { return *device_; }
  Ops& operator*() const { return device_->ops(arithmetic_); }
  Ops* operator->() const { return &device_->ops(arithmetic_); }

 private:
  std::unique_ptr<Device> device_;
  Arithmetic arithmetic_ = Arithmetic::kFastest;
};
inline ReadyDevice cpu_device(DType real = DType::kF64, int num_threads = 2, int64_t scratch_bytes = 16 << 20) {
  return {{.num_threads = num_threads, .compute_dtype = real}, scratch_bytes};
}

// Whether every element of `actual` is within `tolerance` of `expected`, relative to the larger of
// the element and a thousandth of the largest expected magnitude. NaN fails. The message names the
// worst element.
inline ::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                       double tolerance) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  }
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  double worst = 0;
  size_t worst_index = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    const double size = std::max({std::abs(actual[i]), std::abs(expected[i]), 1e-3 * largest});
    const double error = difference == 0 ? 0 : difference / size;
    if (!(error <= worst)) {  // true for NaN, which then stays
      worst = error;
      worst_index = i;
      if (std::isnan(error)) break;
    }
  }
  if (worst <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format(
             "element {} of {}: {:.10g}, expected {:.10g}: relative error {:.3g}, tolerance {:.3g}", worst_index,
             actual.size(), actual[worst_index], expected[worst_index], worst, tolerance);
}
inline ::testing::AssertionResult near(Tensor actual, const std::vector<double>& expected, double tolerance) {
  return near(values(actual), expected, tolerance);
}
inline ::testing::AssertionResult near(Tensor actual, Tensor expected, double tolerance) {
  if (actual.shape() != expected.shape()) {
    return ::testing::AssertionFailure() << fmt::format("shape {}, expected {}", actual.shape(), expected.shape());
  }
  return near(values(actual), values(expected), tolerance);
}

// Whether both hold the same bytes.
inline ::testing::AssertionResult same_bits(Tensor a, Tensor b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) {
    return ::testing::AssertionFailure() << fmt::format("{} {} and {} {}", dtype_name(a.dtype()), a.shape(),
                                                        dtype_name(b.dtype()), b.shape());
  }
  const auto width = static_cast<int64_t>(dtype_bytes(a.dtype()));
  const auto* bytes_a = static_cast<const std::byte*>(a.raw());
  const auto* bytes_b = static_cast<const std::byte*>(b.raw());
  for (int64_t i = 0; i < a.num_bytes(); ++i) {
    if (bytes_a[i] != bytes_b[i]) {
      return ::testing::AssertionFailure() << fmt::format("element {} of {} differs: {:.17g} and {:.17g}", i / width,
                                                          a.shape(), get(a, i / width), get(b, i / width));
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace nmoe::test
