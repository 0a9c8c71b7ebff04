// A row is computed on its own: scores of a few heads against everything it sees, softmax, sum of values. All orders
// depend on the row's position and window alone, so its bits do too.
#include <algorithm>

#include "ops/cpu/operations.h"
#include "ops/cpu/row_products.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kTaskHeads = 8;  // query heads of one key/value head that a task goes through together

// Checks that row t names a place in a [Z, C, width] cache.
void check_places(const Tensor& slots, const Tensor& positions, const Tensor& cache) {
  for (int64_t t = 0; t < slots.dim(0); ++t) {
    const int32_t slot = slots.data<int32_t>()[t], position = positions.data<int32_t>()[t];
    NMOE_CHECK(slot >= 0 && slot < cache.dim(0) && position >= 0 && position < cache.dim(1),
               "row {} is position {} of slot {}, the cache is {}", t, position, slot, cache.shape());
  }
}

// x = exp(x - max(x)) / their sum.
template <class Real>
void softmax(Real* x, int64_t size) {
  const Real highest = highest_of(x, size);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    x[i] = exp_approx(x[i] - highest);
    sum += x[i];
  }
  const Real inverse = 1 / sum;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) x[i] *= inverse;
}

// Tasks of (token, head) of which each does `products` multiplications: fn(token, head, thread).
template <class Fn>
void for_each_head(Context& ctx, int64_t num_tokens, int64_t num_heads, int64_t products, const Fn& fn) {
  const int64_t per_task = std::max<int64_t>(1, kTaskProducts / std::max<int64_t>(1, products));
  parallel_blocks(ctx, num_tokens * num_heads, per_task, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) fn(i / num_heads, i % num_heads, thread);
  });
}

}  // namespace

template <class Real>
void cache_write(Context& ctx, const CacheWrite& args) {
  const int64_t num_tokens = args.rows.dim(0), width = args.rows.dim(1), cache_width = args.cache.dim(2);
  if (ctx.counting()) return;
  check_places(args.slots, args.positions, args.cache);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t place = args.slots.data<int32_t>()[t] * args.cache.dim(1) + args.positions.data<int32_t>()[t];
    std::copy_n(args.rows.rows_data<Real>() + t * args.rows.stride(), width,
                args.cache.data<Real>() + place * cache_width + args.offset);
  }
}

template <class Real>
void cached_attention(Context& ctx, const CachedAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.out.dim(2);
  const int64_t G = args.num_kv_heads, capacity = args.keys.dim(1), group = H / G;
  const Tensor values = args.values.defined() ? args.values : args.keys;
  ArenaScope scope(ctx.scratch);
  const int64_t task_heads = std::min(group, kTaskHeads);
  const Tensor scratch = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), task_heads, capacity});
  if (ctx.counting()) return;
  check_places(args.slots, args.positions, args.keys);

  const int32_t* slots = args.slots.data<int32_t>();
  const int32_t* positions = args.positions.data<int32_t>();
  const auto first_seen = [&](int64_t position) {
    return args.window == 0 ? 0 : std::max<int64_t>(0, position - args.window + 1);
  };
  int64_t seen_in_all = 0;
  for (int64_t t = 0; t < T; ++t) seen_in_all += positions[t] + 1 - first_seen(positions[t]);

  const int64_t chunks = ceil_div(group, task_heads);  // of a key/value head's query heads
  const int64_t products = T == 0 ? 0 : seen_in_all / T * task_heads * (Dk + Dv);
  for_each_head(ctx, T, G * chunks, products, [&](int64_t t, int64_t chunk, int thread) {
    const int64_t kv_head = chunk / chunks, begin = chunk % chunks * task_heads;
    const int64_t head = kv_head * group + begin, heads = std::min(task_heads, group - begin);
    const int64_t first = first_seen(positions[t]), seen = positions[t] + 1 - first;
    const int64_t place = slots[t] * capacity + first;
    const Rows<const Real> keys{args.keys.data<Real>() + place * G * Dk + kv_head * Dk, G * Dk};
    const Rows<const Real> sources{
        values.data<Real>() + place * values.dim(2) + kv_head * (args.values.defined() ? Dv : 0), values.dim(2)};
    const Rows<Real> scores{scratch[thread].data<Real>(), capacity};
    dot_rows<Real>(heads, seen, Dk, static_cast<Real>(args.scale),
                   {args.q.rows_data<Real>() + t * args.q.stride() + head * Dk, Dk}, keys, scores,
                   /*accumulate=*/false);
    for (int64_t h = 0; h < heads; ++h) softmax(scores[h], seen);
    combine_rows<Real>(heads, Dv, seen, {scores.data, scores.stride}, sources,
                       {args.out.data<Real>() + (t * H + head) * Dv, Dv});
  });
}

