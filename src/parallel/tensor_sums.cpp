#include "parallel/tensor_sums.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace nmoe {
namespace {

template <class T>
void add(std::byte* sum, const std::byte* values, size_t bytes) {
  const T* more = reinterpret_cast<const T*>(values);
  std::array<T, 1024> block;  // stays in the first-level cache
  for (size_t left = bytes / sizeof(T); left > 0;) {
    const size_t size = std::min(left, block.size());
    std::memcpy(block.data(), sum, size * sizeof(T));
    for (size_t i = 0; i < size; ++i) block[i] += more[i];
    std::memcpy(sum, block.data(), size * sizeof(T));
    sum += size * sizeof(T);
    more += size;
    left -= size;
  }
}

}  // namespace

bool has_data(std::span<const Tensor> tensors) {
  const auto has = [](const Tensor& tensor) { return tensor.raw() != nullptr; };
  if (std::ranges::none_of(tensors, has)) return false;
  for (const Tensor& tensor : tensors) {
    NMOE_CHECK(has(tensor) || tensor.num_elements() == 0, "a tensor of {} without data among others", tensor.shape());
  }
  return true;
}

void check_summable(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    const DType dtype = tensor.dtype();
    NMOE_CHECK(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32, "a sum over ranks of {}",
               dtype_name(dtype));
  }
}

RankPart part_of_rank(const Tensor& tensor, int64_t rank, int64_t num_ranks) {
  const int64_t block = 128 / static_cast<int64_t>(dtype_bytes(tensor.dtype()));
  const int64_t size = tensor.num_elements(), blocks = (size + block - 1) / block;
  const auto edge = [&](int64_t index) { return std::min(size, blocks * index / num_ranks * block); };
  return {edge(rank), edge(rank + 1)};
}

void add_bytes(DType dtype, std::byte* sum, const std::byte* values, size_t bytes) {
  switch (dtype) {
    case DType::kF32:
      return add<float>(sum, values, bytes);
    case DType::kF64:
      return add<double>(sum, values, bytes);
    case DType::kI32:
      return add<int32_t>(sum, values, bytes);
    default:
      return;  // check_summable
  }
}

}  // namespace nmoe
