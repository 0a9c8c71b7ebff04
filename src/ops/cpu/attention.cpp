// Attention in tiles of [query block, key block] with a running softmax, as in FlashAttention-2 (arXiv 2307.08691,
// algorithms 1 and 2); a tile is so wide that most rows see one key block only.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "ops/cpu/attention_rows.h"
#include "ops/cpu/documents.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

// Letters as in ops/ops.h.
struct Geometry {
  int64_t B, S, H, G, Dk, Dv, window;
  // With documents, else null: [B, S] where, in its sequence, the document of a position begins; [B, S + 1] where each
  // query block begins, and at the end S; [B] how many these are.
  const int32_t* document_begin = nullptr;
  const int32_t* block_begin = nullptr;
  const int32_t* block_count = nullptr;

  int64_t group_size() const { return H / G; }  // query heads to a key/value head
  int64_t query_blocks(int64_t seq) const {
    return block_count == nullptr ? ceil_div(S, kQueryBlock) : block_count[seq];
  }
  int64_t most_query_blocks() const {
    int64_t most = 0;
    for (int64_t seq = 0; seq < B; ++seq) most = std::max(most, query_blocks(seq));
    return most;
  }
  // The queries of a block, positions in their sequence and of one document.
  Columns query_block(int64_t seq, int64_t block) const {
    if (block_begin == nullptr) return {block * kQueryBlock, std::min((block + 1) * kQueryBlock, S)};
    const int32_t* begin = block_begin + seq * (S + 1) + block;
    return {begin[0], begin[1]};
  }
  // First key that the query at position i of a sequence sees. It never falls as i grows.
  int64_t first_key(int64_t seq, int64_t i) const {
    const int64_t first = document_begin == nullptr ? 0 : document_begin[seq * S + i];
    return window == 0 ? first : std::max(first, i - window + 1);
  }
};

Geometry geometry_of(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  return {shape.num_seqs, shape.seq_len, q.dim(1), k.dim(1), q.dim(2), v.dim(2), shape.window};
}

// Storage for what Geometry knows of documents; undefined without them.
struct DocumentTables {
  DocumentTables(ArenaScope& scope, const AttentionShape& shape) {
    if (!shape.cu_seqlens.defined()) return;
    document_begin = scope.allocate(DType::kI32, {shape.num_seqs, shape.seq_len});
    block_begin = scope.allocate(DType::kI32, {shape.num_seqs, shape.seq_len + 1});
    block_count = scope.allocate(DType::kI32, {shape.num_seqs});
  }
  Tensor document_begin, block_begin, block_count;
};

// Fills the tables from shape.cu_seqlens and gives them to `g`.
void set_documents(const AttentionShape& shape, const DocumentTables& tables, Geometry& g) {
  if (!tables.document_begin.defined()) return;
  const int64_t S = shape.seq_len;
  int32_t* out = tables.document_begin.data<int32_t>();
  int32_t* blocks = tables.block_begin.data<int32_t>();
  const std::span<int32_t> counts = tables.block_count.span<int32_t>();
  std::ranges::fill(counts, 0);
  for_each_document(shape.num_seqs, S, shape.cu_seqlens, [&](int64_t first, int64_t end) {
    const int64_t place = first % S, seq = first / S;
    std::fill(out + first, out + end, static_cast<int32_t>(place));
    for (int64_t begin = place; begin < place + end - first; begin += kQueryBlock) {
      int32_t& count = counts[static_cast<size_t>(seq)];
      blocks[seq * (S + 1) + count++] = static_cast<int32_t>(begin);
    }
  });
  for (int64_t seq = 0; seq < shape.num_seqs; ++seq) {
    blocks[seq * (S + 1) + counts[static_cast<size_t>(seq)]] = static_cast<int32_t>(S);
  }
  g.document_begin = out;
  g.block_begin = blocks;
  g.block_count = counts.data();
}

// One head of one sequence of a [T, heads, size] tensor, a strided matrix whose rows are positions.
template <class Real>
struct HeadView {
  Real* data;
  int64_t stride;

