// A row is computed on its own, a few heads at a time: the same products and softmax in the same blocks of keys as
// training's (attention.cpp), for those that the row sees. A block's keys lie in pages: what is multiplied with them is
// multiplied piece by piece, with the bits of the whole.
#include <algorithm>

#include "ops/cache_places.h"
#include "ops/cpu/attention_rows.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/row_products.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kTaskHeads = 8;  // query heads of one key/value head that a task goes through together

// Checks that all rows have a place in the cache, and the positions before theirs.
template <class Args>
void check_places(const Args& args, const Tensor& cache) {
  const CachePlaces places = places_of(args);
  for (int64_t t = 0; t < args.slots.dim(0); ++t) {
    const int32_t slot = places.slots[t], position = places.positions[t];
    NMOE_CHECK(places.has(slot, position), "row {} is position {} of slot {}, the pages are {}", t, position, slot,
               args.pages.shape());
    for (int64_t at = 0; at <= position; at += kPagePositions) {
      const int32_t page = places.page_of(slot, at);
      NMOE_CHECK(page >= 0 && page < cache.dim(0), "position {} of slot {} is in page {}, the cache is {}", at, slot,
                 page, cache.shape());
    }
  }
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
  check_places(args, args.cache);
  const CachePlaces places = places_of(args);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t place = places.row_of(places.slots[t], places.positions[t]);
    std::copy_n(args.rows.rows_data<Real>() + t * args.rows.stride(), width,
                args.cache.data<Real>() + place * cache_width + args.offset);
  }
}

namespace {

// Rows that attend: as in CachedAttention.
struct Attending {
  double scale;
  int64_t window;
  Tensor q, slots, positions, pages, out;
  int64_t num_kv_heads;
  Tensor sinks;  // [H], or undefined

  int64_t group() const { return q.dim(1) / num_kv_heads; }
  int64_t task_heads() const { return std::min(group(), kTaskHeads); }
};

template <class Args>
Attending attending(const Args& args, int64_t num_kv_heads, Tensor sinks = {}) {
  return {.scale = args.scale,
          .window = args.window,
          .q = args.q,
          .slots = args.slots,
          .positions = args.positions,
          .pages = args.pages,
          .out = args.out,
          .num_kv_heads = num_kv_heads,
          .sinks = sinks};
}

// Calls fn(first, count, place) for each part of `count` positions from `key` on that lies in one page: positions
// [first, first + count) behind `key`, in the cache's rows from `place` on.
template <class Fn>
void for_each_piece(const CachePlaces& places, int64_t slot, int64_t key, int64_t count, const Fn& fn) {
  for (int64_t first = 0, size = 0; first < count; first += size) {
    size = std::min(count - first, kPagePositions - (key + first) % kPagePositions);
    fn(first, size, places.row_of(slot, key + first));
  }
}

// keys_at(place, count, kv_head, thread) and values_at(place, kv_head) are those of a key/value head, a row for each of
// `count` positions from the cache's row `place` on.
template <class Real, class Keys, class Values>
void attend(Context& ctx, const Attending& args, const Keys& keys_at, const Values& values_at) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.out.dim(2);
  const int64_t group = args.group(), task_heads = args.task_heads();
  ArenaScope scope(ctx.scratch);
  const Tensor scratch = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), task_heads, kKeyBlock});
  const Tensor sums = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), task_heads, Dv});
  if (ctx.counting()) return;

  const CachePlaces places = places_of(args);
  const int32_t* positions = places.positions;
  const auto first_seen = [&](int64_t position) {
    return args.window == 0 ? 0 : std::max<int64_t>(0, position - args.window + 1);
  };
  int64_t seen_in_all = 0;
  for (int64_t t = 0; t < T; ++t) seen_in_all += positions[t] + 1 - first_seen(positions[t]);

  const int64_t chunks = ceil_div(group, task_heads);  // of a key/value head's query heads
  const int64_t products = T == 0 ? 0 : seen_in_all / T * task_heads * (Dk + Dv);
  for_each_head(ctx, T, args.num_kv_heads * chunks, products, [&](int64_t t, int64_t chunk, int thread) {
    const int64_t kv_head = chunk / chunks, begin = chunk % chunks * task_heads;
    const int64_t head = kv_head * group + begin, heads = std::min(task_heads, group - begin);
    const int64_t position = positions[t], q_begin = position / kQueryBlock * kQueryBlock;
    const Real* q = args.q.rows_data<Real>() + t * args.q.stride() + head * Dk;
    Real* out = args.out.data<Real>() + (t * H + head) * Dv;
    Real* scores = scratch[thread].data<Real>();
    Real* block_sums = sums[thread].data<Real>();
    RunningSoftmax<Real> states[kTaskHeads];
    const int64_t first_key = first_seen(q_begin);
    for (int64_t key = first_key; key <= position; key += kKeyBlock) {
      const int64_t width = key_block_width(q_begin, key), cols = std::min(width, position + 1 - key);
      for_each_piece(places, places.slots[t], key, cols, [&](int64_t first, int64_t count, int64_t place) {
        dot_rows<Real>(heads, count, Dk, static_cast<Real>(args.scale), {q, Dk}, keys_at(place, count, kv_head, thread),
                       {scores + first, width}, /*accumulate=*/false);
      });
      const Columns seen{std::max<int64_t>(0, first_seen(position) - key), cols};
      for (int64_t h = 0; h < heads; ++h) {
        const Real correction = softmax_row(scores + h * width, seen, width, states[h]);
        for (int64_t d = 0; d < Dv && key > first_key && correction != 1; ++d) out[h * Dv + d] *= correction;
      }
      for_each_piece(places, places.slots[t], key, cols, [&](int64_t first, int64_t count, int64_t place) {
        combine_rows<Real>(heads, Dv, count, {scores + first, width}, values_at(place, kv_head),
                           {key == first_key ? out : block_sums, Dv}, /*goes_on=*/first > 0);
      });
      for (int64_t i = 0; i < heads * Dv && key > first_key; ++i) out[i] += block_sums[i];
    }
    for (int64_t h = 0; h < heads; ++h) {
      const Real factor = finish_softmax(states[h], sink_of<Real>(args.sinks, head + h));
      for (int64_t d = 0; d < Dv; ++d) out[h * Dv + d] *= factor;
    }
  });
}

}  // namespace

