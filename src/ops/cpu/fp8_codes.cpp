#include "ops/cpu/fp8_codes.h"

#include <algorithm>

#include "ops/cpu/operations.h"
#include "tensor/low_precision.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kBlock = block_size(OperandFormat::kFp8);

// Calls fn(block, first row, rows) in parallel for the blocks of all groups.
template <class Fn>
void parallel_row_blocks(Context& ctx, Tensor offsets, const Fn& fn) {
  ctx.pool.parallel_for(offsets.dim(0) - 1, [&](int64_t group, int) {
    const int64_t begin = offsets.data<int32_t>()[group], end = offsets.data<int32_t>()[group + 1];
    for (int64_t row = begin; row < end; row += kBlock) {
      fn(begin / kBlock + group + (row - begin) / kBlock, row, std::min(kBlock, end - row));
    }
  });
}

}  // namespace

template <class Real>
void write_codes(Context& ctx, Tensor x, Tensor num_rows, const RowCodes& codes) {
  if (!codes.defined()) return;
  quantize<Real>(ctx, quantize_rows(x, codes, num_rows));
}

template <class Real>
void write_columns(Context& ctx, Tensor x, Tensor offsets, const ColumnCodes& columns) {
  if (!columns.defined() || ctx.counting()) return;
  const int64_t C = x.dim(1);
  parallel_row_blocks(ctx, offsets, [&](int64_t block, int64_t first, int64_t rows) {
    for (int64_t col = 0; col < C; ++col) {
      const Real* const values = x.data<Real>() + first * C + col;
      uint32_t bits = 0;
      for (int64_t i = 0; i < rows; ++i) bits = std::max(bits, magnitude_bits(static_cast<float>(values[i * C])));
      const uint8_t scale = e8m0_scale(amax_of_bits(bits));
      const float factor = e8m0_to_inverse(scale);
      columns.scales.data<uint8_t>()[block * C + col] = scale;
      uint8_t* const codes = columns.values.data<uint8_t>() + (block * C + col) * kBlock;
      for (int64_t i = 0; i < kBlock; ++i) {
        codes[i] = float_to_e4m3((i < rows ? static_cast<float>(values[i * C]) : 0.0F) * factor);
      }
    }
  });
}

template <class Real>
void widen_row(const RowCodes& codes, int64_t row, Real* y) {
  const int64_t C = codes.values.dim(1);
  const uint8_t* const values = codes.values.data<uint8_t>() + row * C;
  const uint8_t* const scales = codes.scales.data<uint8_t>() + row * codes.scales.dim(1);
  for (int64_t j = 0; j < C; ++j)
    y[j] = static_cast<Real>(e4m3_to_float(values[j]) * e8m0_to_float(scales[j / kBlock]));
}

template <class Real>
void widen_rows(Context& ctx, const WidenRows& args) {
  const int64_t N = args.x.dim(0), C = args.x.dim(1);
  if (ctx.counting()) return;
  const int64_t num_rows = args.num_rows.defined() ? *args.num_rows.data<int32_t>() : N;
  NMOE_CHECK(num_rows >= 0 && num_rows <= N, "{} rows to widen of {}", num_rows, N);
  parallel_blocks(ctx, num_rows, task_rows(C), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) widen_row(args.codes, row, args.x.data<Real>() + row * C);
  });
}

Tensor widened_rows(Context& ctx, ArenaScope& scope, const RowCodes& codes) {
  const Tensor x = scope.allocate(DType::kF32, codes.values.shape());
  widen_rows<float>(ctx, {.codes = codes, .x = x});
  return x;
}

Tensor widened_columns(Context& ctx, ArenaScope& scope, const ColumnCodes& columns, Tensor offsets, int64_t num_rows) {
  const int64_t C = columns.values.dim(1);
  const Tensor x = scope.allocate(DType::kF32, {num_rows, C});
  if (ctx.counting()) return x;
  parallel_row_blocks(ctx, offsets, [&](int64_t block, int64_t first, int64_t rows) {
    for (int64_t col = 0; col < C; ++col) {
      const float scale = e8m0_to_float(columns.scales.data<uint8_t>()[block * C + col]);
      const uint8_t* const codes = columns.values.data<uint8_t>() + (block * C + col) * kBlock;
      for (int64_t i = 0; i < rows; ++i) x.data<float>()[(first + i) * C + col] = e4m3_to_float(codes[i]) * scale;
    }
  });
  return x;
}

template void widen_row<float>(const RowCodes&, int64_t, float*);
template void widen_row<double>(const RowCodes&, int64_t, double*);
template void write_codes<float>(Context&, Tensor, Tensor, const RowCodes&);
template void write_codes<double>(Context&, Tensor, Tensor, const RowCodes&);
template void write_columns<float>(Context&, Tensor, Tensor, const ColumnCodes&);
template void write_columns<double>(Context&, Tensor, Tensor, const ColumnCodes&);

NMOE_CPU_INSTANTIATE(widen_rows, WidenRows)

}  // namespace nmoe::cpu
