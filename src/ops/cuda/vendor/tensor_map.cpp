#include "ops/cuda/vendor/tensor_map.h"

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

// Boxes of `box_rows` rows of 128 bytes of a row-major matrix.
CUtensorMap matrix_map(CUtensorMapDataType type, int element_bytes, const void* data, int64_t rows, int64_t cols,
                       int box_rows) {
  static const auto encode = encode_function();
  constexpr cuuint32_t kElementStrides[] = {1, 1};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(cols * element_bytes)};
  CUtensorMap map;
  const CUresult result = encode(&map, type, 2, const_cast<void*>(data), sizes, row_bytes, box, kElementStrides,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NMOE_CHECK(result == CUDA_SUCCESS, "a tensor map of {} x {} values: CUDA driver error {}", rows, cols,
             static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap panel_map(const void* data, int64_t rows, int64_t cols) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, rows, cols, 64);
}

CUtensorMap byte_map(const void* data, int64_t rows, int64_t cols, int box_rows) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data, rows, cols, box_rows);
}

}  // namespace nmoe::cuda
