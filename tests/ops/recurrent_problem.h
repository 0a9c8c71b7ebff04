// What tests of recurrent layers' operations share: sequences, the documents in them, and states that come from
// elsewhere and go on there.
#pragma once

#include <cstdint>
#include <vector>

#include "support/gradient_check.h"

namespace nmoe::test {

// `Inputs`: the operation's, with num_seqs, seq_len, cu_seqlens and initial_state.
template <class Inputs>
struct RecurrentProblem {
  RecurrentProblem(DType real, int64_t num_seqs, int64_t seq_len, const Shape& states, int num_threads)
      : pool(real), state_shape(states) {
    ops = cpu_device(real, num_threads, 64 << 20);
    in.num_seqs = num_seqs;
    in.seq_len = seq_len;
  }
  // Sequences go on from states elsewhere, and hand theirs on.
  void continue_elsewhere() {
    in.initial_state = pool.normal(state_shape);
    final_state = pool.full(state_shape, 7.0);
    dfinal_state = pool.normal(state_shape);
    dinitial_state = pool.full(state_shape, 7.0);
  }
  void documents(const std::vector<double>& bounds) {
    in.cu_seqlens = pool.ints({static_cast<int64_t>(bounds.size())}, bounds);
  }
  bool begins_document(int64_t t) const {
    if (t % in.seq_len == 0) return true;
    for (int64_t i = 0; in.cu_seqlens.defined() && i < in.cu_seqlens.dim(0); ++i) {
      if (static_cast<int64_t>(get(in.cu_seqlens, i)) == t) return true;
    }
    return false;
  }
  // Of what forward has written, whose gradients are dy and dfinal_state.
  double loss_of_results() const { return dot(y, dy) + (final_state.defined() ? dot(final_state, dfinal_state) : 0); }
  // y, then the last states.
  std::vector<double> results() const {
    std::vector<double> all = values(y);
    if (final_state.defined()) {
      const std::vector<double> last = values(final_state);
      all.insert(all.end(), last.begin(), last.end());
    }
    return all;
  }

  TensorPool pool;
  Shape state_shape;
  ReadyDevice ops;
  Inputs in;
  Tensor y, dy;
  Tensor final_state, dfinal_state, dinitial_state;
};

}  // namespace nmoe::test
