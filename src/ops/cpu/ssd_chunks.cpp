#include "ops/cpu/ssd_chunks.h"

#include <cmath>

#include "ops/cpu/documents.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {

template <class Real>
[[gnu::noinline]] Real ssd_step(Real biased_dt) {
  return biased_dt > static_cast<Real>(kSoftplusLinearAbove) ? biased_dt : std::log1p(std::exp(biased_dt));
}

template <class Real>
[[gnu::noinline]] void ssd_sums(const Real* step, Real a, int64_t size, Real* sums) {
  Real sum = 0;
  for (int64_t i = 0; i < size; ++i) sums[i] = sum = std::fma(step[i], a, sum);
}

template <class Real>
[[gnu::noinline]] Real ssd_decay(Real x) {
  return exp_approx(x);
}

template <class Real>
[[gnu::noinline]] void ssd_mix_row(const Real* scores, const Real* sums, const Real* step, int64_t i, Real* out) {
  const Real sum = sums[i];
#pragma omp simd
  for (int64_t j = 0; j <= i; ++j) out[j] = scores[j] * exp_approx(sum - sums[j]) * step[j];
}

template <class Real>
[[gnu::noinline]] void ssd_scale_row(const Real* x, Real factor, int64_t size, Real* out) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) out[j] = factor * x[j];
}

template <class Real>
[[gnu::noinline]] void ssd_add_row(const Real* x, Real factor, int64_t size, Real* y) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) y[j] += factor * x[j];
}

SsdChunks::SsdChunks(ArenaScope& scope, const SsdInputs& in)
    : seq_len_(in.seq_len),
      chunk_(in.chunk),
      places_(ceil_div(in.seq_len, in.chunk)),
      has_initial_(in.initial_state.defined()),
      begins_(scope.allocate(DType::kI32, {in.x.dim(0) + 1})),
      document_begins_(scope.allocate(DType::kI32, {in.x.dim(0) + 1})),
      seq_first_(scope.allocate(DType::kI32, {in.num_seqs + 1})) {}

void SsdChunks::fill(const SsdInputs& in) {
  int32_t* const begins = begins_.data<int32_t>();
  int32_t* const document_begins = document_begins_.data<int32_t>();
  int32_t* const first = seq_first_.data<int32_t>();
  count_ = 0;
  for_each_document(in.num_seqs, in.seq_len, in.cu_seqlens, [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    if (begin % seq_len_ == 0) first[begin / seq_len_] = static_cast<int32_t>(count_);
    for (int64_t at = begin; at < end; at += chunk_, ++count_) {
      begins[count_] = static_cast<int32_t>(at);
      document_begins[count_] = static_cast<int32_t>(begin);
    }
  });
  begins[count_] = document_begins[count_] = static_cast<int32_t>(in.x.dim(0));
  first[in.num_seqs] = static_cast<int32_t>(count_);
}

SsdChunk SsdChunks::operator[](int64_t i) const {
  const int32_t* const begins = begins_.data<int32_t>();
  const int32_t* const document_begins = document_begins_.data<int32_t>();
  return {.begin = begins[i],
          .end = begins[i + 1],
          .document_begin = document_begins[i],
          .continues = document_begins[i + 1] == document_begins[i]};
}

int64_t SsdChunks::state_place(const SsdChunk& chunk) const {
  const int64_t seq = chunk.begin / seq_len_, at = chunk.begin % seq_len_;
  if (chunk.is_first() && (at > 0 || !has_initial_)) return -1;
  return seq * places_ + at / chunk_;
}

template <class Real>
SsdSteps claim_ssd_steps(ArenaScope& scope, const SsdSizes& sizes) {
  return {.step = scope.allocate(DTypeOf<Real>::value, {sizes.heads, sizes.tokens}),
          .sums = scope.allocate(DTypeOf<Real>::value, {sizes.heads, sizes.tokens})};
}

template <class Real>
void fill_ssd_steps(Context& ctx, const SsdInputs& in, const SsdChunks& chunks, const SsdSteps& steps) {
  const SsdSizes sizes = ssd_sizes(in);
  const Real* const dt = in.dt.rows_data<Real>();
  ctx.pool.parallel_for(sizes.heads, [&](int64_t head, int) {
    const Real bias = in.dt_bias.data<Real>()[head], a = -std::exp(in.a_log.data<Real>()[head]);
    Real* const step = steps.step[head].template data<Real>();
    Real* const sums = steps.sums[head].template data<Real>();
    for (int64_t t = 0; t < sizes.tokens; ++t) step[t] = ssd_step(dt[t * in.dt.stride() + head] + bias);
    for (int64_t i = 0; i < chunks.count(); ++i) {
      const SsdChunk chunk = chunks[i];
      ssd_sums(step + chunk.begin, a, chunk.size(), sums + chunk.begin);
    }
  });
}

