// Operands for Blackwell's tensor cores, made on whatever GPU is here: multiplied on the host, as the product there
// finds its values and scales (sm100/grouped_product.cu), they are the CPU's products.
#include "ops/cuda/sm100/block_operands.h"

#include "ops/cuda/rounded_experts.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/sm100/descriptors.h"
#include "ops/quantize_cases.h"
#include "ops/signal_to_noise.h"
#include "tensor/low_precision.h"

namespace nmoe::test {
namespace {

using cuda::BlockOperand, cuda::kBlockTile;

// Sums in fp32 there and in fp64 here.
constexpr double kLeastOperandRatio = 100;
constexpr OperandFormat kBlockFormats[] = {OperandFormat::kMxFp8, OperandFormat::kNvFp4};

int64_t whole_tiles(int64_t size) { return cuda::block_tiles(size) * kBlockTile; }

class CudaBlockOperands : public CudaRoundedTest {
 protected:
  cuda::Context& context() { return static_cast<cuda::CudaOps&>(gpu()).context(); }

  BlockOperand fetched(const BlockOperand& operand) {
    return {.format = operand.format,
            .values = down(operand.values),
            .scales = down(operand.scales),
            .amax = operand.amax.defined() ? down(operand.amax) : Tensor()};
  }
  // Element k of a row, whose scales are those of row `scale_row`.
  static double element(const BlockOperand& operand, int64_t row, int64_t scale_row, int64_t k) {
    const bool is_nvfp4 = operand.format == OperandFormat::kNvFp4;
    const int64_t row_bytes = operand.values.dim(1), across = operand.scales.dim(1);
    const int64_t block = k / block_size(operand.format);
    const uint8_t byte = operand.values.data<uint8_t>()[row * row_bytes + (is_nvfp4 ? k / 2 : k)];
    const uint8_t scale = operand.scales.data<uint8_t>()[cuda::sm100::scale_offset(scale_row, block, across)];
    const float value = is_nvfp4 ? e2m1_to_float(byte >> (k % 2 * 4) & 15) * e4m3_to_float(scale)
                                 : e4m3_to_float(byte) * e8m0_to_float(scale);
    return static_cast<double>(value);
  }
  static double tensor_scale(const BlockOperand& a, const BlockOperand& b, int64_t group) {
    if (!a.amax.defined()) return 1.0;
    return static_cast<double>(nvfp4_product_scale(a.amax.data<float>()[group], b.amax.data<float>()[group]));
  }

  // What the product makes of rows, by groups; without offsets all are one.
  Tensor rows_product(const BlockOperand& device_a, const BlockOperand& device_b, bool b_is_columns, int64_t depth,
                      Tensor offsets, Tensor tile_offsets, int64_t rows, int64_t width) {
    const BlockOperand a = fetched(device_a), b = fetched(device_b);
    const Tensor y = pool_.zeros({rows, width});
    const int64_t groups = offsets.defined() ? offsets.dim(0) - 1 : 1;
    for (int64_t e = 0; e < groups; ++e) {
      const int64_t begin = offsets.defined() ? offsets.data<int32_t>()[e] : 0,
                    end = offsets.defined() ? offsets.data<int32_t>()[e + 1] : rows,
                    tile = offsets.defined() ? tile_offsets.data<int32_t>()[e] : 0;
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t col = 0; col < width; ++col) {
          const int64_t b_row = b_is_columns ? col : e * width + col,
                        b_scale_row = b_is_columns ? col : e * whole_tiles(width) + col,
                        first_k = b_is_columns ? e * whole_tiles(depth) : 0;
          double sum = 0;
          for (int64_t k = 0; k < depth; ++k) {
            sum += element(a, row, tile * kBlockTile + row - begin, k) * element(b, b_row, b_scale_row, first_k + k);
          }
          set(y, row * width + col, sum * tensor_scale(a, b, e));
        }
      }
    }
    return y;
  }
  // And of gradients of weights [groups, M, N]; summed over whole tiles, whose rest is zeros.
  Tensor weight_product(const BlockOperand& device_a, const BlockOperand& device_b, Tensor tile_offsets, int64_t groups,
                        int64_t rows, int64_t width) {
    const BlockOperand a = fetched(device_a), b = fetched(device_b);
    const Tensor dw = pool_.zeros({groups, rows, width});
    for (int64_t e = 0; e < groups; ++e) {
      const int64_t begin = tile_offsets.data<int32_t>()[e] * kBlockTile,
                    end = tile_offsets.data<int32_t>()[e + 1] * kBlockTile;
      for (int64_t i = 0; i < rows * width; ++i) {
        double sum = 0;
        for (int64_t k = begin; k < end; ++k) {
          sum += element(a, i / width, i / width, k) * element(b, i % width, i % width, k);
        }
        set(dw, e * rows * width + i, sum * tensor_scale(a, b, e));
      }
    }
    return dw;
  }
  OperandRounding rounding(OperandFormat format, bool random = false) {
    OperandRounding of{.format = format};
    if (format != OperandFormat::kNvFp4 || !random) return of;
    of.random = {.key = pool_.zeros(DType::kI64, {1}), .stream = 11};
    *of.random.key.data<int64_t>() = 77;
    return of;
  }
  RandomRounding on_device(RandomRounding random) {
    random.key = up(random.key);
    random.experts = up(random.experts);
    return random;
  }
};

