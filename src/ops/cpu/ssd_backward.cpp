#include <cmath>

#include "ops/cpu/ssd_chunks.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

// What backward has of the whole batch.
struct BackwardTables {
  SsdChunks chunks;
  SsdSteps steps;
  Tensor states, dstates;                  // [B * places, H, P, N], at chunks' beginnings
  Tensor dt_bias_parts, a_parts, d_parts;  // [H, T]: of chunk c at [h, c]
};

// Room of a thread for one chunk. [Q, Q]: scores C_i . B_j of the group, decays exp(s_i - s_j), their product, dy_i .
// x_j and the scores' gradient, summed over heads.
template <class Real>
struct ChunkRoom {
  ChunkRoom(Real* at, const SsdSizes& sizes) {
    const int64_t Q = sizes.chunk, P = sizes.head_dim, N = sizes.state;
    const auto take = [&](int64_t size) { return std::exchange(at, at + size); };
    for (Real** square : {&scores, &decays, &decayed, &products, &dscores}) *square = take(Q * Q);
    for (Real** wide : {&dz, &states_c, &dstates_b, &weighted}) *wide = take(Q * P);
    for (Real** wide : {&db, &dc}) *wide = take(Q * N);
    for (Real** row : {&from_states, &to_states, &da, &rectangles}) *row = take(Q);
  }
  static int64_t elements(const SsdSizes& sizes) {
    return sizes.chunk * (5 * sizes.chunk + 4 * sizes.head_dim + 2 * sizes.state + 4);
  }

  Real *scores, *decays, *decayed, *products, *dscores;
  Real *dz, *states_c, *dstates_b, *weighted;       // [Q, P]
  Real *db, *dc;                                    // [Q, N]
  Real *from_states, *to_states, *da, *rectangles;  // [Q]
};

// The gradients of states at chunks' beginnings, from the sequence's end to its beginning.
template <class Real>
void fill_state_gradients(Context& ctx, const SsdBackward& args, const BackwardTables& tables,
                          const SsdStateRoom& room) {
  const SsdInputs& in = args.in;
  const SsdSizes sizes = ssd_sizes(in);
  const int64_t H = sizes.heads, P = sizes.head_dim, N = sizes.state, size = P * N;
  const SsdChunks& chunks = tables.chunks;
  ctx.pool.parallel_for(in.num_seqs * H, [&](int64_t task, int thread) {
    const int64_t seq = task / H, head = task % H;
    const Real* const all_sums = tables.steps.sums[head].template data<Real>();
    Real* const weighted = room.weighted[thread].template data<Real>();
    Real* const gradient = room.state[thread].template data<Real>();
    args.dfinal_state.defined() ? std::copy_n(args.dfinal_state.data<Real>() + task * size, size, gradient)
                                : std::fill_n(gradient, size, Real{0});
    for (int64_t i = chunks.end_of(seq) - 1; i >= chunks.first_of(seq); --i) {
      const SsdChunk chunk = chunks[i];
      if (const int64_t place = chunks.state_place(chunk); place >= 0) {
        const Real* const sums = all_sums + chunk.begin;
        const SsdRows<Real> dy = ssd_rows<Real>(args.dy, chunk.begin, head);
        for (int64_t t = 0; t < chunk.size(); ++t) ssd_scale_row(dy[t], ssd_decay(sums[t]), P, weighted + t * P);
        gemm<Real>(room.panels[thread].template data<Real>(), P, N, chunk.size(), 1, {weighted, P, Transpose::kYes},
                   ssd_rows<Real>(in.c, chunk.begin, head / sizes.group_size()).operand(),
                   ssd_decay(sums[chunk.size() - 1]), gradient, N);
        std::copy_n(gradient, size, tables.dstates.data<Real>() + (place * H + head) * size);
      }
      if (chunk.is_first()) {
        if (chunk.begin % in.seq_len == 0 && args.dinitial_state.defined()) {
          std::copy_n(gradient, size, args.dinitial_state.data<Real>() + task * size);
        }
        std::fill_n(gradient, size, Real{0});
      }
    }
  });
}

