#include "ops/cpu/rounded_operands.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/operations.h"
#include "tensor/low_precision.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kNvFp4Block = block_size(OperandFormat::kNvFp4);
constexpr int64_t kColumns = 64;  // that a task of round_columns works on at once

// The number of the e-th group's first block.
uint64_t first_block(const RandomRounding& random, int64_t e) {
  return first_block_of(random.experts.defined() ? random.experts.data<int32_t>()[e] : e);
}

// The rows of experts, each expert's by themselves. `args`: of all rows.
void quantize_experts(Context& ctx, const Quantize& args, Tensor offsets) {
  if (ctx.counting()) return;
  for (int64_t e = 0; e + 1 < offsets.dim(0); ++e) {
    const int64_t begin = offsets.data<int32_t>()[e], end = offsets.data<int32_t>()[e + 1];
    const auto rows_of = [&](const Tensor& x) {
      return x.reshape({x.dim(1), x.dim(2)}).rows(begin, end).reshape({1, end - begin, x.dim(2)});
    };
    Quantize of_expert = args;
    of_expert.x = rows_of(args.x);
    of_expert.num_rows = {};
    of_expert.amax = args.amax.rows(e, e + 1);
    of_expert.random.first_block = first_block(args.random, e);
    of_expert.values = rows_of(args.values);
    of_expert.scales = rows_of(args.scales);
    abs_max<float>(ctx, {.x = of_expert.x, .amax = of_expert.amax});
    quantize<float>(ctx, of_expert);
  }
}

// The codes of `args`, without their storage, and then what they stand for. offsets: of experts' rows, or undefined.
RoundedOperand quantize_and_widen(Context& ctx, ArenaScope& scope, Quantize args, Tensor offsets = {}) {
  const int64_t G = args.x.dim(0), N = args.x.dim(1), C = args.x.dim(2), n = block_size(args.format);
  const bool is_nvfp4 = args.format == OperandFormat::kNvFp4;
  const int64_t height = args.blocks == BlockShape::kTiles ? n : 1, across = ceil_div(C, n);
  NMOE_CHECK(!ctx.batch_invariant, "batch-invariant products do not round operands");
  RoundedOperand rounded{.values = scope.allocate(DType::kF32, {G, N, C})};
  if (offsets.defined()) args.num_rows = offsets.rows(offsets.dim(0) - 1, offsets.dim(0));
  const bool apart = is_nvfp4 && offsets.defined();
  if (is_nvfp4) args.amax = rounded.amax = scope.allocate(DType::kF32, {apart ? offsets.dim(0) - 1 : G});
  ArenaScope codes(ctx.scratch);
  args.values = codes.allocate(DType::kU8, {G, N, is_nvfp4 ? ceil_div(C, 2) : C});
  args.scales = codes.allocate(DType::kU8, {G, ceil_div(N, height), across});
  if (apart) {
    quantize_experts(ctx, args, offsets);
  } else {
    if (is_nvfp4) abs_max<float>(ctx, {.x = args.x, .amax = args.amax});
    quantize<float>(ctx, args);
  }
  if (ctx.counting()) return rounded;
  const int64_t rows = args.num_rows.defined() ? *args.num_rows.data<int32_t>() : N;
  parallel_blocks(ctx, G * rows, task_rows(C), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t g = i / rows, row = i % rows;
      const uint8_t* codes_of_row = args.values.data<uint8_t>() + (g * N + row) * args.values.dim(2);
      const uint8_t* scales = args.scales.data<uint8_t>() + (g * args.scales.dim(1) + row / height) * across;
      float* const y = rounded.values.data<float>() + (g * N + row) * C;
      for (int64_t j = 0; j < C; ++j) {
        const uint8_t scale = scales[j / n];
        y[j] = is_nvfp4 ? e2m1_to_float(codes_of_row[j / 2] >> (j % 2 * 4) & 15) * e4m3_to_float(scale)
                        : e4m3_to_float(codes_of_row[j]) * e8m0_to_float(scale);
      }
    }
  });
  return rounded;
}

// [G, N, C] as the [G * N, C] or the stack that it came as.
Tensor like(const Tensor& values, const Tensor& x) { return values.reshape(x.shape()); }

// Groups of rows, one after the other.
struct Groups {
  int64_t count;
  int64_t rows_each;       // where there are no offsets
  const int32_t* offsets;  // may be null

  int64_t begin(int64_t g) const { return offsets == nullptr ? g * rows_each : offsets[g]; }
};