TEST_F(CudaBlockOperands, GiveTheCpusProductsOfExperts) {
  const int64_t E = 4, R = 330, T = 150, in = 80, out = 136;
  const ExpertRows of = expert_rows(R, T);
  const Tensor offsets = of.offsets, index = of.index, device_offsets = up(offsets),
               numbers = pool_.ints({E}, {5, 2, 0, 9});
  const Tensor tokens = normal({T, in}, DType::kBF16), w = normal({E, out, in}, DType::kBF16, 0.05),
               dy = normal({R, out}, DType::kBF16, 1e-3);
  for (int64_t i = 0; i < w.num_elements() / 2; ++i) set(w, i, get(w, i) / 8);  // experts of other sizes
  const Tensor device_w = up(w, DType::kBF16), device_dy = up(dy, DType::kBF16);
  const OperandRows x(tokens, index), device_x(up(tokens, DType::kBF16), up(index));
  const Tensor tile_offsets = tensors_.allocate(DType::kI32, {E + 1});
  cuda::sm100::count_tiles(context(), device_offsets, tile_offsets);
  const Tensor tiles = down(tile_offsets);
  for (int64_t e = 0; e < E; ++e) {
    const auto* const bounds = offsets.data<int32_t>();
    EXPECT_EQ(tiles.data<int32_t>()[e + 1] - tiles.data<int32_t>()[e], cuda::block_tiles(bounds[e + 1] - bounds[e]));
  }
  for (const OperandFormat format : kBlockFormats) {
    {
      const Tensor expected = pool_.zeros({R, out}), h = pool_.zeros({R, out / 2});
      cpu().grouped_activation_forward({.x = x,
                                        .w = w,
                                        .offsets = offsets,
                                        .row_weight = {},
                                        .pre = expected,
                                        .h = h,
                                        .rounding = rounding(format)});
      ArenaScope scope(tensors_);
      const auto room = cuda::claim_block_rows(scope, format, device_x, device_w, /*over_out=*/false, device_offsets);
      cuda::sm100::encode_rows(context(), device_x, device_offsets, {}, room.a);
      cuda::sm100::encode_weights(context(), device_w, room.b);
      const Tensor y = rows_product(room.a, room.b, /*b_is_columns=*/false, in, offsets, tiles, R, out);
      EXPECT_GT(signal_to_noise(y.rows(0, of.count), expected.rows(0, of.count)), kLeastOperandRatio);
    }
    OperandRounding random = rounding(format, /*random=*/true);
    random.random.experts = numbers;
    {
      const Tensor expected = pool_.zeros({R, in});
      cpu().grouped_linear_backward_input({.dy = dy, .w = w, .offsets = offsets, .dx = expected, .rounding = random});
      ArenaScope scope(tensors_);
      const auto room = cuda::claim_block_rows(scope, format, device_dy, device_w, /*over_out=*/true, device_offsets);
      cuda::sm100::encode_rows(context(), device_dy, device_offsets, on_device(random.random), room.a);
      cuda::sm100::encode_weight_columns(context(), device_w, room.b);
      const Tensor dx = rows_product(room.a, room.b, /*b_is_columns=*/true, out, offsets, tiles, R, in);
      EXPECT_GT(signal_to_noise(dx.rows(0, of.count), expected.rows(0, of.count)), kLeastOperandRatio);
    }
    for (const bool transform : {true, false}) {
      const Tensor expected = pool_.zeros({E, out, in});
      random.transform = transform;
      cpu().grouped_linear_backward_weight({.x = x, .dy = dy, .offsets = offsets, .dw = expected, .rounding = random});
      ArenaScope scope(tensors_);
      const auto room = cuda::claim_block_weights(scope, format, device_x, device_dy, device_offsets);
      cuda::sm100::encode_columns(context(), device_x, device_offsets, transform, {}, room.b);
      cuda::sm100::encode_columns(context(), device_dy, device_offsets, transform, on_device(random.random), room.a);
      EXPECT_GT(signal_to_noise(weight_product(room.a, room.b, tiles, E, out, in), expected), kLeastOperandRatio);
    }
  }
}

