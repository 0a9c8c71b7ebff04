#include "tensor/convert.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr int kHalfRounding = _MM_FROUND_TO_NEAREST_INT;

}  // namespace

void widen(DType dtype, const void* source, float* destination, size_t count) {
  NMOE_CHECK(is_weight_dtype(dtype), "{} is not a dtype of weights", dtype_name(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(destination, source, count * sizeof(float));
    return;
  }
  // Tensors in a file need not be aligned.
  const auto* bytes = static_cast<const std::byte*>(source);
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * i, sizeof bits);
    destination[i] = dtype == DType::kBF16 ? bf16_to_float(bits) : _cvtsh_ss(bits);
  }
}

void narrow(const float* source, DType dtype, void* destination, size_t count) {
  NMOE_CHECK(is_weight_dtype(dtype), "{} is not a dtype of weights", dtype_name(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(destination, source, count * sizeof(float));
    return;
  }
  auto* bytes = static_cast<std::byte*>(destination);
  for (size_t i = 0; i < count; ++i) {
    const uint16_t bits = dtype == DType::kBF16 ? float_to_bf16(source[i]) : _cvtss_sh(source[i], kHalfRounding);
    std::memcpy(bytes + 2 * i, &bits, sizeof bits);
  }
}

void convert(DType from, const void* source, DType to, void* destination, size_t count) {
  if (from == to) {
    std::memcpy(destination, source, count * dtype_bytes(from));
    return;
  }
  constexpr size_t kAtOnce = 4096;
  float values[kAtOnce];
  for (size_t done = 0; done < count; done += kAtOnce) {
    const size_t some = std::min(kAtOnce, count - done);
    widen(from, static_cast<const std::byte*>(source) + done * dtype_bytes(from), values, some);
    narrow(values, to, static_cast<std::byte*>(destination) + done * dtype_bytes(to), some);
  }
}

}  // namespace nmoe