  Real* row(int64_t position) const { return data + position * stride; }
  Operand<Real> rows_from(int64_t position, Transpose transpose = Transpose::kNo) const {
    return {row(position), stride, transpose};
  }
};
template <class Real>
HeadView<Real> head_of(const Tensor& x, int64_t seq_len, int64_t seq, int64_t head) {
  const int64_t stride = x.stride();
  return {x.rows_data<Real>() + seq * seq_len * stride + head * x.dim(2), stride};
}

// Queries [q_begin, q_end) against keys [k_begin, k_end), positions in one sequence.
struct Tile {
  int64_t seq, q_begin, q_end, k_begin, k_end;
  bool first;  // of its query block

  int64_t rows() const { return q_end - q_begin; }
  int64_t cols() const { return k_end - k_begin; }
  int64_t width() const { return key_block_width(q_begin, k_begin); }  // cols(), or more where the document ends
};

// Calls fn(tile) for the tiles of a query block, in order of keys; tiles that no query sees are left out.
template <class Fn>
void for_each_tile(const Geometry& g, int64_t seq, int64_t query_block, const Fn& fn) {
  const auto [q_begin, q_end] = g.query_block(seq, query_block);
  const int64_t first_key = g.first_key(seq, q_begin);
  for (int64_t k_begin = first_key; k_begin < q_end; k_begin += kKeyBlock) {
    fn(Tile{seq, q_begin, q_end, k_begin, std::min(k_begin + kKeyBlock, q_end), k_begin == first_key});
  }
}

Columns seen_by(const Geometry& g, const Tile& tile, int64_t row) {
  const int64_t i = tile.q_begin + row;
  return {std::max<int64_t>(0, g.first_key(tile.seq, i) - tile.k_begin), std::min(tile.cols(), i + 1 - tile.k_begin)};
}

template <class Real>
void scale_row(Real* x, int64_t size, Real factor) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) x[j] *= factor;
}

// Masks a row of scores and returns the columns left to compute: a little more than is seen, so that loops run over
// whole vectors. Scores outside what is seen become -inf, whose exp is 0; outside what is returned they become 0.
template <class Real>
Columns mask_row(Real* scores, Columns seen, int64_t cols) {
  constexpr int64_t kVector = 16;
  if (seen.begin >= seen.end) {
    std::fill_n(scores, cols, Real{0});
    return {0, 0};
  }
  const Columns padded{seen.begin / kVector * kVector, std::min(ceil_div(seen.end, kVector) * kVector, cols)};
  constexpr Real kMasked = -std::numeric_limits<Real>::infinity();
  std::fill(scores, scores + padded.begin, Real{0});
  std::fill(scores + padded.begin, scores + seen.begin, kMasked);
  std::fill(scores + seen.end, scores + padded.end, kMasked);
  std::fill(scores + padded.end, scores + cols, Real{0});
  return padded;
}

// The probabilities p = exp(score - lse) of a row take the place of its scores, p (dp - delta) that of dp: the scores'
// gradient, up to the scale that the products with it apply.
template <class Real>
void backward_row(Real* scores, Real* dp, Columns seen, int64_t cols, Real lse, Real delta) {
  const Columns computed = mask_row(scores, seen, cols);
  const int64_t begin = computed.begin, end = computed.end;
  std::fill(dp, dp + begin, Real{0});
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) {
    const Real p = exp_approx(scores[j] - lse);
    scores[j] = p;
    dp[j] = p * (dp[j] - delta);
  }
  std::fill(dp + end, dp + cols, Real{0});
}

}  // namespace

// Not put into its callers: where the compiler fuses and cuts loops is then the same for all of them.
template <class Real>
[[gnu::noinline]] Real softmax_row(Real* scores, Columns seen, int64_t width, RunningSoftmax<Real>& state) {
  const Columns computed = mask_row(scores, seen, width);
  const int64_t begin = computed.begin, end = computed.end;
  if (begin == end) return 1;
  const Real highest = std::max(state.highest, highest_of(scores + begin, end - begin));
  const Real correction = exp_approx(state.highest - highest);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = begin; j < end; ++j) {
    scores[j] = exp_approx(scores[j] - highest);
    sum += scores[j];
  }
  state.highest = highest;
  state.sum = state.sum * correction + sum;
  return correction;
}
template <class Real>
[[gnu::noinline]] Real finish_softmax(RunningSoftmax<Real>& state, const Real* sink) {
  if (sink == nullptr) return 1 / state.sum;
  const Real highest = std::max(state.highest, *sink);
  const Real correction = std::exp(state.highest - highest);
  state.highest = highest;
  state.sum = state.sum * correction + std::exp(*sink - highest);
  return correction / state.sum;
}
template float finish_softmax(RunningSoftmax<float>&, const float*);
template double finish_softmax(RunningSoftmax<double>&, const double*);
template float softmax_row(float*, Columns, int64_t, RunningSoftmax<float>&);
template double softmax_row(double*, Columns, int64_t, RunningSoftmax<double>&);