// Columns [begin, end) of `rows` rows, at most kColumns: each is a block.
void round_e4m3_columns(const float* x, float* y, int64_t rows, int64_t begin, int64_t end, int64_t stride) {
  uint32_t bits[kColumns] = {};
  float factor[kColumns], scale[kColumns];
  const int64_t width = end - begin;
  for (int64_t i = 0; i < rows; ++i) {
    const float* const row = x + i * stride + begin;
    for (int64_t j = 0; j < width; ++j) bits[j] = std::max(bits[j], magnitude_bits(row[j]));
  }
  for (int64_t j = 0; j < width; ++j) {
    const uint8_t code = e8m0_scale(amax_of_bits(bits[j]));
    factor[j] = e8m0_to_inverse(code);
    scale[j] = e8m0_to_float(code);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const float* const row = x + i * stride + begin;
    float* const rounded = y + i * stride + begin;
    for (int64_t j = 0; j < width; ++j) rounded[j] = round_to_e4m3(row[j] * factor[j]) * scale[j];
  }
}

// Calls fn(group, first column, last column + 1) in parallel.
template <class Fn>
void parallel_columns(Context& ctx, int64_t num_groups, int64_t cols, const Fn& fn) {
  const int64_t chunks = ceil_div(cols, kColumns);
  ctx.pool.parallel_for(num_groups * chunks, [&](int64_t task, int) {
    const int64_t begin = task % chunks * kColumns;
    fn(task / chunks, begin, std::min(begin + kColumns, cols));
  });
}

RoundedOperand round_e4m3_groups(Context& ctx, ArenaScope& scope, OperandFormat format, Tensor x,
                                 const Groups& groups) {
  const RoundedOperand rounded{.values = scope.allocate(DType::kF32, x.shape())};
  if (ctx.counting()) return rounded;
  const int64_t n = block_size(format), C = x.dim(1);
  parallel_columns(ctx, groups.count, C, [&](int64_t g, int64_t first, int64_t last) {
    for (int64_t row = groups.begin(g); row < groups.begin(g + 1); row += n) {
      round_e4m3_columns(x.data<float>() + row * C, rounded.values.data<float>() + row * C,
                         std::min(n, groups.begin(g + 1) - row), first, last, C);
    }
  });
  return rounded;
}

// The maximum over tasks, whatever their order.
class SharedMax {
 public:
  void add(uint32_t bits) {
    uint32_t known = bits_.load();
    while (known < bits && !bits_.compare_exchange_weak(known, bits)) {
    }
  }
  float value() const { return amax_of_bits(bits_.load()); }

 private:
  std::atomic<uint32_t> bits_ = 0;
};

RoundedOperand round_e2m1_groups(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor x,
                                 const Groups& groups) {
  const RandomRounding& random = rounding.random;
  const int64_t N = x.dim(0), C = x.dim(1);
  const RoundedOperand rounded{.values = scope.allocate(DType::kF32, {N + (kNvFp4Block - 1) * groups.count, C}),
                               .offsets = scope.allocate(DType::kI32, {groups.count + 1}),
                               .amax = scope.allocate(DType::kF32, {groups.count})};
  if (ctx.counting()) return rounded;
  int32_t* const offset = rounded.offsets.data<int32_t>();
  offset[0] = 0;
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t blocks = ceil_div(groups.begin(g + 1) - groups.begin(g), kNvFp4Block);
    offset[g + 1] = static_cast<int32_t>(offset[g] + blocks * kNvFp4Block);
  }
  float* const y = rounded.values.data<float>();
  std::vector<SharedMax> largest(static_cast<size_t>(groups.count));
  parallel_columns(ctx, groups.count, C, [&](int64_t g, int64_t first, int64_t last) {
    uint32_t bits = 0;
    for (int64_t row = offset[g]; row < offset[g + 1]; row += kNvFp4Block) {
      const int64_t source = groups.begin(g) + row - offset[g];
      const int64_t there = std::min(kNvFp4Block, groups.begin(g + 1) - source);
      for (int64_t col = first; col < last; ++col) {
        float values[kNvFp4Block] = {};
        for (int64_t i = 0; i < there; ++i) values[i] = x.data<float>()[(source + i) * C + col];
        if (rounding.transform) random_hadamard(values);
        for (int64_t i = 0; i < kNvFp4Block; ++i) {
          y[(row + i) * C + col] = values[i];
          bits = std::max(bits, magnitude_bits(values[i]));
        }
      }
    }
    largest[static_cast<size_t>(g)].add(bits);
  });
  for (int64_t g = 0; g < groups.count; ++g) {
    rounded.amax.data<float>()[g] = largest[static_cast<size_t>(g)].value();
  }
  const auto key = random.key.defined() ? static_cast<uint64_t>(*random.key.data<int64_t>()) : 0;
  parallel_columns(ctx, groups.count, C, [&](int64_t g, int64_t first, int64_t last) {
    const float tensor_factor = nvfp4_tensor_factor(rounded.amax.data<float>()[g]);
    for (int64_t row = offset[g]; row < offset[g + 1]; row += kNvFp4Block) {
      for (int64_t col = first; col < last; ++col) {
        float* const block = y + row * C + col;
        uint32_t bits = 0;
        for (int64_t i = 0; i < kNvFp4Block; ++i) bits = std::max(bits, magnitude_bits(block[i * C]));
        const uint8_t scale = nvfp4_scale(amax_of_bits(bits), tensor_factor);
        const float factor = nvfp4_block_factor(scale, tensor_factor);
        const uint64_t number =
            first_block(random, g) + static_cast<uint64_t>((row - offset[g]) / kNvFp4Block * C + col);
        const random::Words words = random.key.defined() ? rounding_bytes(key, random.stream, number) : random::Words{};
        for (int64_t i = 0; i < kNvFp4Block; ++i) {
          const float value = block[i * C] * factor;
          const uint8_t code =
              random.key.defined() ? float_to_e2m1(value, byte_of(words, static_cast<int>(i))) : float_to_e2m1(value);
          block[i * C] = e2m1_to_float(code) * e4m3_to_float(scale);
        }
      }
    }
  });
  return rounded;
}

}  // namespace