template <class Real>
void cached_attention(Context& ctx, const CachedAttention& args) {
  const int64_t Dk = args.q.dim(2), Dv = args.out.dim(2), key_width = args.keys.dim(2);
  const bool has_values = args.values.defined();
  const Tensor values = has_values ? args.values : args.keys;
  const int64_t value_width = values.dim(2);
  if (!ctx.counting()) check_places(args, args.keys);
  attend<Real>(
      ctx, attending(args, args.num_kv_heads, args.sinks),
      [&](int64_t place, int64_t, int64_t kv_head, int) -> Rows<const Real> {
        return {args.keys.data<Real>() + place * key_width + kv_head * Dk, key_width};
      },
      [&](int64_t place, int64_t kv_head) -> Rows<const Real> {
        return {values.data<Real>() + place * value_width + (has_values ? kv_head * Dv : 0), value_width};
      });
}

// Keys are put together in scratch, as training's are: a score is then the same sum.
template <class Real>
void mla_expanded_attention(Context& ctx, const MlaExpandedAttention& args) {
  const int64_t Dk = args.q.dim(2), Dv = args.out.dim(2), rope = args.k_rope.dim(2), nope = Dk - rope,
                width = args.kv.dim(2);
  ArenaScope scope(ctx.scratch);
  const Tensor assembled = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kPagePositions, Dk});
  if (!ctx.counting()) check_places(args, args.kv);
  const auto own_at = [&](int64_t place, int64_t head) {
    return args.kv.data<Real>() + place * width + head * (nope + Dv);
  };
  attend<Real>(
      ctx, attending(args, args.q.dim(1)),
      [&](int64_t place, int64_t count, int64_t head, int thread) -> Rows<const Real> {
        const Real* own = own_at(place, head);
        const Real* shared = args.k_rope.data<Real>() + place * rope;
        Real* const keys = assembled[thread].template data<Real>();
        for (int64_t i = 0; i < count; ++i) {
          std::copy_n(shared + i * rope, rope, std::copy_n(own + i * width, nope, keys + i * Dk));
        }
        return {keys, Dk};
      },
      [&](int64_t place, int64_t head) -> Rows<const Real> {
        return {own_at(place, head) + nope, width};
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
                       {out, rank}, /*goes_on=*/false);
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
    if (!args.cos.defined()) return;
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
  for (const auto& [part, offset] : {std::pair(latent, int64_t{0}), std::pair(args.k_rope, rank)}) {
    cache_write<Real>(ctx, {.rows = part,
                            .slots = args.slots,
                            .positions = args.positions,
                            .pages = args.pages,
                            .cache = args.cache,
                            .offset = offset});
  }
  if (!ctx.counting()) absorb_query<Real>(ctx, sizes, args.q, args.kv_up, latent_q);
  cached_attention<Real>(ctx, {.scale = args.scale,
                               .window = args.window,
                               .q = latent_q,
                               .slots = args.slots,
                               .positions = args.positions,
                               .pages = args.pages,
                               .keys = args.cache,
                               .values = {},
                               .num_kv_heads = 1,
                               .out = latents});
  if (!ctx.counting()) expand_output<Real>(ctx, sizes, latents, args.kv_up, args.out);
}

NMOE_CPU_INSTANTIATE(cache_write, CacheWrite)
NMOE_CPU_INSTANTIATE(cached_attention, CachedAttention)
NMOE_CPU_INSTANTIATE(mla_cached_attention, MlaCachedAttention)
NMOE_CPU_INSTANTIATE(mla_expanded_attention, MlaExpandedAttention)

}  // namespace nmoe::cpu
