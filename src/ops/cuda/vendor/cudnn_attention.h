// Attention by cuDNN's fused kernels, BF16.
//
// One H200, cuDNN 9.19, causal, 2026-11-21, TFLOP/s forward, backward (2, and 2.5 times 2, B H S^2 (Dk + Dv) / 2 FLOP):
//   32 sequences of 2048, 12 heads of 64          394   277
//   8 sequences of 4096, 16 heads of 128          596   446
//   8 sequences of 4096, 16 heads of 192 and 128  602   388
#pragma once

#include <cstdint>
#include <memory>

#include "ops/contracts/attention.h"
#include "ops/cuda/plans/attention.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Attention on one device, with the plans that were built for it.
//
// A plan for a shape is built when the shape is first met, in a counting run or not: some 0.7 s of the host where
// cuDNN compiles a kernel, 0.05 s where it has it already. So a step that will be captured must have run or been
// counted before. Plans are kept as long as this object, which must outlive what was captured; each takes some 9 MB of
// the device. Thread-safe.
class CudnnAttention {
 public:
  // Loads nothing until it is used. To be destroyed while the device is current.
  explicit CudnnAttention(int device_index);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // `first_keys` [T] I32: where the document of a token begins, counted in the token's sequence; undefined: every
  // sequence is one document. It takes the place of shape.cu_seqlens. Time depends on windows, not on documents.
  // Scratch is as plans/attention.h claims it, with what the functions below say.
  void forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys, const Tensor& workspace);
  void backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys,
                const AttentionBackwardScratch& scratch, int64_t workspace_limit = kAttentionWorkspaceLimit);

  // Bytes of workspace that these ask for. `counting`: backward's plans are built beside forward's.
  int64_t forward_workspace(const AttentionForward& args, bool counting);
  int64_t backward_workspace(const AttentionBackward& args, int64_t workspace_limit = kAttentionWorkspaceLimit);

 private:
  struct Plans;

  int device_index_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace nmoe::cuda