template <class Real>
void attention_forward(Context& ctx, const AttentionForward& args) {
  Geometry g = geometry_of(args.shape, args.q, args.k, args.v);
  ArenaScope scope(ctx.scratch);
  const Tensor scratch = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kQueryBlock, kKeyBlock});
  const Tensor panels = claim_gemm_scratch<Real>(scope, ctx);
  const DocumentTables tables(scope, args.shape);
  if (ctx.counting()) return;
  set_documents(args.shape, tables, g);

  const Real scale = static_cast<Real>(args.shape.scale);
  const int64_t blocks = g.most_query_blocks();
  ctx.pool.parallel_for(g.B * g.H * blocks, [&](int64_t task, int thread) {
    const int64_t query_block = blocks - 1 - task % blocks;  // the longest task of a head first
    const int64_t head = task / blocks % g.H, seq = task / blocks / g.H, kv_head = head / g.group_size();
    if (query_block >= g.query_blocks(seq)) return;
    const HeadView<Real> q = head_of<Real>(args.q, g.S, seq, head);
    const HeadView<Real> k = head_of<Real>(args.k, g.S, seq, kv_head);
    const HeadView<Real> v = head_of<Real>(args.v, g.S, seq, kv_head);
    const HeadView<Real> out = head_of<Real>(args.out, g.S, seq, head);
    Real* lse = args.lse.data<Real>() + (seq * g.H + head) * g.S;
    Real* scores = scratch[thread].data<Real>();
    Real* gemm_scratch = panels[thread].data<Real>();

    RunningSoftmax<Real> states[kQueryBlock];
    for_each_tile(g, seq, query_block, [&](const Tile& tile) {
      const int64_t rows = tile.rows(), cols = tile.cols(), width = tile.width();
      gemm<Real>(gemm_scratch, rows, cols, g.Dk, scale, q.rows_from(tile.q_begin),
                 k.rows_from(tile.k_begin, Transpose::kYes), 0, scores, width);
      for (int64_t row = 0; row < rows; ++row) {
        const Real correction = softmax_row(scores + row * width, seen_by(g, tile, row), width, states[row]);
        if (!tile.first && correction != 1) scale_row(out.row(tile.q_begin + row), g.Dv, correction);
      }
      gemm<Real>(gemm_scratch, rows, g.Dv, cols, 1, {scores, width}, v.rows_from(tile.k_begin), tile.first ? 0 : 1,
                 out.row(tile.q_begin), out.stride);
    });
    const auto [q_begin, q_end] = g.query_block(seq, query_block);
    for (int64_t i = q_begin; i < q_end; ++i) {
      RunningSoftmax<Real>& state = states[i - q_begin];
      scale_row(out.row(i), g.Dv, finish_softmax(state, sink_of<Real>(args.sinks, head)));
      lse[i] = state.highest + std::log(state.sum);
    }
  });
}

