// Attention by cuDNN's fused kernels, BF16.
//
// A plan for a shape is built when the shape is first met, in a counting run or not: some 0.7 s of the host where
// cuDNN compiles a kernel, 0.05 s where it has it already. So a step that will be captured must have run or been
// counted before. Plans are kept for the life of the process, for all backends; each takes some 9 MB of the device.
// Thread-safe.
//
// One H200, cuDNN 9.19, causal, 2026-11-21, TFLOP/s forward, backward, backward in any order (2, and 2.5 times 2,
// B H S^2 (Dk + Dv) / 2 FLOP):
//   32 sequences of 2048, 12 heads of 64          394   277   327
//   8 sequences of 4096, 16 heads of 128          596   446   502
//   8 sequences of 4096, 16 heads of 192 and 128  602   388   447
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

struct CudnnAttentionOptions {
  // The same bits every time. Costs a workspace of 2 bytes a pair of positions and head.
  bool deterministic = true;
  // Bytes. Backward takes as many sequences at a time, or heads of one, as keep that workspace within it. Small parts
  // are slower: 8 sequences of 16 heads lose 3 % at 2 GiB, 9 % at 1 GiB.
  int64_t workspace_limit = int64_t{4} << 30;
};

// Head sizes that are multiples of 8: on Hopper up to 256, on Blackwell up to 128, or 192 for keys and 128 for values.
bool cudnn_attention_takes(DType act, int64_t key_size, int64_t value_size);

// `first_keys` [T] I32: where the document of a token begins, counted in the token's sequence; undefined: every
// sequence is one document. It takes the place of shape.cu_seqlens. Time depends on windows, not on documents.
void cudnn_attention_forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys);
void cudnn_attention_backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys,
                              const CudnnAttentionOptions& options = {});

}  // namespace nmoe::cuda