// Sizes that are no multiples of anything.
TEST_F(CudaBlockOperands, GiveTheCpusDenseProducts) {
  const int64_t T = 141, in = 77, out = 37;
  const Tensor x = normal({T, in}, DType::kBF16), w = normal({out, in}, DType::kBF16, 0.05),
               dy = normal({T, out}, DType::kBF16, 1e-3);
  const Tensor device_x = up(x, DType::kBF16), device_w = up(w, DType::kBF16), device_dy = up(dy, DType::kBF16);
  for (const OperandFormat format : kBlockFormats) {
    const OperandRounding random = rounding(format, /*random=*/true);
    ArenaScope scope(tensors_);
    const Tensor y = pool_.zeros({T, out}), dx = pool_.zeros({T, in}), dw = pool_.zeros({out, in});
    cpu().linear_forward({.x = x, .w = w, .y = y, .addend = {}, .rounding = rounding(format)});
    auto room = cuda::claim_block_rows(scope, format, device_x, device_w, /*over_out=*/false, {});
    cuda::sm100::encode_rows(context(), device_x, {}, {}, room.a);
    cuda::sm100::encode_weights(context(), device_w, room.b);
    EXPECT_GT(signal_to_noise(rows_product(room.a, room.b, false, in, {}, {}, T, out), y), kLeastOperandRatio);

    cpu().linear_backward_input({.dy = dy, .w = w, .dx = dx, .rounding = random});
    room = cuda::claim_block_rows(scope, format, device_dy, device_w, /*over_out=*/true, {});
    cuda::sm100::encode_rows(context(), device_dy, {}, on_device(random.random), room.a);
    cuda::sm100::encode_weight_columns(context(), device_w, room.b);
    EXPECT_GT(signal_to_noise(rows_product(room.a, room.b, true, out, {}, {}, T, in), dx), kLeastOperandRatio);

    cpu().linear_backward_weight({.x = x, .dy = dy, .dw = dw, .rounding = random});
    room = cuda::claim_block_weights(scope, format, device_x, device_dy, {});
    cuda::sm100::encode_columns(context(), device_x, {}, /*transform=*/true, {}, room.b);
    cuda::sm100::encode_columns(context(), device_dy, {}, /*transform=*/true, on_device(random.random), room.a);
    const Tensor tiles = pool_.ints({2}, {0, static_cast<double>(cuda::block_tiles(T))});
    const Tensor actual = weight_product(room.a, room.b, tiles, 1, out, in);
    EXPECT_GT(signal_to_noise(actual.reshape({out, in}), dw), kLeastOperandRatio);
  }
}

