// Rotary positions, causal attention, and the expansion of MLA's latents. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

// Rotates the `rope_dim` values of every head that begin at its element `rope_offset`, in place (RoPE, arXiv
// 2104.09864). Backward applies the inverse rotation to gradients. On CUDA a pair (a, b) becomes fma(a, cos, -(b sin))
// and fma(b, cos, a sin).
struct Rope {
  Tensor x;          // [T, H, head_size], apart
  Tensor positions;  // [T] i32, < dim(0) of the tables; they restart at independent documents
  Tensor cos;        // [max positions, rope_dim / 2] stat, YaRN's magnitude factor already applied
  Tensor sin;        // same
  int64_t rope_offset = 0;
  RopeLayout layout = RopeLayout::kInterleaved;
};

// Causal softmax attention over B sequences of S positions; query head h reads key/value head h / (H / G). Position i
// sees positions j with i - window < j <= i, or all j <= i when window is 0, of its own document only. O(S) memory,
// besides a workspace in CUDA's backward, which holds as few key/value heads at a time as possible, at least one.
//
// The order of sums, of our own kernels on Hopper for heads (keys, values) of 64/64, 128/128 and 192/128 in BF16. It is
// a row's own: it depends on its head sizes, its position in the sequence, and what it sees, on no other row.
//   Keys are taken in blocks that begin at multiples of their length in the sequence, 128 for values of 64, else 64,
//   from the row's own block down to the first that it sees. What it does not see in them weighs 0.
//   A score s is a chain of instructions of 16 of a head's elements, ascending. With scale' = scale log2(e), `highest`
//   becomes the block's highest score where that is higher, for values of 128 only where (difference scale') > 8, and
//   what has been summed is then multiplied by f = 2^((highest before - highest) scale').
//   p = 2^(s scale' - highest scale'), whose product and difference are one operation, is summed in F32 before it is
//   rounded: in a block each column modulo 8 by itself, ascending, then the even and the odd of a pair. Each of the
//   four pairs goes on from block to block, sum = sum f + the block's, and the end is (0 + 1) + (2 + 3). Values are
//   summed in F32, by p rounded to BF16, in a chain of instructions of 16 keys, ascending in a block. At the end they
//   are multiplied by 1 / sum.
// A block in which a row sees nothing changes nothing. So a document that begins at a multiple of 128 has the bits that
// it would have as a sequence of its own, and those of CachedAttention (contracts/cache.h).
//
// Documents are consecutive ranges of the T tokens: document d is [cu_seqlens[d], cu_seqlens[d + 1]). cu_seqlens[0]
// is 0, entries do not decrease, and the last is T. No document extends from one sequence into the next: every
// multiple of S up to T is among the entries. The capacity C is at least the number of documents + 1 and may be more
// (it stays the same from batch to batch); unused entries repeat T. On the CPU the work is proportional to that
// within documents, as it is, rounded up to tiles, for our own kernels on Hopper (ops/cuda/sm90/attention.h);
// elsewhere on CUDA it is that of whole sequences.
//
// Order of sums. On the CPU the positions of a document are cut into query blocks of 64 from its beginning, and what a
// block's first query sees and all behind it into key blocks of 256. A row goes through its key blocks in ascending
// order with a running softmax: scores are products (contracts/linear.h), exponentials of a block are added in lanes
// whose number is the compiler's, by the block's width as if the document had no end, and values in one chain. So a
// row's bits depend on what it sees and its position in its document alone.
//
// On CUDA in F32 it is one key a lane, in a cache too (contracts/cache.h): a row takes its keys from the first that it
// sees, ascending, 32 a step. A score is scale times a chain of fused multiply-adds over a head's elements, ascending.
// `highest` becomes the step's highest score where that is higher; p = exp(score - highest) in F32, whose 32 are added
// as a tree, those 16, 8, 4, 2 and 1 apart; f = exp(highest before - highest), sum = fma(sum, f, the step's). Values
// times f have a chain of fused multiply-adds over the step's keys, ascending. At the end they are multiplied by
// 1 / sum. So a row's bits depend on what it sees alone, wherever its document begins. Of BF16 the order of all but the
// kernels above is each one's own.
struct AttentionShape {
  int64_t num_seqs = 0;    // B
  int64_t seq_len = 0;     // S
  double scale = 1.0;      // factor of q.k before the softmax
  int64_t window = 0;      // 0: full causal
  Tensor cu_seqlens = {};  // [C] i32; undefined: every sequence is one document
};
// A document that begins at a multiple of it has the bits on Hopper that it would have as a sequence of its own. On the
// CPU one that begins anywhere does.
inline constexpr int64_t kDocumentAlignment = 128;
//
// Sinks (gpt-oss, arXiv 2508.10925; softmax with a further logit that has no value): with sinks s [H], a row of head h
// has exp(s[h]) in its softmax's denominator beside what it sees, and in lse. It enters once, in any order of sums the
// last of all: behind the last key `highest` becomes s where that is higher, f = exp(highest before - highest), sum =
// sum f + exp(s - highest), and values are multiplied by f / sum.
struct AttentionForward {
  AttentionShape shape;
  Tensor q;           // [T, H, Dk], apart
  Tensor k;           // [T, G, Dk], apart
  Tensor v;           // [T, G, Dv], apart
  Tensor out;         // = [T, H, Dv]
  Tensor lse;         // = [B, H, S] stat: natural log of the sum of exp(scale * q.k), kept for backward
  Tensor sinks = {};  // [H] stat; undefined: none
};
// Rows between two partial sums of a sink's gradient.
constexpr int64_t kSinkChunkRows = 256;
// dsinks[h] -= the sum over rows of exp(sinks[h] - lse) (dout . out). Its order, on every device: the rows of a head,
// by sequence and position, are cut into chunks of kSinkChunkRows; a chunk's are added one after the other, from 0 on,
// then the chunks' sums are. All of it in F64: terms are of either sign.
struct AttentionBackward {
  AttentionShape shape;
  Tensor q, k, v, out, lse;  // as in forward
  Tensor dout;               // [T, H, Dv]
  Tensor dq;                 // = [T, H, Dk], apart
  Tensor dk;                 // = [T, G, Dk], apart
  Tensor dv;                 // = [T, G, Dv], apart
  // If its positions are defined, q is the result of rope_forward with these arguments, and dq becomes the gradient of
  // what went into it, as rope_backward computes it; our kernels on Hopper rotate before they round. x is not used.
  Rope rope = {};
  bool rope_keys = false;  // the same for k and dk
  Tensor sinks = {};       // as in forward
  Tensor dsinks = {};      // [H] stat, as above; undefined when sinks are
};