namespace {

// latent_q [T, H, Rkv + rope] = w_k^T q, then the rotated part as it is.
template <class Real>
void absorb_query(Context& ctx, const MlaSizes& sizes, Tensor q, Tensor kv_up, Tensor latent_q) {
  const int64_t H = sizes.heads, nope = sizes.nope, rope = sizes.rope, rank = sizes.rank, value = sizes.value;
  for_each_head(ctx, sizes.tokens, H, nope * rank, [&](int64_t t, int64_t head, int) {
    const Real* query = q.rows_data<Real>() + t * q.stride() + head * (nope + rope);
    Real* out = latent_q.data<Real>() + (t * H + head) * (rank + rope);
    combine_rows<Real>(1, rank, nope, {query, nope}, {kv_up.data<Real>() + head * (nope + value) * rank, rank},
                       {out, rank});
    std::copy_n(query + nope, rope, out + rank);
  });
}

// out = w_v times the latents [T, H, Rkv].
template <class Real>
void expand_output(Context& ctx, const MlaSizes& sizes, Tensor latents, Tensor kv_up, Tensor out) {
  const int64_t H = sizes.heads, nope = sizes.nope, rank = sizes.rank, value = sizes.value;
  for_each_head(ctx, sizes.tokens, H, value * rank, [&](int64_t t, int64_t head, int) {
    const Real* weights = kv_up.data<Real>() + (head * (nope + value) + nope) * rank;
    dot_rows<Real>(1, value, rank, 1, {latents.data<Real>() + (t * H + head) * rank, rank}, {weights, rank},
                   {out.data<Real>() + (t * H + head) * value, value}, /*accumulate=*/false);
  });
}

}  // namespace

template <class Real>
void mla_cached_attention(Context& ctx, const MlaCachedAttention& args) {
  const MlaSizes sizes = mla_sizes(args);
  const int64_t T = sizes.tokens, H = sizes.heads, rank = sizes.rank, rope = sizes.rope;
  ArenaScope scope(ctx.scratch);
  constexpr DType kReal = DTypeOf<Real>::value;
  const Tensor latent = scope.allocate(kReal, {T, rank}), rstd = scope.allocate(kReal, {T});
  const Tensor latent_q = scope.allocate(kReal, {T, H, rank + rope}), latents = scope.allocate(kReal, {T, H, rank});
  const auto rotate = [&](Tensor x, int64_t offset) {
    rope_forward<Real>(ctx, {.x = x,
                             .positions = args.positions,
                             .cos = args.cos,
                             .sin = args.sin,
                             .rope_offset = offset,
                             .layout = args.layout});
  };
  rms_norm_forward<Real>(ctx, {.x = args.kv_latent, .gain = args.gain, .eps = args.eps, .y = latent, .rstd = rstd});
  rotate(args.k_rope.reshape({T, 1, rope}), 0);
  rotate(args.q, sizes.nope);
  cache_write<Real>(ctx, {.rows = latent, .slots = args.slots, .positions = args.positions, .cache = args.cache});
  cache_write<Real>(
      ctx,
      {.rows = args.k_rope, .slots = args.slots, .positions = args.positions, .cache = args.cache, .offset = rank});
  if (!ctx.counting()) absorb_query<Real>(ctx, sizes, args.q, args.kv_up, latent_q);
  cached_attention<Real>(ctx, {.scale = args.scale,
                               .window = args.window,
                               .q = latent_q,
                               .slots = args.slots,
                               .positions = args.positions,
                               .keys = args.cache,
                               .values = {},
                               .num_kv_heads = 1,
                               .out = latents});
  if (!ctx.counting()) expand_output<Real>(ctx, sizes, latents, args.kv_up, args.out);
}

NMOE_CPU_INSTANTIATE(cache_write, CacheWrite)
NMOE_CPU_INSTANTIATE(cached_attention, CachedAttention)
NMOE_CPU_INSTANTIATE(mla_cached_attention, MlaCachedAttention)

}  // namespace nmoe::cpu