// One head in one chunk.
template <class Real>
struct HeadChunk {
  int64_t size, P, N, Q;
  const Real *step, *sums;
  SsdRows<Real> x, b, c, dy, dx;
  const Real* state;   // [P, N] at the chunk's beginning; null: 0
  const Real* dstate;  // the gradient of the state at its end; null: 0
  Real d;
};

// decays, decayed and products, and what they add to dscores.
template <class Real>
void fill_squares(const HeadChunk<Real>& of, const ChunkRoom<Real>& room, Real* panels) {
  const int64_t size = of.size, Q = of.Q;
  gemm<Real>(panels, size, size, of.P, 1, of.dy.operand(), of.x.operand(Transpose::kYes), 0, room.products, Q);
  for (int64_t i = 0; i < size; ++i) {
    Real* const decays = room.decays + i * Q;
    Real* const decayed = room.decayed + i * Q;
    Real* const dscores = room.dscores + i * Q;
    const Real* const scores = room.scores + i * Q;
    const Real* const products = room.products + i * Q;
    const Real sum = of.sums[i];
#pragma omp simd
    for (int64_t j = 0; j <= i; ++j) {
      decays[j] = exp_approx(sum - of.sums[j]);
      decayed[j] = scores[j] * decays[j];
      dscores[j] += decays[j] * of.step[j] * products[j];
    }
    std::fill(decayed + i + 1, decayed + size, Real{0});
  }
}

// dz [Q, P], the gradient of step x, and the parts of db and dc that come through states.
template <class Real>
void fill_rows(const HeadChunk<Real>& of, const ChunkRoom<Real>& room, Real* panels) {
  const int64_t size = of.size, P = of.P, N = of.N;
  const Real last = of.sums[size - 1];
  gemm<Real>(panels, size, P, size, 1, {room.decayed, of.Q, Transpose::kYes}, of.dy.operand(), 0, room.dz, P);
  std::fill_n(room.to_states, size, Real{0});
  std::fill_n(room.from_states, size, Real{0});
  if (of.dstate != nullptr) {
    gemm<Real>(panels, size, P, N, 1, of.b.operand(), {of.dstate, N, Transpose::kYes}, 0, room.dstates_b, P);
    for (int64_t j = 0; j < size; ++j) {
      const Real decay = ssd_decay(last - of.sums[j]), factor = decay * of.step[j];
      const Real* const through = room.dstates_b + j * P;
      ssd_add_row(through, decay, P, room.dz + j * P);
      room.to_states[j] = factor * dot(of.x[j], through, P);
      ssd_scale_row(of.x[j], factor, P, room.weighted + j * P);
    }
    gemm<Real>(panels, size, N, P, 1, {room.weighted, P}, {of.dstate, N}, 1, room.db, N);
  }
  if (of.state != nullptr) {
    gemm<Real>(panels, size, P, N, 1, of.c.operand(), {of.state, N, Transpose::kYes}, 0, room.states_c, P);
    for (int64_t i = 0; i < size; ++i) {
      ssd_scale_row(of.dy[i], ssd_decay(of.sums[i]), P, room.weighted + i * P);
      room.from_states[i] = dot(room.weighted + i * P, room.states_c + i * P, P);
    }
    gemm<Real>(panels, size, N, P, 1, {room.weighted, P}, {of.state, N}, 1, room.dc, N);
  }
  for (int64_t j = 0; j < size; ++j) {
    const Real* const dz = room.dz + j * P;
    const Real* const dy = of.dy[j];
    Real* const dx = of.dx[j];
#pragma omp simd
    for (int64_t p = 0; p < P; ++p) dx[p] = of.step[j] * dz[p] + of.d * dy[p];
  }
}

