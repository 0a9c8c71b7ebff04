// Tensor: a non-owning, dense, row-major view. Storage belongs to an Arena.
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
  void* raw() const { return data_; }

  // Typed access; T must be the dtype.
  template <class T>
  T* data() const {
    NMOE_CHECK(DTypeOf<T>::value == dtype_, "tensor is {}, asked for as {}", dtype_name(dtype_),
               dtype_name(DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(num_elements())};
  }

  // The same elements under another shape of equal size.
  Tensor reshape(Shape shape) const;
  // Rows [begin, end) of the outermost dimension.
  Tensor rows(int64_t begin, int64_t end) const;
  // Element `index` of the outermost dimension, one rank lower: [E, N, K] -> [N, K].
  Tensor operator[](int64_t index) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace nmoe

// Written as to_string() does; takes no format specification.
template <>
struct fmt::formatter<nmoe::Shape> {
  constexpr auto parse(format_parse_context& ctx) { return ctx.begin(); }
  auto format(const nmoe::Shape& shape, format_context& ctx) const {
    return fmt::format_to(ctx.out(), "{}", shape.to_string());
  }
};