template <class Real>
void ssd_advance(const SsdSizes& sizes, int64_t size, SsdRows<Real> x, SsdRows<Real> b, const Real* step,
                 const Real* sums, Real* weighted, Real* gemm_scratch, Real* state) {
  const int64_t P = sizes.head_dim, N = sizes.state;
  const Real last = sums[size - 1];
  for (int64_t j = 0; j < size; ++j) {
    ssd_scale_row(x[j], ssd_decay(last - sums[j]) * step[j], P, weighted + j * P);
  }
  gemm<Real>(gemm_scratch, P, N, size, 1, {weighted, P, Transpose::kYes}, b.operand(), ssd_decay(last), state, N);
}

template <class Real>
SsdStateRoom claim_ssd_state_room(ArenaScope& scope, const Context& ctx, const SsdSizes& sizes) {
  const int64_t threads = ctx.num_threads(), P = sizes.head_dim;
  return {.weighted = scope.allocate(DTypeOf<Real>::value, {threads, sizes.chunk, P}),
          .state = scope.allocate(DTypeOf<Real>::value, {threads, P, sizes.state}),
          .panels = claim_gemm_scratch<Real>(scope, ctx)};
}

template <class Real>
void fill_ssd_states(Context& ctx, const SsdInputs& in, const SsdChunks& chunks, const SsdSteps& steps,
                     const SsdStateRoom& room, const Tensor& states, const Tensor& final_state) {
  const SsdSizes sizes = ssd_sizes(in);
  const int64_t H = sizes.heads, size = sizes.head_dim * sizes.state;
  ctx.pool.parallel_for(in.num_seqs * H, [&](int64_t task, int thread) {
    const int64_t seq = task / H, head = task % H;
    const Real* const step = steps.step[head].template data<Real>();
    const Real* const sums = steps.sums[head].template data<Real>();
    Real* const state = room.state[thread].template data<Real>();
    for (int64_t i = chunks.first_of(seq); i < chunks.end_of(seq); ++i) {
      const SsdChunk chunk = chunks[i];
      const int64_t place = chunks.state_place(chunk);
      if (chunk.is_first()) {
        place < 0 ? std::fill_n(state, size, Real{0})
                  : std::copy_n(in.initial_state.data<Real>() + (seq * H + head) * size, size, state);
      }
      if (place >= 0) std::copy_n(state, size, states.data<Real>() + (place * H + head) * size);
      const bool is_last = i + 1 == chunks.end_of(seq);
      if (!chunk.continues && !(is_last && final_state.defined())) continue;
      ssd_advance(sizes, chunk.size(), ssd_rows<Real>(in.x, chunk.begin, head),
                  ssd_rows<Real>(in.b, chunk.begin, head / sizes.group_size()), step + chunk.begin, sums + chunk.begin,
                  room.weighted[thread].template data<Real>(), room.panels[thread].template data<Real>(), state);
      if (is_last && final_state.defined()) {
        std::copy_n(state, size, final_state.data<Real>() + (seq * H + head) * size);
      }
    }
  });
}

#define NMOE_INSTANTIATE_SSD(Real)                                                                                   \
  template Real ssd_step(Real);                                                                                      \
  template void ssd_sums(const Real*, Real, int64_t, Real*);                                                         \
  template Real ssd_decay(Real);                                                                                     \
  template void ssd_mix_row(const Real*, const Real*, const Real*, int64_t, Real*);                                  \
  template void ssd_scale_row(const Real*, Real, int64_t, Real*);                                                    \
  template void ssd_add_row(const Real*, Real, int64_t, Real*);                                                      \
  template SsdSteps claim_ssd_steps<Real>(ArenaScope&, const SsdSizes&);                                             \
  template void fill_ssd_steps<Real>(Context&, const SsdInputs&, const SsdChunks&, const SsdSteps&);                 \
  template void ssd_advance(const SsdSizes&, int64_t, SsdRows<Real>, SsdRows<Real>, const Real*, const Real*, Real*, \
                            Real*, Real*);                                                                           \
  template SsdStateRoom claim_ssd_state_room<Real>(ArenaScope&, const Context&, const SsdSizes&);                    \
  template void fill_ssd_states<Real>(Context&, const SsdInputs&, const SsdChunks&, const SsdSteps&,                 \
                                      const SsdStateRoom&, const Tensor&, const Tensor&);
NMOE_INSTANTIATE_SSD(float)
NMOE_INSTANTIATE_SSD(double)
#undef NMOE_INSTANTIATE_SSD

}  // namespace nmoe::cpu
