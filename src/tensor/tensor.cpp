#include "tensor/tensor.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace nmoe {

Shape::Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  NMOE_CHECK(dims.size() <= kMaxRank, "{} dimensions, at most {} are supported", dims.size(), kMaxRank);
  std::copy(dims.begin(), dims.end(), dims_.begin());
  for (const int64_t dim : dims) NMOE_CHECK(dim >= 0, "negative dimension in {}", to_string());
}

int64_t Shape::operator[](int axis) const {
  if (axis < 0) axis += rank_;
  NMOE_CHECK(axis >= 0 && axis < rank_, "axis {} of shape {}", axis, to_string());
  return dims_[static_cast<size_t>(axis)];
}

int64_t Shape::num_elements() const {
  int64_t product = 1;
  for (const int64_t dim : dims()) product *= dim;
  return product;
}

int64_t Shape::row_elements() const {
  NMOE_CHECK(rank_ > 0, "rows of a single element");
  int64_t product = 1;
  for (const int64_t dim : dims().subspan(1)) product *= dim;
  return product;
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

void Tensor::rows_lie_apart() const {
  check_failed(__FILE__, __LINE__, "dense()", fmt::format("rows of {} lie {} elements apart", shape_, stride_));
}

void Tensor::is_not(DType asked) const {
  check_failed(__FILE__, __LINE__, "dtype() == asked",
               fmt::format("tensor is {}, asked for as {}", dtype_name(dtype_), dtype_name(asked)));
}

Tensor Tensor::reshape(Shape shape) const {
  NMOE_CHECK(shape.num_elements() == num_elements() && (dense() || (shape.rank() > 0 && shape[0] == dim(0))),
             "cannot view {}{} as {}", shape_, dense() ? "" : ", whose rows lie apart,", shape);
  Tensor view(data_, dtype_, shape);
  view.stride_ = stride_;
  return view;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  NMOE_CHECK(shape_.rank() == 2 && 0 <= begin && begin <= end && end <= dim(1), "columns [{}, {}) of {}", begin, end,
             shape_);
  if (end - begin == dim(1)) return *this;
  char* base = static_cast<char*>(data_);
  Tensor view(base == nullptr ? nullptr : base + begin * static_cast<int64_t>(dtype_bytes(dtype_)), dtype_,
              {dim(0), end - begin});
  view.stride_ = stride();
  return view;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  NMOE_CHECK(0 <= begin && begin <= end && end <= dim(0), "rows [{}, {}) of {}", begin, end, shape_);
  std::array<int64_t, Shape::kMaxRank> dims{};
  const auto source = shape_.dims();
  std::copy(source.begin(), source.end(), dims.begin());
  dims[0] = end - begin;
  char* base = static_cast<char*>(data_);
  Tensor view(base == nullptr ? nullptr : base + begin * stride() * static_cast<int64_t>(dtype_bytes(dtype_)), dtype_,
              Shape(std::span<const int64_t>(dims.data(), source.size())));
  view.stride_ = stride_;
  return view;
}

Tensor Tensor::operator[](int64_t index) const {
  const Tensor row = rows(index, index + 1);
  return {row.data_, dtype_, Shape(shape_.dims().subspan(1))};
}

}  // namespace nmoe

fmt::format_context::iterator fmt::formatter<nmoe::Shape>::format(const nmoe::Shape& shape, format_context& ctx) const {
  return fmt::format_to(ctx.out(), "{}", shape.to_string());
}