// da [Q], the gradient of step * A of each token: of every later row's sum, as sums over rectangles.
template <class Real>
void fill_sum_gradients(const HeadChunk<Real>& of, const ChunkRoom<Real>& room) {
  const int64_t size = of.size;
  Real whole = 0;
  if (of.state != nullptr && of.dstate != nullptr) {
    whole = ssd_decay(of.sums[size - 1]) * dot(of.state, of.dstate, of.P * of.N);
  }
  std::fill_n(room.rectangles, size, Real{0});
  for (int64_t i = 0; i < size; ++i) {
    Real before = 0;  // the row's terms of j < t
    for (int64_t t = 1; t <= i; ++t) {
      before += room.decayed[i * of.Q + t - 1] * of.step[t - 1] * room.products[i * of.Q + t - 1];
      room.rectangles[t] += before;
    }
  }
  Real later = 0, earlier = 0;
  for (int64_t t = size - 1; t >= 0; --t) room.da[t] = later += room.from_states[t];
  for (int64_t t = 0; t < size; ++t) {
    room.da[t] += room.rectangles[t] + earlier + whole;
    earlier += room.to_states[t];
  }
}

// ddt of the chunk's tokens and the chunk's parts of dt_bias, a_log and d.
template <class Real>
void finish_head(const SsdBackward& args, const BackwardTables& tables, const HeadChunk<Real>& of,
                 const ChunkRoom<Real>& room, int64_t head, int64_t chunk_idx, int64_t begin) {
  const Real a = -std::exp(args.in.a_log.data<Real>()[head]), bias = args.in.dt_bias.data<Real>()[head];
  Real dbias = 0, da = 0, dd = 0;
  for (int64_t t = 0; t < of.size; ++t) {
    const Real dstep = dot(room.dz + t * of.P, of.x[t], of.P) + a * room.da[t];
    const Real biased = args.in.dt.rows_data<Real>()[(begin + t) * args.in.dt.stride() + head] + bias;
    const Real slope = biased > static_cast<Real>(kSoftplusLinearAbove) ? 1 : 1 / (1 + std::exp(-biased));
    const Real ddt = dstep * slope;
    args.ddt.rows_data<Real>()[(begin + t) * args.ddt.stride() + head] = ddt;
    dbias += ddt;
    da += of.step[t] * room.da[t];
    dd += dot(of.dy[t], of.x[t], of.P);
  }
  const int64_t place = head * args.in.x.dim(0) + chunk_idx;
  tables.dt_bias_parts.data<Real>()[place] = dbias;
  tables.a_parts.data<Real>()[place] = a * da;
  tables.d_parts.data<Real>()[place] = dd;
}

// All heads of a group in one chunk.
template <class Real>
void backward_chunk(const SsdBackward& args, const BackwardTables& tables, int64_t chunk_idx, int64_t group,
                    const ChunkRoom<Real>& room, Real* panels) {
  const SsdInputs& in = args.in;
  const SsdSizes sizes = ssd_sizes(in);
  const int64_t P = sizes.head_dim, N = sizes.state, Q = sizes.chunk, H = sizes.heads;
  const SsdChunk chunk = tables.chunks[chunk_idx];
  const int64_t size = chunk.size(), begin = chunk.begin, place = tables.chunks.state_place(chunk);
  const SsdRows<Real> b = ssd_rows<Real>(in.b, begin, group), c = ssd_rows<Real>(in.c, begin, group);
  gemm<Real>(panels, size, size, N, 1, c.operand(), b.operand(Transpose::kYes), 0, room.scores, Q);
  for (int64_t i = 0; i < size; ++i) std::fill_n(room.dscores + i * Q, size, Real{0});
  std::fill_n(room.db, size * N, Real{0});
  std::fill_n(room.dc, size * N, Real{0});

  for (int64_t head = group * sizes.group_size(); head < (group + 1) * sizes.group_size(); ++head) {
    const Real* dstate = nullptr;
    if (chunk.continues) {
      const int64_t next = tables.chunks.state_place(tables.chunks[chunk_idx + 1]);
      dstate = tables.dstates.data<Real>() + (next * H + head) * P * N;
    } else if (const int64_t seq = begin / in.seq_len;
               args.dfinal_state.defined() && chunk_idx + 1 == tables.chunks.end_of(seq)) {
      dstate = args.dfinal_state.data<Real>() + (seq * H + head) * P * N;
    }
    const HeadChunk<Real> of{.size = size,
                             .P = P,
                             .N = N,
                             .Q = Q,
                             .step = tables.steps.step[head].template data<Real>() + begin,
                             .sums = tables.steps.sums[head].template data<Real>() + begin,
                             .x = ssd_rows<Real>(in.x, begin, head),
                             .b = b,
                             .c = c,
                             .dy = ssd_rows<Real>(args.dy, begin, head),
                             .dx = ssd_rows<Real>(args.dx, begin, head),
                             .state = place < 0 ? nullptr : tables.states.data<Real>() + (place * H + head) * P * N,
                             .dstate = dstate,
                             .d = in.d.data<Real>()[head]};
    fill_squares(of, room, panels);
    fill_rows(of, room, panels);
    fill_sum_gradients(of, room);
    finish_head(args, tables, of, room, head, chunk_idx, begin);
  }
  gemm<Real>(panels, size, N, size, 1, {room.dscores, Q}, b.operand(), 1, room.dc, N);
  gemm<Real>(panels, size, N, size, 1, {room.dscores, Q, Transpose::kYes}, c.operand(), 1, room.db, N);
  const SsdRows<Real> db = ssd_rows<Real>(args.db, begin, group), dc = ssd_rows<Real>(args.dc, begin, group);
  for (int64_t i = 0; i < size; ++i) {
    std::copy_n(room.db + i * N, N, db[i]);
    std::copy_n(room.dc + i * N, N, dc[i]);
  }
}