namespace {

// What backward reads and writes for one query head of one sequence.
template <class Real>
struct BackwardHead {
  HeadView<Real> q, k, v, out, dout;
  const Real* lse;        // [S]
  HeadView<Real> dq;      // =
  HeadView<Real> dk, dv;  // +=
};

// dq of a query block, and its part of dk and dv. `scores` and `dp` hold a tile each.
template <class Real>
void backward_query_block(const Geometry& g, Real scale, const BackwardHead<Real>& x, int64_t seq, int64_t query_block,
                          Real* scores, Real* dp, Real* gemm_scratch) {
  // delta = sum over v of dout * out, the constant of a row in the softmax's backward.
  Real delta[kQueryBlock];
  const int64_t q_begin = g.query_block(seq, query_block).begin, q_end = g.query_block(seq, query_block).end;
  for (int64_t i = q_begin; i < q_end; ++i) delta[i - q_begin] = dot(x.dout.row(i), x.out.row(i), g.Dv);

  const Operand<Real> q = x.q.rows_from(q_begin), dout = x.dout.rows_from(q_begin);
  for_each_tile(g, seq, query_block, [&](const Tile& tile) {
    const int64_t rows = tile.rows(), cols = tile.cols(), key = tile.k_begin;
    gemm<Real>(gemm_scratch, rows, cols, g.Dk, scale, q, x.k.rows_from(key, Transpose::kYes), 0, scores, cols);
    gemm<Real>(gemm_scratch, rows, cols, g.Dv, 1, dout, x.v.rows_from(key, Transpose::kYes), 0, dp, cols);
    for (int64_t row = 0; row < rows; ++row) {
      backward_row(scores + row * cols, dp + row * cols, seen_by(g, tile, row), cols, x.lse[q_begin + row], delta[row]);
    }
    gemm<Real>(gemm_scratch, cols, g.Dv, rows, 1, {scores, cols, Transpose::kYes}, dout, 1, x.dv.row(key), x.dv.stride);
    gemm<Real>(gemm_scratch, cols, g.Dk, rows, scale, {dp, cols, Transpose::kYes}, q, 1, x.dk.row(key), x.dk.stride);
    gemm<Real>(gemm_scratch, rows, g.Dk, cols, scale, {dp, cols}, x.k.rows_from(key), tile.first ? 0 : 1,
               x.dq.row(q_begin), x.dq.stride);
  });
}

// total [T, G, size] = partials[0] + partials[1] + ..., in this order.
template <class Real>
void add_up(Context& ctx, const Tensor& partials, const Tensor& total) {
  constexpr int64_t kElementsPerTask = 16 * 1024;
  const int64_t num_rows = total.dim(0), width = total.shape().row_elements(), stride = total.stride();
  parallel_blocks(ctx, num_rows, std::max<int64_t>(1, kElementsPerTask / width), [&](int64_t begin, int64_t end, int) {
    const Real* partial = partials.data<Real>();
    for (int64_t row = begin; row < end; ++row) {
      Real* sum = total.rows_data<Real>() + row * stride;
      std::copy_n(partial + row * width, width, sum);
      for (int64_t deal = 1; deal < partials.dim(0); ++deal) {
        const Real* addend = partial + (deal * num_rows + row) * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) sum[i] += addend[i];
      }
    }
  });
}

// As AttentionBackward says, a head after the other.
template <class Real>
void sinks_backward(Context& ctx, const AttentionBackward& args) {
  const int64_t H = args.q.dim(1), S = args.shape.seq_len, Dv = args.v.dim(2), num_rows = args.q.dim(0);
  const int64_t num_chunks = ceil_div(num_rows, kSinkChunkRows);
  ArenaScope scope(ctx.scratch);
  const Tensor partials = scope.allocate(DType::kF64, {num_chunks, H});
  if (ctx.counting()) return;
  const Real* const lse = args.lse.data<Real>();
  const Real* const sinks = args.sinks.data<Real>();
  ctx.pool.parallel_for(num_chunks * H, [&](int64_t task, int) {
    const int64_t chunk = task / H, head = task % H;
    double sum = 0;
    for (int64_t t = chunk * kSinkChunkRows; t < std::min((chunk + 1) * kSinkChunkRows, num_rows); ++t) {
      const int64_t seq = t / S, position = t % S;
      const Real* const dout = head_of<Real>(args.dout, S, seq, head).row(position);
      const Real* const out = head_of<Real>(args.out, S, seq, head).row(position);
      double delta = 0;
      for (int64_t d = 0; d < Dv; ++d) delta += static_cast<double>(dout[d]) * static_cast<double>(out[d]);
      sum += static_cast<double>(std::exp(sinks[head] - lse[(seq * H + head) * S + position])) * delta;
    }
    partials.data<double>()[task] = sum;
  });
  for (int64_t head = 0; head < H && num_chunks > 0; ++head) {
    double sum = partials.data<double>()[head];
    for (int64_t chunk = 1; chunk < num_chunks; ++chunk) sum += partials.data<double>()[chunk * H + head];
    args.dsinks.data<Real>()[head] -= static_cast<Real>(sum);
  }
}

}  // namespace

