// Element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nmoe {

enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kF8E4M3, kI64, kI32, kI16, kU8 };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
      return 1;
  }
  return 0;
}

// The name safetensors uses.
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kU8:
      return "U8";
  }
  return "?";
}

// The inverse of dtype_name; nothing for a name of no dtype here.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI64,
                            DType::kI32, DType::kI16, DType::kU8}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace nmoe
