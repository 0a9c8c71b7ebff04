// Rotary positions, causal attention, and the expansion of MLA's latents. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/kinds.h"
#include "tensor/tensor.h"

namespace nmoe {

// Rotates `rope_dim` values of every head, starting `rope_offset` into it, in place (RoPE, arXiv 2104.09864). Backward
// is the inverse rotation, of gradients.
struct Rope {
  Tensor x;          // [T, H, head_size], apart
  Tensor positions;  // [T] i32, < dim(0) of the tables; they restart wherever a document is to start afresh
  Tensor cos;        // [max positions, rope_dim / 2] stat, YaRN's magnitude factor already applied
  Tensor sin;        // same
  int64_t rope_offset = 0;
  RopeLayout layout = RopeLayout::kInterleaved;
};

// Causal softmax attention over B sequences of S positions; query head h reads key/value head h / (H / G).
// Position i sees positions j with i - window < j <= i, or all j <= i when window is 0, of its own document only.
// O(S) memory, beside a workspace that CUDA's backward keeps small where it can: at least one key/value head's.
//
// Documents are runs of the T tokens: document d is [cu_seqlens[d], cu_seqlens[d + 1]). cu_seqlens[0] is 0, no entry is
// less than the one before, and the last is T. None crosses from one sequence into the next: every multiple of S up
// to T is among the entries. The capacity C is at least the number of documents + 1 and may be more (it stays the same
// from batch to batch); entries that are not needed repeat T. Work is proportional to the documents' lengths on the
// CPU, and by Hopper's own kernels (ops/cuda/sm90/attention.h) but for tiles; elsewhere on CUDA it is that of whole
// sequences.
struct AttentionShape {
  int64_t num_seqs = 0;    // B
  int64_t seq_len = 0;     // S
  double scale = 1.0;      // factor of q.k before the softmax
  int64_t window = 0;      // 0: full causal
  Tensor cu_seqlens = {};  // [C] i32; undefined: every sequence is one document
};
struct AttentionForward {
  AttentionShape shape;
  Tensor q;    // [T, H, Dk], apart
  Tensor k;    // [T, G, Dk], apart
  Tensor v;    // [T, G, Dv], apart
  Tensor out;  // = [T, H, Dv]
  Tensor lse;  // = [B, H, S] stat: natural log of the sum of exp(scale * q.k), kept for backward
};
struct AttentionBackward {
  AttentionShape shape;
  Tensor q, k, v, out, lse;  // as in forward
  Tensor dout;               // [T, H, Dv]
  Tensor dq;                 // = [T, H, Dk], apart
  Tensor dk;                 // = [T, G, Dk], apart
  Tensor dv;                 // = [T, G, Dv], apart
  // Where its positions are defined, q is what rope_forward has made of it so, and dq the gradient before that: as
  // rope_backward would make it, but rotated before it is rounded where Hopper's own kernels do it. x is not used.
  Rope rope = {};
  bool rope_keys = false;  // k and dk too
};

// Causal attention, forward only, to documents of which some begin alike and have that beginning once. Piece n is the
// rows [bounds[n], bounds[n + 1]) of T; it goes on where its parent ends, an earlier piece with rows, or begins a
// document where that is negative. A row sees its piece up to itself and, whole, those that lead to it: a document
// whose positions count from 0, within a window as in AttentionShape.
//
// What a row gets depends on its document up to itself alone, to the bit, and not on how it is cut into pieces or where
// they lie. Work is that of all pairs that see each other.
struct TreeAttention {
  double scale = 1.0;   // factor of q.k before the softmax
  int64_t window = 0;   // 0: all
  Tensor q, k, v, out;  // as in AttentionForward
  Tensor positions;     // [T] i32, of rows in their documents
  Tensor bounds;        // [C] i32, as cu_seqlens, whatever the sequences
  Tensor parents;       // [C] i32, the last of no piece
};
inline void check(const TreeAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), G = args.k.dim(1);
  NMOE_CHECK(G > 0 && H % G == 0 && args.k.shape() == Shape({T, G, args.q.dim(2)}) &&
                 args.v.shape() == Shape({T, G, args.v.dim(2)}) && args.out.shape() == Shape({T, H, args.v.dim(2)}) &&
                 args.positions.shape() == Shape({T}) && args.bounds.dim(0) >= 2 &&
                 args.parents.shape() == args.bounds.shape(),
             "attention of q {} to k {} and v {}, out {}: positions {}, bounds {}, parents {}", args.q.shape(),
             args.k.shape(), args.v.shape(), args.out.shape(), args.positions.shape(), args.bounds.shape(),
             args.parents.shape());
}

// MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values of each head out of the expanded latent and the
// rotated key part that all heads share.
struct MlaExpandForward {
  Tensor kv;      // [T, H, nope + Dv]
  Tensor k_rope;  // [T, rope], apart
  Tensor k;       // = [T, H, nope + rope]
  Tensor v;       // = [T, H, Dv]
};
struct MlaExpandBackward {
  Tensor dk, dv;   // like k and v in forward
  Tensor dkv;      // = [T, H, nope + Dv]
  Tensor dk_rope;  // = [T, rope], apart
};

}  // namespace nmoe