// Causal attention, forward only, over documents that share beginnings, each stored once: a forest of pieces. Piece n
// is the rows [bounds[n], bounds[n + 1]) of T. It continues its parent, an earlier piece that has rows, or begins a
// document if its parent is negative. A row sees its own piece up to itself, and the whole of all the piece's
// ancestors: together a document, whose positions count from 0, within a window as in AttentionShape.
//
// The result for a row depends, to the bit, only on its document up to itself, not on how the document is cut into
// pieces or where they are stored. Work is proportional to the number of pairs of rows of which one sees the other.
struct TreeAttention {
  double scale = 1.0;   // factor of q.k before the softmax
  int64_t window = 0;   // 0: all
  Tensor q, k, v, out;  // as in AttentionForward
  Tensor positions;     // [T] i32, the rows' positions in their documents
  Tensor bounds;        // [C] i32, as cu_seqlens, but independent of sequences
  Tensor parents;       // [C] i32; the last entry belongs to no piece
  Tensor sinks = {};    // [H] stat, as in AttentionForward; undefined: none
};

// Attention of MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1), whose keys and values come in parts: the key of head h
// is kv[t, h, :nope] and behind it k_rope[t], which all heads share, its value kv[t, h, nope:]. Our own kernels on
// Hopper read and write parts where they lie; elsewhere keys, values and their gradients are assembled in scratch.
// Gradients of heads are rounded before they are added up to dk_rope, in F32 and in the heads' order.
struct MlaAttentionForward {
  AttentionShape shape;
  Tensor q;       // [T, H, nope + rope], apart
  Tensor kv;      // [T, H, nope + Dv]
  Tensor k_rope;  // [T, rope], apart; rotated
  Tensor out;     // = [T, H, Dv]
  Tensor lse;     // = [B, H, S] stat, as in AttentionForward
};
struct MlaAttentionBackward {
  AttentionShape shape;
  Tensor q, kv, k_rope, out, lse;  // as in forward
  Tensor dout;                     // [T, H, Dv]
  Tensor dq;                       // = [T, H, nope + rope], apart
  Tensor dkv;                      // = [T, H, nope + Dv]
  Tensor dk_rope;                  // = [T, rope], apart
  Rope rope = {};                  // of q, as in AttentionBackward
  RowCodes dkv_codes = {};         // = what dkv [T, H (nope + Dv)] is in FP8; undefined: not wanted
};

// TreeAttention of the same parts.
struct MlaTreeAttention {
  double scale = 1.0;
  int64_t window = 0;
  Tensor q, kv, k_rope, out;  // as in MlaAttentionForward
  Tensor positions, bounds, parents;
};

}  // namespace nmoe