float product_factor(const RoundedOperand& a, const RoundedOperand& b, int64_t group) {
  if (!a.amax.defined()) return 1.0F;
  const auto amax = [group](const Tensor& of) { return of.data<float>()[of.dim(0) == 1 ? 0 : group]; };
  return nvfp4_product_scale(amax(a.amax), amax(b.amax));
}

RoundedOperand round_rows(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor x, Tensor offsets) {
  if (rounding.format == OperandFormat::kAct) return {.values = x};
  if (rounding.rows.defined()) return {.values = widened_rows(ctx, scope, rounding.rows)};
  RoundedOperand rounded = quantize_and_widen(ctx, scope,
                                              {.format = rounding.format,
                                               .x = x.reshape({1, x.dim(0), x.dim(1)}),
                                               .random = rounding.random,
                                               .values = {},
                                               .scales = {}},
                                              offsets);
  rounded.values = like(rounded.values, x);
  return rounded;
}

RoundedOperand round_weights(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor w, SumOver over) {
  const OperandFormat format = rounding.format;
  if (format == OperandFormat::kAct) return {.values = w};
  const Tensor stacked = w.shape().rank() == 3 ? w : w.reshape({1, w.dim(0), w.dim(1)});
  const int64_t E = stacked.dim(0), out = stacked.dim(1), in = stacked.dim(2);
  RoundedOperand rounded;
  if (format == OperandFormat::kMxFp8 && over == SumOver::kOut) {
    rounded = round_e4m3_groups(ctx, scope, format, w.reshape({E * out, in}), {E, out, nullptr});
  } else {
    const bool tiles = format != OperandFormat::kMxFp8;
    rounded = quantize_and_widen(ctx, scope,
                                 {.format = format,
                                  .blocks = tiles ? BlockShape::kTiles : BlockShape::kRows,
                                  .x = stacked,
                                  .values = {},
                                  .scales = {}});
  }
  rounded.values = like(rounded.values, w);
  return rounded;
}

RoundedOperand round_columns(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor x,
                             Tensor offsets) {
  if (rounding.format == OperandFormat::kAct) return {.values = x, .offsets = offsets};
  const bool has_offsets = offsets.defined();
  const Groups groups{has_offsets ? offsets.dim(0) - 1 : 1, x.dim(0),
                      has_offsets && !ctx.counting() ? offsets.data<int32_t>() : nullptr};
  if (rounding.format != OperandFormat::kNvFp4) {
    RoundedOperand rounded = round_e4m3_groups(ctx, scope, rounding.format, x, groups);
    rounded.offsets = offsets;
    return rounded;
  }
  RoundedOperand rounded = round_e2m1_groups(ctx, scope, rounding, x, groups);
  if (!has_offsets) rounded.values = rounded.values.rows(0, ceil_div(x.dim(0), kNvFp4Block) * kNvFp4Block);
  return rounded;
}

}  // namespace nmoe::cpu