// A task owns the gradients of one key/value head of one sequence and walks over its (query head, query block) pairs.
// Where that makes too few tasks, the pairs are dealt to several, which sum apart and are added up at the end. The cut
// depends on shapes alone.
template <class Real>
void attention_backward(Context& ctx, const AttentionBackward& args) {
  constexpr int64_t kWantedTasks = 16;
  Geometry g = geometry_of(args.shape, args.q, args.k, args.v);
  const int64_t deals = std::min(g.group_size() * ceil_div(g.S, kQueryBlock), ceil_div(kWantedTasks, g.B * g.G));

  ArenaScope scope(ctx.scratch);
  const DType dtype = DTypeOf<Real>::value;
  const Tensor scratch = scope.allocate(dtype, {ctx.num_threads(), 2, kQueryBlock, kKeyBlock});
  const int64_t num_partials = deals == 1 ? 0 : deals;  // a single sum is made in place
  const Tensor dk_partials = scope.allocate(dtype, {num_partials, g.B * g.S, g.G, g.Dk});
  const Tensor dv_partials = scope.allocate(dtype, {num_partials, g.B * g.S, g.G, g.Dv});
  const Tensor panels = claim_gemm_scratch<Real>(scope, ctx);
  const DocumentTables tables(scope, args.shape);
  if (ctx.counting()) {
    if (args.sinks.defined()) sinks_backward<Real>(ctx, args);
    return;
  }
  set_documents(args.shape, tables, g);

  ctx.pool.parallel_for(g.B * g.G * deals, [&](int64_t task, int thread) {
    const int64_t deal = task % deals, kv_head = task / deals % g.G, seq = task / deals / g.G;
    const Tensor dk = num_partials == 0 ? args.dk : dk_partials[deal];
    const Tensor dv = num_partials == 0 ? args.dv : dv_partials[deal];
    BackwardHead<Real> x{};
    x.k = head_of<Real>(args.k, g.S, seq, kv_head);
    x.v = head_of<Real>(args.v, g.S, seq, kv_head);
    x.dk = head_of<Real>(dk, g.S, seq, kv_head);
    x.dv = head_of<Real>(dv, g.S, seq, kv_head);
    for (int64_t j = 0; j < g.S; ++j) {
      std::fill_n(x.dk.row(j), g.Dk, Real{0});
      std::fill_n(x.dv.row(j), g.Dv, Real{0});
    }
    const int64_t blocks = g.query_blocks(seq);
    for (int64_t pair = deal; pair < g.group_size() * blocks; pair += deals) {
      const int64_t head = kv_head * g.group_size() + pair / blocks;
      x.q = head_of<Real>(args.q, g.S, seq, head);
      x.out = head_of<Real>(args.out, g.S, seq, head);
      x.dout = head_of<Real>(args.dout, g.S, seq, head);
      x.lse = args.lse.data<Real>() + (seq * g.H + head) * g.S;
      x.dq = head_of<Real>(args.dq, g.S, seq, head);
      backward_query_block(g, static_cast<Real>(args.shape.scale), x, seq, pair % blocks,
                           scratch[thread][0].data<Real>(), scratch[thread][1].data<Real>(),
                           panels[thread].data<Real>());
    }
  });
  if (num_partials > 0) {
    add_up<Real>(ctx, dk_partials, args.dk);
    add_up<Real>(ctx, dv_partials, args.dv);
  }
  if (args.sinks.defined()) sinks_backward<Real>(ctx, args);
  if (!args.rope.positions.defined()) return;
  Rope rope = args.rope;
  rope.x = args.dq;
  rope_backward<Real>(ctx, rope);
  rope.x = args.dk;
  if (args.rope_keys) rope_backward<Real>(ctx, rope);
}

NMOE_CPU_INSTANTIATE(attention_forward, AttentionForward)
NMOE_CPU_INSTANTIATE(attention_backward, AttentionBackward)

}  // namespace nmoe::cpu
