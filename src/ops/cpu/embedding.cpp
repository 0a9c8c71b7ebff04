#include "ops/cpu/embedding.h"

#include <cstring>

namespace nmoe::cpu {
namespace {

int64_t checked_id(const int32_t* ids, int64_t token, int64_t vocab_size) {
  const int64_t id = ids[token];
  NMOE_CHECK(id >= 0 && id < vocab_size, "token {} has id {}, the vocabulary {}", token, id, vocab_size);
  return id;
}

}  // namespace

template <class Real>
void embedding_forward(Context& ctx, Tensor ids, Tensor table, Tensor y) {
  const int64_t num_tokens = ids.dim(0), vocab_size = table.dim(0), width = table.dim(1);
  if (ctx.counting()) return;
  const int32_t* id = ids.data<int32_t>();
  const Real* rows = table.data<Real>();
  Real* out = y.data<Real>();
  parallel_blocks(ctx, num_tokens, task_rows(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      const Real* row = rows + checked_id(id, token, vocab_size) * width;
      std::memcpy(out + token * width, row, static_cast<size_t>(width) * sizeof(Real));
    }
  });
}

// Tokens share rows, so tasks own columns: each adds its columns of every token, in token order.
template <class Real>
void embedding_backward(Context& ctx, Tensor ids, Tensor dy, Tensor dtable) {
  constexpr int64_t kColumns = 64;
  const int64_t num_tokens = ids.dim(0), vocab_size = dtable.dim(0), width = dtable.dim(1);
  if (ctx.counting()) return;
  const int32_t* id = ids.data<int32_t>();
  const Real* gradients = dy.data<Real>();
  Real* rows = dtable.data<Real>();
  parallel_blocks(ctx, width, kColumns, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = 0; token < num_tokens; ++token) {
      const Real* source = gradients + token * width;
      Real* target = rows + checked_id(id, token, vocab_size) * width;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) target[i] += source[i];
    }
  });
}

template void embedding_forward<float>(Context&, Tensor, Tensor, Tensor);
template void embedding_forward<double>(Context&, Tensor, Tensor, Tensor);
template void embedding_backward<float>(Context&, Tensor, Tensor, Tensor);
template void embedding_backward<double>(Context&, Tensor, Tensor, Tensor);

}  // namespace nmoe::cpu