// gradient[h] += the sum of parts[h, 0 ... count)
template <class Real>
void add_parts(const Tensor& parts, int64_t count, const Tensor& gradient) {
  for (int64_t head = 0; head < parts.dim(0); ++head) {
    const Real* const part = parts[head].template data<Real>();
    Real sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += part[i];
    gradient.data<Real>()[head] += sum;
  }
}

}  // namespace

template <class Real>
void ssd_backward(Context& ctx, const SsdBackward& args) {
  const SsdInputs& in = args.in;
  const SsdSizes sizes = ssd_sizes(in);
  ArenaScope scope(ctx.scratch);
  const auto claim = [&](Shape shape) { return scope.allocate(DTypeOf<Real>::value, shape); };
  SsdChunks chunks(scope, in);
  const Shape all_states{in.num_seqs * chunks.places(), sizes.heads, sizes.head_dim, sizes.state};
  const Shape parts{sizes.heads, sizes.tokens};
  BackwardTables tables{.chunks = chunks,
                        .steps = claim_ssd_steps<Real>(scope, sizes),
                        .states = claim(all_states),
                        .dstates = claim(all_states),
                        .dt_bias_parts = claim(parts),
                        .a_parts = claim(parts),
                        .d_parts = claim(parts)};
  const SsdStateRoom room = claim_ssd_state_room<Real>(scope, ctx, sizes);
  const Tensor chunk_rooms = claim({ctx.num_threads(), ChunkRoom<Real>::elements(sizes)});
  if (ctx.counting() || sizes.tokens == 0) return;
  tables.chunks.fill(in);
  fill_ssd_steps<Real>(ctx, in, tables.chunks, tables.steps);
  fill_ssd_states<Real>(ctx, in, tables.chunks, tables.steps, room, tables.states, {});
  fill_state_gradients<Real>(ctx, args, tables, room);
  ctx.pool.parallel_for(tables.chunks.count() * sizes.groups, [&](int64_t task, int thread) {
    const ChunkRoom<Real> chunk_room(chunk_rooms[thread].template data<Real>(), sizes);
    backward_chunk(args, tables, task / sizes.groups, task % sizes.groups, chunk_room,
                   room.panels[thread].template data<Real>());
  });
  add_parts<Real>(tables.dt_bias_parts, tables.chunks.count(), args.ddt_bias);
  add_parts<Real>(tables.a_parts, tables.chunks.count(), args.da_log);
  add_parts<Real>(tables.d_parts, tables.chunks.count(), args.dd);
}

NMOE_CPU_INSTANTIATE(ssd_backward, SsdBackward)

}  // namespace nmoe::cpu
