#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "ops/cpu/expert_rows.h"
#include "ops/cpu/operations.h"
#include "tensor/block_rounding.h"

namespace nmoe::cpu {
namespace {

float largest_of(const float* x, int64_t count) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits = std::max(bits, magnitude_bits(x[i]));
  return amax_of_bits(bits);
}

// Adds a block's part in one row.
void count_row(const BlockRounding& rounding, const float* x, int64_t cols, RoundingCounts& counts) {
  const auto smaller = [](float a, float b) { return magnitude_bits(a) < magnitude_bits(b); };
  const int64_t largest = std::max_element(x, x + cols, smaller) - x;
  double signal = 0.0, noise = 0.0;
  for (int64_t j = 0; j < cols; ++j) {
    if (x[j] == 0.0F) continue;
    counts.values += 1;
    counts.underflows += rounding.vanishes(x[j]) ? 1 : 0;
    counts.saturated += rounding.saturates(x[j]) ? 1 : 0;
    if (j == largest) continue;
    const double error = rounding.error(x[j]);
    signal += static_cast<double>(x[j]) * static_cast<double>(x[j]);
    noise += error * error;
  }
  if (!(signal > 0.0)) return;
  counts.rows += 1;
  counts.lost += std::rint(std::min(1.0, noise / signal) / kLostUnit);
}

}  // namespace

template <class Real>
void measure_rounding(Context& ctx, const MeasureRounding& args) {
  NMOE_CHECK((std::is_same_v<Real, float>), "{} is not rounded to low precision", dtype_name(args.x.dtype()));
  const int64_t G = args.x.dim(0), N = args.x.dim(1), C = args.x.dim(2), n = block_size(args.format);
  ArenaScope scope(ctx.scratch);
  Tensor amax;
  if (args.format == OperandFormat::kNvFp4) {
    amax = scope.allocate(DType::kF32, {args.offsets.defined() ? args.offsets.dim(0) - 1 : G});
    if (args.offsets.defined()) {
      expert_abs_max(ctx, {args.x.reshape({N, C}), args.index}, args.offsets, amax);
    } else {
      abs_max<Real>(ctx, {.x = args.x, .amax = amax});
    }
  }
  if (ctx.counting()) return;
  const std::span<const int32_t> offsets = args.offsets.defined() ? args.offsets.span<int32_t>() : std::span<int32_t>();
  const int32_t* const index = args.index.data_or_null<int32_t>();
  const int64_t rows = offsets.empty() ? N : offsets.back(), room = index == nullptr ? N : args.index.dim(0);
  NMOE_CHECK(rows >= 0 && rows <= room, "{} rows of {}", rows, room);
  const int64_t height = args.blocks == BlockShape::kTiles ? n : 1, down = ceil_div(rows, height);
  double* const sums = args.counts.data<double>();
  parallel_blocks(ctx, G * down, ceil_div(task_rows(C), height), [&](int64_t begin, int64_t end, int) {
    RoundingCounts counts;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % down * height, last = std::min(first + height, rows);
      // Experts' rows are blocks' only ones: where they are picked, `first` is where they lie.
      const float* const x = args.x.data<float>() + (i / down * N + (index == nullptr ? 0 : index[first] - first)) * C;
      const int64_t tensor = offsets.empty() ? i / down : expert_of(offsets, first);
      const float tensor_amax = amax.defined() ? amax_of_bits(magnitude_bits(amax.data<float>()[tensor])) : 0.0F;
      for (int64_t col = 0; col < C; col += n) {
        const int64_t cols = std::min(n, C - col);
        uint32_t bits = 0;
        for (int64_t row = first; row < last; ++row) {
          bits = std::max(bits, magnitude_bits(largest_of(x + row * C + col, cols)));
        }
        const auto rounding = BlockRounding::of(args.format, amax_of_bits(bits), tensor_amax);
        for (int64_t row = first; row < last; ++row) count_row(rounding, x + row * C + col, cols, counts);
      }
    }
    const std::array<double, 5> parts = {counts.values, counts.underflows, counts.saturated, counts.rows, counts.lost};
    for (size_t i = 0; i < parts.size(); ++i) std::atomic_ref(sums[i]).fetch_add(parts[i]);  // exact in any order
  });
}

NMOE_CPU_INSTANTIATE(measure_rounding, MeasureRounding)

}  // namespace nmoe::cpu
