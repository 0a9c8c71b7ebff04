// Depthwise causal convolution with SiLU, as recurrent layers have it before their scan. W channels, K taps; on GPUs K
// is 4 at most.
//
//   pre[t, w] = bias[w] + sum over k < K of weight[w, k] * x[t - (K - 1) + k, w],   y = pre * sigmoid(pre)
//
// There may be no biases. The last tap is the token itself. What lies before a token's document counts as 0: no product
// is made with it.
// Sequences, documents and cu_seqlens are those of attention (AttentionShape, contracts/attention.h).
//
// A sequence may continue one that was computed elsewhere: `before` has the last K - 1 rows of that, oldest first,
// which the first document of the sequence goes on from; rows that its document does not have are 0. `after` are the
// rows that the next part would go on from.
//
// The order of sums: a row's is the bias, or 0, to which taps are added one by one, ascending in k. Gradients of
// weights and biases: tokens are cut into chunks of kConvolutionChunkRows from the first on; a chunk's are added one
// after the other, from 0 on; then the chunks' sums are, ascending, and their sum is added to the gradient. A gradient
// of a row begins with the last tap of the row itself, to which those of later rows are added, the nearest first.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace nmoe {

constexpr int64_t kConvolutionChunkRows = 256;

struct ConvolutionInputs {
  int64_t num_seqs = 1;
  int64_t seq_len = 0;
  Tensor x;                // [T, W], apart
  Tensor weight;           // [W, K] stat
  Tensor bias = {};        // [W] stat; undefined: none
  Tensor cu_seqlens = {};  // [C] i32; undefined: every sequence is one document
  Tensor before = {};      // [B, K - 1, W]; undefined: sequences begin here
};
struct ConvolutionForward {
  ConvolutionInputs in;
  Tensor y;           // = [T, W]
  Tensor after = {};  // = [B, K - 1, W]; undefined: not wanted
};
struct ConvolutionBackward {
  ConvolutionInputs in;  // as in forward
  Tensor dy;             // [T, W]
  Tensor dafter = {};    // [B, K - 1, W], the gradient of `after`; undefined: 0
  Tensor dx;             // = [T, W], apart
  Tensor dweight;        // += [W, K] stat
  Tensor dbias = {};     // += [W] stat, if there is a bias
  Tensor dbefore = {};   // = [B, K - 1, W], if there is `before`
};

// The same in generation: row t is a token at positions[t] of the sequence in slots[t] (CachedRows, model/states.h),
// and `rows` has the last K - 1 inputs of each slot's sequence, oldest first, which is what the next row goes on from.
// A row at position 0 begins a sequence: whatever its slot holds counts as 0. Rows of a slot are in the order of their
// positions; one of no slot (-1) becomes 0. A row has the bits that ConvolutionForward gives it.
struct CachedConvolution {
  Tensor x;          // [T, W], apart
  Tensor weight;     // [W, K] stat
  Tensor bias = {};  // [W] stat; undefined: none
  Tensor slots;      // [T] i32
  Tensor positions;  // [T] i32
  Tensor rows;       // [Z, K - 1, W], updated
  Tensor y;          // = [T, W]
};

}  // namespace nmoe
