#include <cstring>

#include "ops/cpu/operations.h"

namespace nmoe::cpu {
namespace {

int64_t checked_id(const int32_t* ids, int64_t token, int64_t vocab_size) {
  const int64_t id = ids[token];
  NMOE_CHECK(id >= 0 && id < vocab_size, "token {} has id {}, the vocabulary {}", token, id, vocab_size);
  return id;
}

}  // namespace

template <class Real>
void embedding_forward(Context& ctx, const EmbeddingForward& args) {
  const Tensor ids = args.ids, table = args.table, y = args.y;
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
void embedding_backward(Context& ctx, const EmbeddingBackward& args) {
  const Tensor ids = args.ids, dy = args.dy, dtable = args.dtable;
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

NMOE_CPU_INSTANTIATE(embedding_forward, EmbeddingForward)
NMOE_CPU_INSTANTIATE(embedding_backward, EmbeddingBackward)

}  // namespace nmoe::cpu