// Zeros, NaN, infinities, subnormals and ties, as BF16 has them, in blocks that are whole and short: what the CPU's
// codes and scales stand for, to the bit, of rows, of gradients that are rounded at random, and of weights.
TEST_F(CudaBlockOperands, CodesOfTheReferenceAreTheCpus) {
  for (const QuantizeCase& one : read_quantize_cases(pool_)) {
    const OperandFormat format = one.args.format;
    if (format == OperandFormat::kFp8 || one.args.x.num_elements() == 0) continue;
    const bool is_nvfp4 = format == OperandFormat::kNvFp4, tiles = one.args.blocks == BlockShape::kTiles;
    const Tensor x = rounded(one.args.x, DType::kBF16);
    const int64_t N = x.dim(1), C = x.dim(2), n = block_size(format), across = (C + n - 1) / n;
    if (is_nvfp4) cpu().abs_max({.x = x, .amax = one.args.amax});
    cpu().quantize(one.args);
    const Tensor device_x = up(x.reshape({N, C}), DType::kBF16);
    for (const bool of_weights : {false, true}) {
      if (of_weights ? is_nvfp4 && !tiles : tiles) continue;
      SCOPED_TRACE(fmt::format("{}, of weights {}", one.name, of_weights));
      ArenaScope scope(tensors_);
      const auto room = cuda::claim_block_rows(scope, format, device_x, device_x, /*over_out=*/false, {});
      if (of_weights) {
        cuda::sm100::encode_weights(context(), device_x, room.b);
      } else {
        cuda::sm100::encode_rows(context(), device_x, {}, on_device(one.args.random), room.a);
      }
      const BlockOperand actual = fetched(of_weights ? room.b : room.a);
      if (is_nvfp4) {
        EXPECT_TRUE(same_bits(actual.amax, one.args.amax));
      }
      for (int64_t i = 0; i < N * C; ++i) {
        const int64_t row = i / C, col = i % C;
        const uint8_t scale = one.args.scales.data<uint8_t>()[(tiles ? row / n : row) * across + col / n];
        const uint8_t* const codes = one.args.values.data<uint8_t>();
        const float value =
            is_nvfp4 ? e2m1_to_float(codes[row * ((C + 1) / 2) + col / 2] >> (col % 2 * 4) & 15) * e4m3_to_float(scale)
                     : e4m3_to_float(codes[i]) * e8m0_to_float(scale);
        const double found = element(actual, row, row, col), expected = static_cast<double>(value);
        if (std::isnan(found) && std::isnan(expected)) continue;
        ASSERT_EQ(found, expected) << row << ", " << col;
        ASSERT_EQ(std::signbit(found), std::signbit(expected)) << row << ", " << col;
      }
    }
  }
}

// What is not finite stays so in its block, and nowhere else in MXFP8.
TEST_F(CudaBlockOperands, KeepWhatIsNotFinite) {
  const Tensor x = normal({4, 64}, DType::kBF16);
  set(x, 64 + 3, std::numeric_limits<double>::infinity());
  const Tensor device_x = up(x, DType::kBF16);
  ArenaScope scope(tensors_);
  const BlockOperand operand = cuda::claim_block_operand(scope, OperandFormat::kMxFp8, 4, 1, 64, 1);
  cuda::sm100::encode_rows(context(), device_x, {}, {}, operand);
  const BlockOperand host = fetched(operand);
  for (int64_t i = 0; i < 4 * 64; ++i) {
    EXPECT_EQ(std::isnan(element(host, i / 64, i / 64, i % 64)), i >= 64 && i < 96) << i;
  }
}

}  // namespace
}  // namespace nmoe::test
