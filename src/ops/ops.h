// Ops: the arithmetic of a device on one of its lanes. Operations are coarse (a whole
// attention, an optimizer step). Each takes one struct of arguments and is implemented for
// every device: if one is missing, the program does not link.
//
// To add an operation: its arguments, formula and shapes in ops/contracts/, their check in ops/contracts/checks/, a
// line in ops/operations.h, a function of its name for the CPU (ops/cpu) and one for CUDA (ops/cuda), and tests of
// both.
//
// Letters used in shapes
//   B sequences   S positions of a sequence   T = B*S tokens of a microbatch   D model width   V vocabulary
//   H query heads   G key/value heads   Dk query/key head size   Dv value head size
//   E routed experts   K experts a token goes to (top_k)   R capacity of routed rows   F hidden width of an MLP
//   Z slots of a key/value cache   C positions of a slot (capacity)
//
// Conventions
// * `act` is the compute dtype, of activations, their gradients and weights: F32, BF16 on GPUs, F64 for proofs.
//   `stat` is F32, or F64 for proofs: statistics, router scores, losses, norm gains, gradients of weights and what
//   optimizers keep. Tensors are act, row-major and dense unless a comment says otherwise: it names stat, i32 and f64,
//   and says `apart` if rows may lie apart in memory (tensor/tensor.h), as q, k and v of a token are parts of one row.
// * A weight that is trained in BF16 has a second tensor `low` (i16); both together are an F32 master weight: its bits,
//   as an integer, are the BF16 value's bits times 2^16, plus low. Undefined if the weight itself is stat.
// * What an operation writes is marked `=`, what it adds to `+=`. With a member accumulate..., the tensor that it
//   concerns is overwritten if it is false, and added to if it is true.
// * Results have the same bits for any number of threads: the order of reductions over tokens depends only on shapes.
// * Operations neither allocate (scratch comes from scratch()) nor wait; results stay in tensors until they are
//   downloaded. What changes from step to step is read from tensors, so that one recording serves all steps.
// * In a counting run (counting() is true), tensors have no data, and operations only claim their scratch.
// * On CUDA in BF16, arithmetics (ops/device.h) differ in the last bits of linear_forward, grouped_linear_forward and
// both with
//   an activation, and of rms_norm_forward: what only one of them promises is said there. In F32 they do not, nor
//   on the CPU. Contracts state the order of sums.
//
// Threads: those of the device (ops/device.h).
#pragma once

#include "ops/device.h"
#include "ops/operations.h"

namespace nmoe {

class Ops {
 public:
  Ops(Device& device, Lane lane, Arithmetic arithmetic) : device_(device), lane_(lane), arithmetic_(arithmetic) {}
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  Device& device() const { return device_; }
  Lane lane() const { return lane_; }
  Arithmetic arithmetic() const { return arithmetic_; }
  virtual DType compute_dtype() const = 0;  // what `act` means
  // What products make of weights that are to be rounded to `format`, which is not kAct.
  virtual WeightRounding weight_rounding(OperandFormat format) const = 0;
  DType stat_dtype() const { return compute_dtype() == DType::kF64 ? DType::kF64 : DType::kF32; }
  Arena& scratch() const { return device_.scratch(lane_); }
  bool counting() const { return device_.counting(); }

#define NMOE_DECLARE_OPERATION(name, Arguments) virtual void name(const Arguments& args) = 0;
  NMOE_OPERATIONS(NMOE_DECLARE_OPERATION)
#undef NMOE_DECLARE_OPERATION

 private:
  Device& device_;
  Lane lane_;
  Arithmetic arithmetic_;
};

}  // namespace nmoe
