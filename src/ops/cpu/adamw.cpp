#include <algorithm>
#include <array>
#include <cmath>

#include "ops/adamw_math.h"
#include "ops/cpu/operations.h"
#include "ops/moment_codes.h"
#include "ops/moment_rounding.h"
#include "tensor/convert.h"

namespace nmoe::cpu {
namespace {

// Calls fn(begin, end, grad) for elements [begin, end), with the gradient of element `begin` and those behind it: all
// at once, or, of a gradient in BF16, as many as are widened at a time.
template <class Real, class Fn>
void with_gradients(const Tensor& grad, int64_t begin, int64_t end, const Fn& fn) {
  if (grad.dtype() != DType::kBF16) return fn(begin, end, grad.data<Real>() + begin);
  const auto* const bits = static_cast<const uint16_t*>(grad.raw());
  std::array<Real, 1024> widened;  // stays in the first-level cache
  while (begin < end) {
    const int64_t stop = std::min(begin + std::ssize(widened), end);
    for (int64_t i = begin; i < stop; ++i) widened[static_cast<size_t>(i - begin)] = bf16_to_float(bits[i]);
    fn(begin, stop, static_cast<const Real*>(widened.data()));
    begin = stop;
  }
}

// Elements [begin, end) of moments in BF16, with their gradients, where element i is number `index` + i - begin of the
// whole tensor.
template <class Real>
void update_rounded(const AdamWStep& args, const adamw::Constants<Real>& constants, const adamw::Rates<Real>& rates,
                    int64_t begin, int64_t end, const Real* grad, int64_t index) {
  const auto key = static_cast<uint64_t>(*args.random.key.data<int64_t>());
  Real* const w = args.w.data<Real>();
  auto* const m_bits = static_cast<uint16_t*>(args.m.raw());
  auto* const v_bits = static_cast<uint16_t*>(args.v.raw());
  random::Words words{};
  for (int64_t i = begin; i < end; ++i, ++index) {
    if (i == begin || index % 8 == 0) words = moments::rounding_words(key, args.random.stream, index / 8);
    Real m = bf16_to_float(m_bits[i]), v = bf16_to_float(v_bits[i]);
    adamw::update(constants, rates, *grad++, m, v, w[i]);
    const uint32_t random = moments::first_bits(words, static_cast<int>(index % 8));
    const auto bf16 = [](Real x, uint32_t bits) {
      return static_cast<uint16_t>(moments::to_bf16(static_cast<float>(x), bits) >> 16);
    };
    m_bits[i] = bf16(m, random);
    v_bits[i] = bf16(v, moments::second_bits(random));
  }
}

// Elements [begin, end) of moments in codes, which are block number `block`, with their gradients; element i is number
// `index` + i - begin of the whole tensor.
template <class Real>
void update_codes(const AdamWStep& args, const adamw::Constants<Real>& constants, const adamw::Rates<Real>& rates,
                  int64_t begin, int64_t end, const Real* grad, int64_t block, int64_t index) {
  auto* const m_codes = args.m.data<uint8_t>() + begin;
  auto* const v_codes = args.v.data<uint8_t>() + begin;
  uint8_t& m_scale = args.m_scales.data<uint8_t>()[block];
  uint8_t& v_scale = args.v_scales.data<uint8_t>()[block];
  Real* const w = args.w.data<Real>() + begin;
  std::array<float, moments::kBlock> m, v;
  uint32_t m_most = 0, v_most = 0;
  for (int64_t i = 0; i < end - begin; ++i) {
    Real first = e4m3_to_float(m_codes[i]) * e8m0_to_float(m_scale);
    Real second = moments::ue5m3_to_float(v_codes[i]) * e8m0_to_float(v_scale);
    adamw::update(constants, rates, grad[i], first, second, w[i]);
    const auto at = static_cast<size_t>(i);
    m[at] = static_cast<float>(first), v[at] = static_cast<float>(second);
    m_most = std::max(m_most, magnitude_bits(m[at])), v_most = std::max(v_most, magnitude_bits(v[at]));
  }
  m_scale = moments::first_scale(amax_of_bits(m_most));
  v_scale = moments::second_scale(amax_of_bits(v_most));
  const float m_inverse = e8m0_to_inverse(m_scale), v_inverse = e8m0_to_inverse(v_scale);
  const auto key = static_cast<uint64_t>(*args.random.key.data<int64_t>());
  random::Words words{};
  for (int64_t i = 0; i < end - begin; ++i, ++index) {
    if (i == 0 || index % 8 == 0) words = moments::rounding_words(key, args.random.stream, index / 8);
    const uint32_t random = moments::first_bits(words, static_cast<int>(index % 8));
    const auto at = static_cast<size_t>(i);
    m_codes[i] = moments::first_code(m[at] * m_inverse, random);
    v_codes[i] = moments::second_code(v[at] * v_inverse, moments::second_bits(random));
  }
}

// All of a step with moments in codes.
template <class Real>
void step_codes(Context& ctx, const AdamWStep& args, const adamw::Constants<Real>& constants,
                const adamw::Rates<Real>& rates) {
  if (args.w.num_elements() == 0) return;
  const Tensor& matrices = args.random.matrices;
  const int64_t size = args.w.num_elements() / (matrices.defined() ? matrices.num_elements() : 1);
  const int64_t blocks = moments::num_blocks(size);
  parallel_blocks(
      ctx, args.m_scales.num_elements(), kTaskElements / moments::kBlock, [&](int64_t first, int64_t last, int) {
        for (int64_t block = first; block < last; ++block) {
          const int64_t matrix = block / blocks, at = block % blocks * moments::kBlock;
          const int64_t begin = matrix * size + at, end = begin + std::min(moments::kBlock, size - at);
          const int64_t whole = matrices.defined() ? matrices.data<int32_t>()[matrix] * size : args.random.first;
          with_gradients<Real>(args.grad, begin, end, [&](int64_t from, int64_t to, const Real* grad) {
            update_codes(args, constants, rates, from, to, grad, block, whole + at);
          });
        }
      });
}

template <class Real>
void step(Context& ctx, const AdamWStep& args) {
  if (ctx.counting() || !std::isfinite(*args.grad_scale.data<double>())) return;
  const double* rate = args.rates.data<double>();
  const auto real = [](double value) { return static_cast<Real>(value); };
  const adamw::Constants<Real> constants{real(args.beta1),     real(args.beta2), real(1 - args.beta1),
                                         real(1 - args.beta2), real(args.eps),   real(args.weight_decay)};
  const adamw::Rates<Real> rates{real(*args.grad_scale.data<double>()), real(rate[0]), real(rate[1]), real(rate[2])};
  if (args.m.dtype() == DType::kU8) return step_codes(ctx, args, constants, rates);
  const int64_t size = args.w.num_elements();
  if (args.m.dtype() == DType::kBF16) {
    const Tensor& matrices = args.random.matrices;
    const int64_t matrix_size = matrices.defined() ? size / matrices.num_elements() : size;
    parallel_blocks(ctx, size, kTaskElements, [&](int64_t begin, int64_t end, int) {
      while (begin < end) {
        const int64_t matrix = begin / matrix_size, stop = std::min(end, (matrix + 1) * matrix_size);
        const int64_t first = matrices.defined() ? matrices.data<int32_t>()[matrix] * matrix_size : args.random.first;
        with_gradients<Real>(args.grad, begin, stop, [&](int64_t from, int64_t to, const Real* grad) {
          update_rounded(args, constants, rates, from, to, grad, first + from - matrix * matrix_size);
        });
        begin = stop;
      }
    });
    return;
  }
  Real* w = args.w.data<Real>();
  Real* m = args.m.data<Real>();
  Real* v = args.v.data<Real>();
  parallel_blocks(ctx, size, kTaskElements, [&](int64_t begin, int64_t end, int) {
    with_gradients<Real>(args.grad, begin, end, [&](int64_t from, int64_t to, const Real* grads) {
      const Real* const grad = grads - from;
#pragma omp simd
      for (int64_t i = from; i < to; ++i) adamw::update(constants, rates, grad[i], m[i], v[i], w[i]);
    });
  });
}

}  // namespace

template <class Real>
void adamw_steps(Context& ctx, const AdamWSteps& args) {
  for (const AdamWStep& one : args.all) step<Real>(ctx, one);
}

NMOE_CPU_INSTANTIATE(adamw_steps, AdamWSteps)

}  // namespace nmoe::cpu
