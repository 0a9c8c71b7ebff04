// How an operation is planned: its arguments say which kernels run it and what scratch they take. No CUDA here, so that
// a device that only counts (ops/planned) makes the plans that a GPU makes.
//
// A plan follows from shapes, dtypes and strides, never from addresses: arenas align every tensor to Arena::kAlignment,
// and rows of whole 16 bytes keep that, which kernels that need it check.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/kernel_set.h"
#include "ops/operations.h"
#include "tensor/arena.h"

namespace nmoe::cuda {

constexpr int64_t blocks_for(int64_t size, int64_t block) { return (size + block - 1) / block; }

// What NVIDIA's libraries ask for is known only where they are. For those a plan has room of a size that was seen to be
// enough; where a library asks for more, it gets that, and the plan made elsewhere was too small by the difference
// (tests/train/cuda/planned_test.cpp).
class VendorRoom {
 public:
  virtual ~VendorRoom() = default;
  // Bytes of cuDNN's workspace. `counting`: in a counting run, which is the time to compile what will be wanted next.
  virtual int64_t attention_forward(const AttentionForward& args, bool counting) = 0;
  virtual int64_t attention_backward(const AttentionBackward& args) = 0;
  virtual int64_t sort(int64_t num_keys) = 0;  // bytes of a radix sort of pairs of I32
};

// Where a plan's tensors are claimed, and for which kernels. What is claimed is free again when the planner is gone.
struct Planner {
  Arena& arena;
  KernelSet kernels;
  VendorRoom* vendor = nullptr;  // null: the libraries are not here
  ArenaScope scope{arena};

  // For a part of an operation that is over before the next begins: both may take the same memory.
  Planner part() const { return {arena, kernels, vendor}; }
};

}  // namespace nmoe::cuda
