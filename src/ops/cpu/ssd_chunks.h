// What the SSD scan's forward, backward and generation share (contracts/ssd.h has formulas and orders of sums): where
// chunks are, steps and their sums, states at chunks' beginnings, and the arithmetic of a row.
#pragma once

#include <cstdint>

#include "ops/contracts/ssd.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/operations.h"

namespace nmoe::cpu {

// ---- the arithmetic of a row. None of these is put into its callers, so that all have the same bits.

// softplus of dt + dt_bias.
template <class Real>
Real ssd_step(Real biased_dt);
// sums[i] = step[0] a + ... + step[i] a.
template <class Real>
void ssd_sums(const Real* step, Real a, int64_t size, Real* sums);
// e^x for x <= 0.
template <class Real>
Real ssd_decay(Real x);
// out[j] = scores[j] exp(sums[i] - sums[j]) step[j] for j <= i. out may be scores.
template <class Real>
void ssd_mix_row(const Real* scores, const Real* sums, const Real* step, int64_t i, Real* out);
// out[j] = factor x[j]
template <class Real>
void ssd_scale_row(const Real* x, Real factor, int64_t size, Real* out);
// y[j] += factor x[j]
template <class Real>
void ssd_add_row(const Real* x, Real factor, int64_t size, Real* y);

// A chunk of a document: tokens [begin, end) of the batch.
struct SsdChunk {
  int64_t begin, end;
  int64_t document_begin;
  bool continues;  // whether the next chunk is of the same document

  int64_t size() const { return end - begin; }
  bool is_first() const { return begin == document_begin; }
};

// The chunks of a batch. States are kept only at the beginnings of chunks that go on from one: those of a sequence are
// at least Q tokens apart and begin Q or more behind the sequence's beginning, so each has the place begin / Q of its
// own, and place 0 is the initial state's.
class SsdChunks {
 public:
  // Claims what the table takes.
  SsdChunks(ArenaScope& scope, const SsdInputs& in);
  void fill(const SsdInputs& in);

  int64_t count() const { return count_; }
  SsdChunk operator[](int64_t i) const;
  // The first chunk of a sequence.
  int64_t first_of(int64_t seq) const { return seq_first_.data<int32_t>()[seq]; }
  int64_t end_of(int64_t seq) const { return first_of(seq + 1); }
  // Where among [B * places(), ...] the state at a chunk's beginning is; -1: it begins a sequence.
  int64_t state_place(const SsdChunk& chunk) const;
  int64_t places() const { return places_; }  // of a sequence

 private:
  int64_t seq_len_, chunk_, places_;
  bool has_initial_;
  int64_t count_ = 0;
  Tensor begins_, document_begins_;  // [T + 1] i32
  Tensor seq_first_;                 // [B + 1] i32
};

// Steps and sums of all tokens, [H, T] each.
struct SsdSteps {
  Tensor step, sums;
};
template <class Real>
SsdSteps claim_ssd_steps(ArenaScope& scope, const SsdSizes& sizes);
template <class Real>
void fill_ssd_steps(Context& ctx, const SsdInputs& in, const SsdChunks& chunks, const SsdSteps& steps);

// One head of the rows of a chunk.
template <class Real>
struct SsdRows {
  Real* data;
  int64_t stride;

  Real* operator[](int64_t i) const { return data + i * stride; }
  Operand<Real> operand(Transpose transpose = Transpose::kNo) const { return {data, stride, transpose}; }
};
// Of x [T, heads, size], from token `begin` on.
template <class Real>
SsdRows<Real> ssd_rows(const Tensor& x, int64_t begin, int64_t head) {
  return {x.rows_data<Real>() + begin * x.stride() + head * x.dim(2), x.stride()};
}

// state [P, N] = exp(sums[last]) state + the chunk's part of it. `weighted` [Q, P] is room.
template <class Real>
void ssd_advance(const SsdSizes& sizes, int64_t size, SsdRows<Real> x, SsdRows<Real> b, const Real* step,
                 const Real* sums, Real* weighted, Real* gemm_scratch, Real* state);

// states [B * places, H, P, N]: at the beginnings of chunks that have one. `final_state`: contracts/ssd.h. `room`
// [threads, Q, P] and [threads, P, N], `panels` of gemm.
struct SsdStateRoom {
  Tensor weighted, state, panels;
};
template <class Real>
SsdStateRoom claim_ssd_state_room(ArenaScope& scope, const Context& ctx, const SsdSizes& sizes);
template <class Real>
void fill_ssd_states(Context& ctx, const SsdInputs& in, const SsdChunks& chunks, const SsdSteps& steps,
                     const SsdStateRoom& room, const Tensor& states, const Tensor& final_state);

}  // namespace nmoe::cpu
