#include <algorithm>
#include <type_traits>

#include "ops/cpu/operations.h"
#include "tensor/low_precision.h"

namespace nmoe::cpu {
namespace {

// Low precision is what F32 is rounded to.
template <class Real>
const float* floats(const Tensor& x) {
  NMOE_CHECK((std::is_same_v<Real, float>), "{} is not rounded to low precision", dtype_name(x.dtype()));
  return x.data<float>();
}

int64_t rows_there(const Tensor& x, const Tensor& num_rows) {
  if (!num_rows.defined()) return x.dim(1);
  const int64_t count = *num_rows.data<int32_t>();
  NMOE_CHECK(count >= 0 && count <= x.dim(1), "{} rows in {}", count, x.shape());
  return count;
}

// A block of a matrix: `rows` x `cols` values.
struct Block {
  const float* x;
  int64_t row, col, rows, cols, stride;

  float at(int64_t i, int64_t j) const { return x[(row + i) * stride + col + j]; }
  float amax() const {
    uint32_t bits = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) bits = std::max(bits, magnitude_bits(at(i, j)));
    }
    return amax_of_bits(bits);
  }
};

uint8_t quantize_e4m3(const Block& block, uint8_t* values) {
  const uint8_t scale = e8m0_scale(block.amax());
  const float factor = e8m0_to_inverse(scale);
  for (int64_t i = 0; i < block.rows; ++i) {
    uint8_t* const row = values + (block.row + i) * block.stride + block.col;
    for (int64_t j = 0; j < block.cols; ++j) row[j] = float_to_e4m3(block.at(i, j) * factor);
  }
  return scale;
}

// random_words: undefined for rounding to nearest.
uint8_t quantize_e2m1(const Block& block, float tensor_factor, const random::Words* random_words, uint8_t* values) {
  const uint8_t scale = nvfp4_scale(block.amax(), tensor_factor);
  const float factor = nvfp4_block_factor(scale, tensor_factor);
  for (int64_t i = 0; i < block.rows; ++i) {
    uint8_t* const row = values + (block.row + i) * ceil_div(block.stride, 2) + block.col / 2;
    for (int64_t j = 0; j < block.cols; ++j) {
      const float value = block.at(i, j) * factor;
      const uint8_t code = random_words == nullptr ? float_to_e2m1(value)
                                                   : float_to_e2m1(value, byte_of(*random_words, static_cast<int>(j)));
      row[j / 2] = static_cast<uint8_t>(j % 2 == 0 ? code : row[j / 2] | code << 4);
    }
  }
  return scale;
}

// Codes and scales of tiles, transposed.
void transpose_tiles(Context& ctx, const Quantize& args) {
  const auto transpose = [&ctx](const Tensor& from, const Tensor& to) {
    const int64_t rows = from.dim(1), cols = from.dim(2);
    parallel_blocks(ctx, from.dim(0) * cols, task_rows(rows), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const uint8_t* const column = from.data<uint8_t>() + i / cols * rows * cols + i % cols;
        for (int64_t row = 0; row < rows; ++row) to.data<uint8_t>()[i * rows + row] = column[row * cols];
      }
    });
  };
  transpose(args.values, args.transposed_values);
  transpose(args.scales, args.transposed_scales);
}

}  // namespace

template <class Real>
void abs_max(Context& ctx, const AbsMax& args) {
  if (ctx.counting()) return;
  const float* x = floats<Real>(args.x);
  const int64_t size = args.x.dim(1) * args.x.dim(2), there = rows_there(args.x, args.num_rows) * args.x.dim(2);
  ctx.pool.parallel_for(args.x.dim(0), [&](int64_t g, int) {
    args.amax.data<float>()[g] = Block{x + g * size, 0, 0, 1, there, there}.amax();
  });
}

template <class Real>
void quantize(Context& ctx, const Quantize& args) {
  if (ctx.counting()) return;
  const float* x = floats<Real>(args.x);
  const int64_t rows = rows_there(args.x, args.num_rows), N = args.x.dim(1), C = args.x.dim(2);
  const int64_t n = block_size(args.format), height = args.blocks == BlockShape::kTiles ? n : 1;
  const int64_t down = ceil_div(rows, height), across = args.scales.dim(2);
  const bool is_nvfp4 = args.format == OperandFormat::kNvFp4, at_random = args.random.key.defined();
  const auto key = at_random ? static_cast<uint64_t>(*args.random.key.data<int64_t>()) : 0;
  parallel_blocks(ctx, args.x.dim(0) * down, ceil_div(task_rows(C), height), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t g = i / down, row = i % down * height;
      uint8_t* const values = args.values.data<uint8_t>() + g * N * args.values.dim(2);
      uint8_t* const scales = args.scales.data<uint8_t>() + (g * args.scales.dim(1) + i % down) * across;
      for (int64_t b = 0; b < across; ++b) {
        const Block block{x + g * N * C, row, b * n, std::min(height, rows - row), std::min(n, C - b * n), C};
        if (!is_nvfp4) {
          scales[b] = quantize_e4m3(block, values);
          continue;
        }
        const float tensor_factor = nvfp4_tensor_factor(amax_of_bits(magnitude_bits(args.amax.data<float>()[g])));
        const uint64_t number =
            args.random.first_block + static_cast<uint64_t>((g * args.scales.dim(1) + i % down) * across + b);
        const random::Words words = at_random ? rounding_bytes(key, args.random.stream, number) : random::Words{};
        scales[b] = quantize_e2m1(block, tensor_factor, at_random ? &words : nullptr, values);
      }
    }
  });
  if (args.transposed_values.defined()) transpose_tiles(ctx, args);
}

NMOE_CPU_INSTANTIATE(abs_max, AbsMax)
NMOE_CPU_INSTANTIATE(quantize, Quantize)

}  // namespace nmoe::cpu
