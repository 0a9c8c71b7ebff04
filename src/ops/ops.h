// Ops: the arithmetic of a device on one of its lanes. Operations are coarse (a whole
// attention, an optimizer step). Each takes one struct of arguments and is implemented for
// every device: if one is missing, the program does not link.
//
// To add an operation: its arguments, formula and shapes in ops/contracts/, a line in NMOE_OPERATIONS below, a function
// of its name for the CPU (ops/cpu) and one for CUDA (ops/cuda), and tests of both.
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
// * On a batch-invariant device (ops/factory.h), a row of any forward operation's output has the same bits whatever the
//   other rows are and however many there are, so a token's result depends only on its own sequence. On other devices,
//   linear_forward and grouped_linear_forward are faster for many rows, and differ in the last bits.
//
// Threads: those of the device (ops/device.h).
#pragma once

#include "ops/contracts/across.h"
#include "ops/contracts/activation.h"
#include "ops/contracts/attention.h"
#include "ops/contracts/cache.h"
#include "ops/contracts/embedding.h"
#include "ops/contracts/exchange.h"
#include "ops/contracts/head.h"
#include "ops/contracts/linear.h"
#include "ops/contracts/measure_product.h"
#include "ops/contracts/moe.h"
#include "ops/contracts/norm.h"
#include "ops/contracts/optimizer.h"
#include "ops/contracts/quantize.h"
#include "ops/contracts/router.h"
#include "ops/contracts/tensor.h"
#include "ops/device.h"

// X(name of the operation, struct of its arguments)
#define NMOE_OPERATIONS(X)                                       \
  X(fill, Fill)                                                  \
  X(fill_truncated_normal, FillTruncatedNormal)                  \
  X(copy, Copy)                                                  \
  X(split_weight, SplitWeight)                                   \
  X(join_weight, JoinWeight)                                     \
  X(add_time, AddTime)                                           \
  X(sum, Sum)                                                    \
  X(sums_of_squares, SumsOfSquares)                              \
  X(sum_in_order, SumInOrder)                                    \
  X(count_non_finite, CountNonFinite)                            \
  X(clip_scale, ClipScale)                                       \
  X(abs_max, AbsMax)                                             \
  X(quantize, Quantize)                                          \
  X(widen_rows, WidenRows)                                       \
  X(measure_rounding, MeasureRounding)                           \
  X(measure_product, MeasureProduct)                             \
  X(embedding_forward, EmbeddingForward)                         \
  X(embedding_backward, EmbeddingBackward)                       \
  X(linear_forward, LinearForward)                               \
  X(linear_activation_forward, LinearActivationForward)          \
  X(linear_backward_input, LinearBackwardInput)                  \
  X(linear_backward_weight, LinearBackwardWeight)                \
  X(grouped_linear_forward, GroupedLinearForward)                \
  X(grouped_activation_forward, GroupedActivationForward)        \
  X(grouped_linear_backward_input, GroupedLinearBackwardInput)   \
  X(grouped_activation_backward, GroupedActivationBackward)      \
  X(grouped_linear_backward_weight, GroupedLinearBackwardWeight) \
  X(rms_norm_forward, RmsNormForward)                            \
  X(rms_norm_backward, RmsNormBackward)                          \
  X(activation_forward, ActivationForward)                       \
  X(activation_backward, ActivationBackward)                     \
  X(rope_forward, Rope)                                          \
  X(rope_backward, Rope)                                         \
  X(attention_forward, AttentionForward)                         \
  X(attention_backward, AttentionBackward)                       \
  X(tree_attention, TreeAttention)                               \
  X(mla_attention_forward, MlaAttentionForward)                  \
  X(mla_attention_backward, MlaAttentionBackward)                \
  X(mla_tree_attention, MlaTreeAttention)                        \
  X(cache_write, CacheWrite)                                     \
  X(cached_attention, CachedAttention)                           \
  X(mla_cached_attention, MlaCachedAttention)                    \
  X(router_forward, RouterForward)                               \
  X(router_backward, RouterBackward)                             \
  X(route_tokens, RouteTokens)                                   \
  X(router_bias_update, RouterBiasUpdate)                        \
  X(build_moe_plan, BuildMoePlan)                                \
  X(divide_moe_rows, DivideMoeRows)                              \
  X(moe_dispatch, MoeDispatch)                                   \
  X(moe_combine, MoeCombine)                                     \
  X(moe_dispatch_weights, MoeDispatchWeights)                    \
  X(moe_combine_weights, MoeCombineWeights)                      \
  X(peer_barrier, PeerBarrier)                                   \
  X(build_exchange_plan, BuildExchangePlan)                      \
  X(exchange_send, ExchangeSend)                                 \
  X(exchange_return, ExchangeReturn)                             \
  X(exchange_collect, ExchangeCollect)                           \
  X(exchange_return_copies, ExchangeReturnCopies)                \
  X(peer_sum, PeerSum)                                           \
  X(peer_spread, PeerSpread)                                     \
  X(peer_fetch, PeerFetch)                                       \
  X(sum_across, SumAcross)                                       \
  X(head_loss, HeadLoss)                                         \
  X(adamw_steps, AdamWSteps)                                     \
  X(muon_step, MuonStep)

namespace nmoe {

class Ops {
 public:
  Ops(Device& device, Lane lane) : device_(device), lane_(lane) {}
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  Device& device() const { return device_; }
  Lane lane() const { return lane_; }
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
};

}  // namespace nmoe
