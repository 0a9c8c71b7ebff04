// Tensor: a non-owning, row-major view. Storage belongs to an Arena.
//
// All are dense but columns of a matrix, whose rows lie apart. What works on those asks for rows_data() and stride();
// raw(), data() and span() are a bug there.
#pragma once

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace nmoe {

// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const;  // negative axes count from the end
  int64_t num_elements() const;        // 1 for rank 0
  int64_t row_elements() const;        // of all dimensions but the outermost, of which there must be one
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  std::string to_string() const;  // "[4, 128, 64]"
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t num_elements() const { return shape_.num_elements(); }
  int64_t num_bytes() const { return num_elements() * static_cast<int64_t>(dtype_bytes(dtype_)); }

  // Whether the view names anything. A tensor made by a counting arena has a shape and no data.
  bool defined() const { return shape_.rank() > 0; }
  void* raw() const {
    if (!dense()) [[unlikely]]
      rows_lie_apart();
    return data_;
  }

  // Typed access; T must be the dtype.
  template <class T>
  T* data() const {
    if (!dense()) [[unlikely]]
      rows_lie_apart();
    return rows_data<T>();
  }
  // The same; null where it is undefined.
  template <class T>
  T* data_or_null() const {
    return defined() ? data<T>() : nullptr;
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(num_elements())};
  }

  bool dense() const { return stride_ == 0; }
  // How many elements index i + 1 of the outermost dimension, a row, lies behind index i; every row is dense.
  int64_t stride() const { return dense() ? shape_.row_elements() : stride_; }
  // The first row.
  void* rows_raw() const { return data_; }
  template <class T>
  T* rows_data() const {
    if (DTypeOf<T>::value != dtype_) [[unlikely]]
      is_not(DTypeOf<T>::value);
    return static_cast<T*>(data_);
  }

  // The same elements under another shape of equal size; where rows lie apart, of as many rows.
  Tensor reshape(Shape shape) const;
  // Columns [begin, end) of a matrix.
  Tensor columns(int64_t begin, int64_t end) const;
  // Rows [begin, end) of the outermost dimension.
  Tensor rows(int64_t begin, int64_t end) const;
  // Element `index` of the outermost dimension, one rank lower: [E, N, K] -> [N, K].
  Tensor operator[](int64_t index) const;

 private:
  // Failed checks, apart from what is compiled wherever tensors are read.
  [[noreturn]] void rows_lie_apart() const;
  [[noreturn]] void is_not(DType asked) const;

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  int64_t stride_ = 0;  // where rows lie apart
};

}  // namespace nmoe

// Written as to_string() does; takes no format specification.
template <>
struct fmt::formatter<nmoe::Shape> {
  constexpr auto parse(format_parse_context& ctx) { return ctx.begin(); }
  format_context::iterator format(const nmoe::Shape& shape, format_context& ctx) const;
};
