#include "ops/contracts/ssd.h"

#include "ops/cpu/ssd_chunks.h"

namespace nmoe::cpu {

template <class Real>
void ssd_forward(Context& ctx, const SsdForward& args) {
  const SsdInputs& in = args.in;
  const SsdSizes sizes = ssd_sizes(in);
  const int64_t P = sizes.head_dim, N = sizes.state, Q = sizes.chunk, H = sizes.heads, G = sizes.groups;
  ArenaScope scope(ctx.scratch);
  SsdChunks chunks(scope, in);
  const SsdSteps steps = claim_ssd_steps<Real>(scope, sizes);
  const SsdStateRoom room = claim_ssd_state_room<Real>(scope, ctx, sizes);
  const Tensor states = scope.allocate(DTypeOf<Real>::value, {in.num_seqs * chunks.places(), H, P, N});
  const Tensor scratch = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), 2 * Q + N, Q});
  if (ctx.counting() || sizes.tokens == 0) return;
  chunks.fill(in);
  fill_ssd_steps<Real>(ctx, in, chunks, steps);
  fill_ssd_states<Real>(ctx, in, chunks, steps, room, states, args.final_state);

  ctx.pool.parallel_for(chunks.count() * G, [&](int64_t task, int thread) {
    const SsdChunk chunk = chunks[task / G];
    const int64_t group = task % G, size = chunk.size(), place = chunks.state_place(chunk);
    Real* const scores = scratch[thread].template data<Real>();
    Real* const mix = scores + Q * Q;
    Real* const decayed = mix + Q * Q;  // [Q, N]
    Real* const panels = room.panels[thread].template data<Real>();
    const SsdRows<Real> b = ssd_rows<Real>(in.b, chunk.begin, group), c = ssd_rows<Real>(in.c, chunk.begin, group);
    gemm<Real>(panels, size, size, N, 1, c.operand(), b.operand(Transpose::kYes), 0, scores, Q);
    for (int64_t head = group * sizes.group_size(); head < (group + 1) * sizes.group_size(); ++head) {
      const Real* const step = steps.step[head].template data<Real>() + chunk.begin;
      const Real* const sums = steps.sums[head].template data<Real>() + chunk.begin;
      const SsdRows<Real> x = ssd_rows<Real>(in.x, chunk.begin, head), y = ssd_rows<Real>(args.y, chunk.begin, head);
      for (int64_t i = 0; i < size; ++i) {
        ssd_mix_row(scores + i * Q, sums, step, i, mix + i * Q);
        std::fill(mix + i * Q + i + 1, mix + i * Q + size, Real{0});
      }
      gemm<Real>(panels, size, P, size, 1, {mix, Q}, x.operand(), 0, y.data, y.stride);
      if (place >= 0) {
        for (int64_t i = 0; i < size; ++i) ssd_scale_row(c[i], ssd_decay(sums[i]), N, decayed + i * N);
        const Real* const state = states.data<Real>() + (place * H + head) * P * N;
        gemm<Real>(panels, size, P, N, 1, {decayed, N}, {state, N, Transpose::kYes}, 1, y.data, y.stride);
      }
      const Real d = in.d.data<Real>()[head];
      for (int64_t i = 0; i < size; ++i) ssd_add_row(x[i], d, P, y[i]);
    }
  });
}

NMOE_CPU_INSTANTIATE(ssd_forward, SsdForward)

}  // namespace nmoe::cpu
