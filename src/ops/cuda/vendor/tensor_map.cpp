#include "ops/cuda/vendor/tensor_map.h"

#include <fmt/ranges.h>

#include <array>

#include "base/error.h"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

// The one function of the driver that the runtime has no name for; asked for, so that nothing links to the driver.
auto encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  NMOE_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw runtime_error("the NVIDIA driver does not know cuTensorMapEncodeTiled",
                        "install a driver for CUDA 13 (580 or newer)");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

// A tensor's sizes, the fastest dimension first, the bytes from an element to the next of the other dimensions, and how
// many elements of each dimension are a box, 128 bytes of the first.
template <size_t kDims>
struct Boxes {
  CUtensorMapDataType type;
  std::array<cuuint64_t, kDims> sizes;
  std::array<cuuint64_t, kDims - 1> bytes;
  std::array<cuuint32_t, kDims> box;
};

template <size_t kDims>
CUtensorMap encode_map(const void* data, const Boxes<kDims>& boxes) {
  static const auto encode = encode_function();
  std::array<cuuint32_t, kDims> element_strides;
  element_strides.fill(1);
  CUtensorMap map;
  const CUresult result =
      encode(&map, boxes.type, kDims, const_cast<void*>(data), boxes.sizes.data(), boxes.bytes.data(), boxes.box.data(),
             element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NMOE_CHECK(result == CUDA_SUCCESS, "a tensor map of {} values: CUDA driver error {}", fmt::join(boxes.sizes, " x "),
             static_cast<int>(result));
  return map;
}

// Boxes of `box_rows` rows of 128 bytes of a row-major matrix.
CUtensorMap matrix_map(CUtensorMapDataType type, int element_bytes, const void* data, int64_t rows, int64_t cols,
                       int box_rows) {
  return encode_map<2>(data,
                       {.type = type,
                        .sizes = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)},
                        .bytes = {static_cast<cuuint64_t>(cols * element_bytes)},
                        .box = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows)}});
}

// The same of `count` matrices.
CUtensorMap matrices_map(CUtensorMapDataType type, int element_bytes, const void* data, int64_t count, int64_t rows,
                         int64_t cols, int box_rows) {
  const auto of = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  return encode_map<3>(data,
                       {.type = type,
                        .sizes = {of(cols), of(rows), of(count)},
                        .bytes = {of(cols * element_bytes), of(rows * cols * element_bytes)},
                        .box = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows), 1}});
}

}  // namespace

CUtensorMap panel_map(const void* data, int64_t rows, int64_t cols) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, rows, cols, 64);
}

CUtensorMap panels_map(const void* data, int64_t count, int64_t rows, int64_t cols) {
  return matrices_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, count, rows, cols, 64);
}

CUtensorMap byte_map(const void* data, int64_t rows, int64_t cols, int box_rows) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data, rows, cols, box_rows);
}

CUtensorMap sum_map(const void* data, int64_t count, int64_t rows, int64_t cols, int box_rows) {
  return matrices_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, data, count, rows, cols, box_rows);
}

CUtensorMap head_map(const HeadRows& rows, int box_rows) {
  const auto of = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  return encode_map<4>(rows.data,
                       {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        .sizes = {of(rows.size), of(rows.heads), of(rows.seq_len), of(rows.num_seqs)},
                        .bytes = {of(rows.head_stride * 2), of(rows.stride * 2), of(rows.seq_len * rows.stride * 2)},
                        .box = {64, 1, static_cast<cuuint32_t>(box_rows), 1}});
}

CUtensorMap unit_map(const UnitMatrices& matrices, int box_units) {
  const auto of = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  return encode_map<4>(
      matrices.data, {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                      .sizes = {of(matrices.cols), of(matrices.units), of(matrices.parts), of(matrices.count)},
                      .bytes = {of(matrices.cols * 2), of(matrices.units * matrices.cols * 2), of(matrices.stride * 2)},
                      .box = {64, static_cast<cuuint32_t>(box_units), static_cast<cuuint32_t>(matrices.parts), 1}});
}

}  // namespace nmoe::cuda
