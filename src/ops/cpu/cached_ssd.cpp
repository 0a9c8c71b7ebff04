#include <cmath>

#include "ops/cpu/row_products.h"
#include "ops/cpu/ssd_chunks.h"

namespace nmoe::cpu {
namespace {

// Where row t is: its slot, and its place in the slot's open chunk.
struct OpenPlace {
  int64_t slot, place;
  bool continues;  // whether the chunk goes on from a state
};
OpenPlace place_of(const CachedSsd& args, int64_t t) {
  const int64_t position = args.positions.data<int32_t>()[t], Q = args.open_x.dim(1);
  return {.slot = args.slots.data<int32_t>()[t], .place = position % Q, .continues = position >= Q};
}

// One head of what a slot holds of its open chunk.
template <class Real>
SsdRows<Real> open_rows(const Tensor& open, int64_t slot, int64_t head, int64_t size) {
  return {open[slot].template data<Real>() + head * size, open.dim(2)};
}

// Puts rows [begin, end) into the open chunks of their slots.
template <class Real>
void open(Context& ctx, const CachedSsd& args, int64_t begin, int64_t end) {
  const SsdSizes sizes = ssd_sizes(args);
  const int64_t H = sizes.heads;
  ctx.pool.parallel_for(end - begin, [&](int64_t task, int) {
    const int64_t t = begin + task;
    const OpenPlace at = place_of(args, t);
    if (at.slot < 0) return;
    const auto put = [&](const Tensor& rows, const Tensor& to) {
      const int64_t width = to.dim(2);
      std::copy_n(rows.rows_data<Real>() + t * rows.stride(), width,
                  to.data<Real>() + (at.slot * sizes.chunk + at.place) * width);
    };
    put(args.x, args.open_x);
    put(args.b, args.open_b);
    const Real* const dt = args.dt.rows_data<Real>() + t * args.dt.stride();
    Real* const step = args.open_step.data<Real>() + (at.slot * sizes.chunk + at.place) * H;
    for (int64_t head = 0; head < H; ++head) step[head] = ssd_step(dt[head] + args.dt_bias.data<Real>()[head]);
  });
}

// A thread's room.
template <class Real>
struct Room {
  Real *step, *sums, *scores;  // [Q]
  Real* decayed;               // [N]
};

// Steps and their sums of a head in a slot's open chunk, up to `place`.
template <class Real>
void load_steps(const CachedSsd& args, int64_t slot, int64_t head, int64_t place, const Room<Real>& room) {
  const int64_t H = args.x.dim(1), Q = args.open_x.dim(1);
  for (int64_t j = 0; j <= place; ++j) room.step[j] = args.open_step.data<Real>()[(slot * Q + j) * H + head];
  ssd_sums<Real>(room.step, -std::exp(args.a_log.data<Real>()[head]), place + 1, room.sums);
}

// y of one head of row t.
template <class Real>
void head_row(const CachedSsd& args, int64_t t, int64_t head, const Room<Real>& room) {
  const SsdSizes sizes = ssd_sizes(args);
  const int64_t P = sizes.head_dim, N = sizes.state, group = head / sizes.group_size();
  const SsdRows<Real> y = ssd_rows<Real>(args.y, t, head);
  const OpenPlace at = place_of(args, t);
  if (at.slot < 0) {
    std::fill_n(y.data, P, Real{0});
    return;
  }
  const SsdRows<Real> x = open_rows<Real>(args.open_x, at.slot, head, P);
  const SsdRows<Real> b = open_rows<Real>(args.open_b, at.slot, group, N);
  const Real* const c = ssd_rows<Real>(args.c, t, group).data;
  load_steps(args, at.slot, head, at.place, room);
  dot_rows<Real>(1, at.place + 1, N, 1, {c, N}, {b.data, b.stride}, {room.scores, sizes.chunk}, false);
  ssd_mix_row(room.scores, room.sums, room.step, at.place, room.scores);
  combine_rows<Real>(1, P, at.place + 1, {room.scores, sizes.chunk}, {x.data, x.stride}, {y.data, P}, false);
  if (at.continues) {
    const Real* const state = args.states.data<Real>() + (at.slot * sizes.heads + head) * P * N;
    ssd_scale_row(c, ssd_decay(room.sums[at.place]), N, room.decayed);
    dot_rows<Real>(1, P, N, 1, {room.decayed, N}, {state, N}, {y.data, P}, true);
  }
  ssd_add_row(x[at.place], args.d.data<Real>()[head], P, y.data);
}

}  // namespace

template <class Real>
void cached_ssd(Context& ctx, const CachedSsd& args) {
  const SsdSizes sizes = ssd_sizes(args);
  const int64_t P = sizes.head_dim, N = sizes.state, Q = sizes.chunk, H = sizes.heads;
  ArenaScope scope(ctx.scratch);
  const Tensor rooms = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), 3 * Q + N});
  const SsdStateRoom state_room = claim_ssd_state_room<Real>(scope, ctx, sizes);
  if (ctx.counting()) return;
  const auto room_of = [&](int thread) {
    Real* const first = rooms[thread].template data<Real>();
    return Room<Real>{first, first + Q, first + 2 * Q, first + 3 * Q};
  };
  // In runs of rows, each up to the first that ends a chunk: no open chunk begins anew in the middle of one.
  for (int64_t begin = 0, end = 0; begin < sizes.tokens; begin = end) {
    OpenPlace last{};
    do {
      last = place_of(args, end++);
    } while (end < sizes.tokens && (last.slot < 0 || last.place + 1 < Q));
    open<Real>(ctx, args, begin, end);
    ctx.pool.parallel_for((end - begin) * H, [&](int64_t task, int thread) {
      head_row(args, begin + task / H, task % H, room_of(thread));
    });
    if (last.slot < 0 || last.place + 1 < Q) continue;
    ctx.pool.parallel_for(H, [&](int64_t head, int thread) {
      const Room<Real> room = room_of(thread);
      Real* const state = args.states.data<Real>() + (last.slot * H + head) * P * N;
      if (!last.continues) std::fill_n(state, P * N, Real{0});
      load_steps(args, last.slot, head, Q - 1, room);
      ssd_advance(sizes, Q, open_rows<Real>(args.open_x, last.slot, head, P),
                  open_rows<Real>(args.open_b, last.slot, head / sizes.group_size(), N), room.step, room.sums,
                  state_room.weighted[thread].template data<Real>(), state_room.panels[thread].template data<Real>(),
                  state);
    });
  }
}

NMOE_CPU_INSTANTIATE(cached_ssd, CachedSsd)

}  // namespace nmoe::cpu
