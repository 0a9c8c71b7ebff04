// The scan of Mamba-2, state-space duality (arXiv 2405.21060, section 6), in chunks. H heads of P values, in G groups
// that share B and C; N values of state to each value; Q tokens of a chunk.
//
//   step = softplus(dt + dt_bias[h]), which is dt + dt_bias[h] above 20;   decay = exp(step * -exp(a_log[h]))
//   state[P, N] = decay * state + step * x B^T;   y = state C + d[h] * x
//
// for head h of group h / (H / G). A document's state begins at 0. Sequences, documents and cu_seqlens are those of
// attention (AttentionShape, contracts/attention.h).
//
// A document is cut into chunks of Q tokens from its beginning, so a chunk never has tokens of two, and a document's
// bits do not depend on where it lies. With a chunk's steps, sums s[i] = s[i - 1] + step[i] * A from s[-1] = 0 on
// (A = -exp(a_log[h]), each a fused multiply-add, ascending) and S, the state at the chunk's beginning:
//
//   M[i, j] = (C_i . B_j) * exp(s[i] - s[j]) * step[j]   for j <= i, else 0
//   y_i     = sum over j of M[i, j] x_j,  + sum over n of (exp(s[i]) C_i)[n] S[:, n] unless S begins a sequence,
//             + d[h] * x_i
//   S'      = exp(s[last]) * S + sum over j of (exp(s[last] - s[j]) step[j] x_j) B_j^T
//
// in this order; sums over j, n and values of a head are products (contracts/linear.h). Q is at most 256, so that a sum
// over a chunk is one chain, and a row's bits do not depend on the rows behind it. States are stat, whatever act is.
//
// Backward makes states again. The gradient of s is taken as sums over rectangles, i >= t > j, of terms
// M[i, j] (dy_i . x_j): differences of larger sums would cancel. Hopper's own kernels take what tokens i >= t receive
// less what they send, of terms i > j in F32 alone: those of i = j, in no rectangle, would be most of it where states
// decay fast. Its sums over heads of a group (db, dc) go from the group's first head to its last; da_log, dd and
// ddt_bias are summed over a chunk's tokens, ascending, and then over chunks, ascending, from 0 on, and this is added
// to the gradient.
//
// On CUDA a sum over j, n or values of a head is one chain, ascending: in F32 of fused multiply-adds; in BF16 of
// instructions of 16 consecutive terms, with operands rounded to BF16 that are made on the way: M, exp(s[i]) C_i,
// exp(s[last] - s[j]) step[j] x_j, and a state where it is one (what goes on from chunk to chunk is F32). y_i and S'
// are chains that go on from the sum in front, but with Hopper's own kernels (ops/cuda/sm90/ssd.h) y_i begins with S's
// sum, of C_i, which is then multiplied by exp(s[i]). Sums of da_log, dd and ddt_bias over tokens and chunks have a
// fixed order of their own there.
//
// A sequence may continue one that was computed elsewhere, from `initial_state`, which its first document goes on from,
// and whose chunks are counted from where the sequence begins here; `final_state` is what the next part would go on
// from. Both parts have the bits of the whole where the cut is at a chunk's end, and else those of other chunks.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace nmoe {

constexpr int64_t kMostSsdChunk = 256;
constexpr double kSoftplusLinearAbove = 20.0;

struct SsdInputs {
  int64_t num_seqs = 1;
  int64_t seq_len = 0;
  int64_t chunk = 128;        // Q
  Tensor x;                   // [T, H, P], apart
  Tensor b, c;                // [T, G, N], apart
  Tensor dt;                  // [T, H], apart
  Tensor dt_bias;             // [H] stat
  Tensor a_log;               // [H] stat
  Tensor d;                   // [H] stat
  Tensor cu_seqlens = {};     // [C] i32; undefined: every sequence is one document
  Tensor initial_state = {};  // [B, H, P, N] stat; undefined: sequences begin here
};
struct SsdForward {
  SsdInputs in;
  Tensor y;                 // = [T, H, P]
  Tensor final_state = {};  // = [B, H, P, N] stat, of the sequence's last document; undefined: not wanted
};
struct SsdBackward {
  SsdInputs in;                // as in forward
  Tensor dy;                   // [T, H, P]
  Tensor dfinal_state = {};    // [B, H, P, N] stat; undefined: 0
  Tensor dx;                   // = [T, H, P], apart
  Tensor db, dc;               // = [T, G, N], apart
  Tensor ddt;                  // = [T, H], apart
  Tensor ddt_bias;             // += [H] stat
  Tensor da_log;               // += [H] stat
  Tensor dd;                   // += [H] stat
  Tensor dinitial_state = {};  // = [B, H, P, N] stat, if there is an initial_state
};

// The same in generation: row t is a token at positions[t] of the sequence in slots[t] (CachedRows, model/states.h). A
// slot holds the state at the beginning of its open chunk, and x, b and step of that chunk's tokens; with a chunk's
// last token its state becomes that of the next. A row at position 0 begins a sequence, whatever its slot holds. Rows
// of a slot are in the order of their positions; one of no slot (-1) becomes 0. A row has the bits that SsdForward
// gives it in F32.
struct CachedSsd {
  Tensor x;          // [T, H, P], apart
  Tensor b, c;       // [T, G, N], apart
  Tensor dt;         // [T, H], apart
  Tensor dt_bias;    // [H] stat
  Tensor a_log;      // [H] stat
  Tensor d;          // [H] stat
  Tensor slots;      // [T] i32
  Tensor positions;  // [T] i32
  Tensor states;     // [Z, H, P, N] stat, updated
  Tensor open_x;     // [Z, Q, H * P], updated
  Tensor open_b;     // [Z, Q, G * N], updated
  Tensor open_step;  // [Z, Q, H] stat, updated
  Tensor y;          // = [T, H, P]
};

// What forward, backward and generation have in common.
struct SsdSizes {
  int64_t tokens, heads, head_dim, groups, state, chunk;

  int64_t group_size() const { return heads / groups; }
};
inline SsdSizes ssd_sizes(const SsdInputs& in) {
  return {.tokens = in.x.dim(0),
          .heads = in.x.dim(1),
          .head_dim = in.x.dim(2),
          .groups = in.b.dim(1),
          .state = in.b.dim(2),
          .chunk = in.chunk};
}
inline SsdSizes ssd_sizes(const CachedSsd& args) {
  return {.tokens = args.x.dim(0),
          .heads = args.x.dim(1),
          .head_dim = args.x.dim(2),
          .groups = args.b.dim(1),
          .state = args.b.dim(2),
          .chunk = args.open_x.dim(1)};
}

}  // namespace nmoe
