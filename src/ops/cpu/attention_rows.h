// The order of attention's sums (contracts/attention.h), for training's tiles and for single rows of generation.
//
// The positions of a document are cut into query blocks from its beginning on. All keys that a block's first query
// sees, and those behind them, are cut into key blocks from the first of them on, and a row goes from block to block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/tensor.h"

namespace nmoe::cpu {

constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 256;

// The keys of a key block that begins with the key at `begin`, of the query block that begins with the query at
// `q_begin`: a last one is as wide for the block's first query as for its last, and where the document ends.
constexpr int64_t key_block_width(int64_t q_begin, int64_t begin) {
  return std::min(kKeyBlock, q_begin + kQueryBlock - begin);
}

// Columns of scores; none where begin >= end.
struct Columns {
  int64_t begin, end;
};

// What is known of a row after some of its key blocks: the highest score and the sum of exp(score - highest).
template <class Real>
struct RunningSoftmax {
  Real highest = -std::numeric_limits<Real>::infinity();
  Real sum = 0;
};

// The scores of one key block, of which the row sees `seen`, become exp(score - highest), 0 where it sees nothing;
// there are `width` of them, whatever those are that it does not see. Returns the factor that what was summed before
// this block has to be multiplied by.
template <class Real>
Real softmax_row(Real* scores, Columns seen, int64_t width, RunningSoftmax<Real>& state);

// A head's sink, or null.
template <class Real>
const Real* sink_of(const Tensor& sinks, int64_t head) {
  return sinks.defined() ? sinks.data<Real>() + head : nullptr;
}

// Behind the last key block: what values have to be multiplied by, with the row's sink, if it has one, in `state`.
template <class Real>
Real finish_softmax(RunningSoftmax<Real>& state, const Real* sink);

}  // namespace nmoe::cpu
