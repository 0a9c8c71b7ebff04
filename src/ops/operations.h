// The operations of every device and their arguments. Letters and conventions: ops/ops.h.
//
// Kernels' files include this, not ops/ops.h: nvcc reads every header three times, and those of the host's memory
// and functions take it longer than a small kernel.
#pragma once

#include "ops/contracts/across.h"
#include "ops/contracts/activation.h"
#include "ops/contracts/attention.h"
#include "ops/contracts/bias.h"
#include "ops/contracts/cache.h"
#include "ops/contracts/convolution.h"
#include "ops/contracts/delta_rule.h"
#include "ops/contracts/embedding.h"
#include "ops/contracts/exchange.h"
#include "ops/contracts/gradient.h"
#include "ops/contracts/head.h"
#include "ops/contracts/linear.h"
#include "ops/contracts/measure_product.h"
#include "ops/contracts/moe.h"
#include "ops/contracts/norm.h"
#include "ops/contracts/optimizer.h"
#include "ops/contracts/quantize.h"
#include "ops/contracts/router.h"
#include "ops/contracts/ssd.h"
#include "ops/contracts/tensor.h"

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
  X(expert_bias_backward, ExpertBiasBackward)                    \
  X(add_gradient, AddGradient)                                   \
  X(bias_forward, BiasForward)                                   \
  X(bias_backward, BiasBackward)                                 \
  X(rms_norm_forward, RmsNormForward)                            \
  X(rms_norm_backward, RmsNormBackward)                          \
  X(gated_norm_forward, GatedNormForward)                        \
  X(gated_norm_backward, GatedNormBackward)                      \
  X(activation_forward, ActivationForward)                       \
  X(activation_backward, ActivationBackward)                     \
  X(gate_forward, GateForward)                                   \
  X(gate_backward, GateBackward)                                 \
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
  X(mla_expanded_attention, MlaExpandedAttention)                \
  X(convolution_forward, ConvolutionForward)                     \
  X(convolution_backward, ConvolutionBackward)                   \
  X(cached_convolution, CachedConvolution)                       \
  X(ssd_forward, SsdForward)                                     \
  X(ssd_backward, SsdBackward)                                   \
  X(cached_ssd, CachedSsd)                                       \
  X(delta_rule_forward, DeltaRuleForward)                        \
  X(delta_rule_backward, DeltaRuleBackward)                      \
  X(cached_delta_rule, CachedDeltaRule)                          \
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
  X(logit_sums, LogitSums)                                       \
  X(adamw_steps, AdamWSteps)                                     \
  X(muon_step, MuonStep)
