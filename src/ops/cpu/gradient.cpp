#include "ops/cpu/operations.h"
#include "ops/moment_rounding.h"
#include "tensor/convert.h"

namespace nmoe::cpu {

template <class Real>
void add_gradient(Context& ctx, const AddGradient& args) {
  if (ctx.counting() || args.sum.num_elements() == 0) return;
  const MomentRounding& random = args.random;
  const int64_t num_experts = args.sum.dim(0), size = args.sum.num_elements() / num_experts;
  const int32_t* const offset = args.offsets.data<int32_t>();
  const int32_t* const matrix = random.matrices.data_or_null<int32_t>();
  const bool stochastic = random.key.defined();
  const uint64_t key = stochastic ? static_cast<uint64_t>(*random.key.data<int64_t>()) : 0;
  const int64_t blocks = ceil_div(size, kTaskElements);
  ctx.pool.parallel_for(num_experts * blocks, [&](int64_t task, int) {
    const int64_t expert = task / blocks, begin = task % blocks * kTaskElements;
    const int64_t end = std::min(begin + kTaskElements, size);
    if (args.accumulate && offset[expert] == offset[expert + 1]) return;
    const Real* const product = args.product.data<Real>() + expert * size;
    auto* const sum = static_cast<uint16_t*>(args.sum.raw()) + expert * size;
    const int64_t first = (matrix != nullptr ? matrix[expert] : expert) * size;
    random::Words words{};
    for (int64_t i = begin; i < end; ++i) {
      const Real before = args.accumulate ? static_cast<Real>(bf16_to_float(sum[i])) : Real{0};
      const auto x = static_cast<float>(before + product[i]);
      if (!stochastic) {
        sum[i] = float_to_bf16(x);
        continue;
      }
      const int64_t index = first + i;
      if (i == begin || index % 8 == 0) words = moments::rounding_words(key, random.stream, index / 8);
      sum[i] =
          static_cast<uint16_t>(moments::to_bf16(x, moments::first_bits(words, static_cast<int>(index % 8))) >> 16);
    }
  });
}

NMOE_CPU_INSTANTIATE(add_gradient, AddGradient)

}  // namespace nmoe::cpu
