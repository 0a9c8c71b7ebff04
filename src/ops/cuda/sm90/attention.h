// Attention by TMA and wgmma: BF16 on Hopper. Which calls these take, attention_engine (ops/cuda/scratch.h) says.
// Compiled for sm_90a only.
//
// One H200, 2026-11-23, forward, TFLOP/s (2 B H S^2 (Dk + Dv) / 2 FLOP), cuDNN's graph (vendor/cudnn_attention.h) in
// turns beside it:
//   32 sequences of 2048, 12 heads of 64                    457   404
//   8 sequences of 4096, 16 heads of 128                    600 to 615   533 to 548
//   16 sequences of 4096, 32 heads over 4 of 128            627   554
//   16 sequences of 4096, 16 heads of 192 and 128           655   532
#pragma once

#include "ops/contracts/attention.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Shapes as in the contract, checked by the caller; T > 0. q, k, v and out are aligned to 16 bytes. `first_keys` [T]
// I32: where the document of a token begins, counted in the token's sequence; undefined: every sequence is one
// document. It takes the place of shape.cu_seqlens. Work is that of the blocks of keys that windows and documents leave
// to a tile of queries. The same bits every time. No scratch.
void attention_forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys);

// The same for backward, whose gradients too are aligned to 16 bytes. Scratch: claim_sm90 (ops/cuda/scratch.h).
void attention_backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys);

}  // namespace nmoe::cuda::sm90
