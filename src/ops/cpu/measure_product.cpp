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

constexpr int64_t kMostSummed = block_size(OperandFormat::kFp8);  // of what is summed over, at once

// A matrix as the product sees it: element (i, k) of what it sums over k.
struct Operand {
  const float* data;
  int64_t count, depth;              // of i and k
  int64_t row_stride, depth_stride;  // of elements
  int64_t height;                    // of a block, in rows
  float tensor_amax;                 // NVFP4

  float at(int64_t i, int64_t k) const { return data[i * row_stride + k * depth_stride]; }
  // Of the block, n wide, that has (i, k).
  BlockRounding rounding(OperandFormat format, int64_t i, int64_t k) const {
    const int64_t n = block_size(format), row = i / height * height, col = k / n * n;
    uint32_t largest = 0;
    for (int64_t r = row; r < std::min(row + height, count); ++r) {
      for (int64_t c = col; c < std::min(col + n, depth); ++c) largest = std::max(largest, magnitude_bits(at(r, c)));
    }
    return BlockRounding::of(format, amax_of_bits(largest), tensor_amax);
  }
};

// Of a tile's outputs.
struct TileSums {
  double values = 0, signal = 0, noise = 0;
};

using Tile = std::array<double, static_cast<size_t>(kSampledRun* kSampledRun)>;

TileSums measure_tile(OperandFormat format, const std::array<Operand, kSampledRun>& rows, int64_t num_rows,
                      const Operand& w, int64_t col, int64_t num_cols) {
  Tile exact = {}, rounded = {};
  const int64_t n = block_size(format), depth = w.depth;
  std::array<std::array<double, kMostSummed>, kSampledRun> w_exact, w_rounded;
  for (int64_t begin = 0; begin < depth; begin += n) {
    const int64_t end = std::min(begin + n, depth);
    BlockRounding rounding = w.rounding(format, col, begin);  // of the whole run, where blocks are tiles
    for (int64_t j = 0; j < num_cols; ++j) {
      if (w.height == 1) rounding = w.rounding(format, col + j, begin);
      for (int64_t k = begin; k < end; ++k) {
        const float value = w.at(col + j, k);
        w_exact[static_cast<size_t>(j)][static_cast<size_t>(k - begin)] = value;
        w_rounded[static_cast<size_t>(j)][static_cast<size_t>(k - begin)] = rounding.rounded(value);
      }
    }
    for (int64_t i = 0; i < num_rows; ++i) {
      const Operand& x = rows[static_cast<size_t>(i)];
      rounding = x.rounding(format, 0, begin);
      for (int64_t k = begin; k < end; ++k) {
        const double value = x.at(0, k), kept = rounding.rounded(x.at(0, k));
        for (int64_t j = 0; j < num_cols; ++j) {
          const auto output = static_cast<size_t>(i * kSampledRun + j);
          exact[output] += value * w_exact[static_cast<size_t>(j)][static_cast<size_t>(k - begin)];
          rounded[output] += kept * w_rounded[static_cast<size_t>(j)][static_cast<size_t>(k - begin)];
        }
      }
    }
  }
  TileSums sums;
  for (size_t i = 0; i < exact.size(); ++i) {
    sums.values += exact[i] != 0.0 ? 1 : 0;
    sums.signal += exact[i] * exact[i];
    sums.noise += (rounded[i] - exact[i]) * (rounded[i] - exact[i]);
  }
  return sums;
}

}  // namespace

template <class Real>
void measure_product(Context& ctx, const MeasureProduct& args) {
  NMOE_CHECK((std::is_same_v<Real, float>), "{} is not rounded to low precision", dtype_name(args.w.dtype()));
  const int64_t E = args.w.dim(0), out = args.w.dim(1), in = args.w.dim(2);
  ArenaScope scope(ctx.scratch);
  Tensor x_amax, w_amax;
  if (args.format == OperandFormat::kNvFp4) {
    x_amax = scope.allocate(DType::kF32, {E});
    w_amax = scope.allocate(DType::kF32, {E});
    const Tensor& x = args.x.source;
    if (args.offsets.defined()) {
      expert_abs_max(ctx, args.x, args.offsets, x_amax);
    } else {
      abs_max<Real>(ctx, {.x = x.reshape({1, x.dim(0), x.dim(1)}), .amax = x_amax});
    }
    abs_max<Real>(ctx, {.x = args.w, .amax = w_amax});
  }
  if (ctx.counting()) return;
  const int32_t* const offsets = args.offsets.data_or_null<int32_t>();
  const int64_t depth = args.x.width(), cols = args.over_out ? in : out;
  const int64_t across = sampled_runs_of_columns(offsets != nullptr), tiles = kSampledRuns * across;
  const auto amax_of = [](const Tensor& amax, int64_t i) {
    return amax.defined() ? amax_of_bits(magnitude_bits(amax.data<float>()[i])) : 0.0F;
  };
  double* const sums = args.counts.data<double>();
  parallel_blocks(ctx, E * tiles, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t expert = tile / tiles, run = tile % tiles / across, col_run = (run + tile % across) % kSampledRuns;
      const int64_t first = offsets == nullptr ? 0 : offsets[expert];
      const int64_t last = offsets == nullptr ? args.x.num_rows() : offsets[expert + 1];
      const int64_t row = first + sampled_row(run, last - first), col = sampled_col(col_run, cols);
      const int64_t num_rows = std::min(kSampledRun, last - row), num_cols = std::min(kSampledRun, cols - col);
      if (num_rows == 0) continue;
      std::array<Operand, kSampledRun> rows = {};
      for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t source = args.x.index.defined() ? args.x.index.data<int32_t>()[row + i] : row + i;
        rows[static_cast<size_t>(i)] = {.data = args.x.source.data<float>() + source * depth,
                                        .count = 1,
                                        .depth = depth,
                                        .row_stride = depth,
                                        .depth_stride = 1,
                                        .height = 1,
                                        .tensor_amax = amax_of(x_amax, expert)};
      }
      const Operand w{.data = args.w.data<float>() + expert * out * in,
                      .count = cols,
                      .depth = depth,
                      .row_stride = args.over_out ? 1 : in,
                      .depth_stride = args.over_out ? in : 1,
                      .height = args.format == OperandFormat::kMxFp8 ? 1 : block_size(args.format),
                      .tensor_amax = amax_of(w_amax, expert)};
      const TileSums found = measure_tile(args.format, rows, num_rows, w, col, num_cols);
      if (!(found.signal > 0.0)) continue;
      const double lost = std::rint(std::min(1.0, found.noise / found.signal) / kLostUnit);
      std::atomic_ref(sums[0]).fetch_add(found.values);  // whole numbers: exact in any order
      std::atomic_ref(sums[3]).fetch_add(1.0);
      std::atomic_ref(sums[4]).fetch_add(lost);
    }
  });
}

NMOE_CPU_INSTANTIATE(measure_product, MeasureProduct)

}  // namespace nmoe::cpu
