// What ranks exchange in a logged step, and how experts move.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kExchangeRankLoadMaxOverMean = {
    .tag = "exchange/layer_LL/rank_load_max_over_mean",
    .unit = "",
    .meaning = "rows of the fullest rank's experts over the mean of ranks"};
inline constexpr Metric kExchangeSentBytes = {
    .tag = "exchange/layer_LL/rank_RR/sent_bytes",
    .unit = "bytes",
    .meaning = "bytes that the rank wrote to other ranks' memory in the step"};
inline constexpr Metric kExchangeWaitDispatchMs = {
    .tag = "exchange/layer_LL/rank_RR/wait_dispatch_ms",
    .unit = "ms",
    .meaning = "time that it waited for other ranks before the transfer of tokens to experts, forward"};
inline constexpr Metric kExchangeWaitCombineMs = {.tag = "exchange/layer_LL/rank_RR/wait_combine_ms",
                                                  .unit = "ms",
                                                  .meaning = "the same before the transfer of experts' outputs back"};
inline constexpr Metric kExchangeWaitCombineBackwardMs = {.tag = "exchange/layer_LL/rank_RR/wait_combine_backward_ms",
                                                          .unit = "ms",
                                                          .meaning = "the same for the gradients of those outputs"};
inline constexpr Metric kExchangeWaitDispatchBackwardMs = {.tag = "exchange/layer_LL/rank_RR/wait_dispatch_backward_ms",
                                                           .unit = "ms",
                                                           .meaning = "the same for the gradients of tokens"};
inline constexpr Metric kExchangeTransferMs = {
    .tag = "exchange/layer_LL/rank_RR/transfer_ms", .unit = "ms", .meaning = "duration of its transfers"};
inline constexpr Metric kExchangeHiddenShare = {.tag = "exchange/layer_LL/rank_RR/hidden_share",
                                                .unit = "",
                                                .meaning = "share of that time during which other work was done"};
inline constexpr std::array kExchangeMetrics = {&kExchangeRankLoadMaxOverMean,
                                                &kExchangeSentBytes,
                                                &kExchangeWaitDispatchMs,
                                                &kExchangeWaitCombineMs,
                                                &kExchangeWaitCombineBackwardMs,
                                                &kExchangeWaitDispatchBackwardMs,
                                                &kExchangeTransferMs,
                                                &kExchangeHiddenShare};

inline constexpr Metric kExchangesRankLoadMaxOverMean = {.tag = "exchange_agg/rank_load_max_over_mean",
                                                         .unit = "",
                                                         .meaning = "rank_load_max_over_mean of the most uneven layer"};
inline constexpr Metric kExchangesSentBytes = {.tag = "exchange_agg/sent_bytes",
                                               .unit = "bytes",
                                               .meaning = "bytes sent in all layers together, mean over ranks",
                                               .over_ranks = OverRanks::kMean};
inline constexpr Metric kExchangesWaitMs = {.tag = "exchange_agg/wait_ms",
                                            .unit = "ms",
                                            .meaning = "waiting time in all layers together, mean over ranks",
                                            .over_ranks = OverRanks::kMean};
inline constexpr Metric kExchangesWaitMaxMs = {
    .tag = "exchange_agg/wait_max_ms",
    .unit = "ms",
    .meaning = "waiting time in all layers together, of the rank that waited longest",
    .over_ranks = OverRanks::kMax};
inline constexpr Metric kExchangesTransferMs = {.tag = "exchange_agg/transfer_ms",
                                                .unit = "ms",
                                                .meaning = "transfer time in all layers together, mean over ranks",
                                                .over_ranks = OverRanks::kMean};
inline constexpr Metric kExchangesHiddenShare = {
    .tag = "exchange_agg/hidden_share", .unit = "", .meaning = "share of that time during which other work was done"};
inline constexpr std::array kExchangeAggMetrics = {
    &kExchangesRankLoadMaxOverMean, &kExchangesSentBytes,  &kExchangesWaitMs,
    &kExchangesWaitMaxMs,           &kExchangesTransferMs, &kExchangesHiddenShare};

inline constexpr Metric kExpertMoves = {
    .tag = "parallel/expert_moves", .unit = "", .meaning = "number of experts that changed ranks before the step"};
inline constexpr Metric kLoadBeforeMoves = {
    .tag = "parallel/layer_LL/load_before_moves",
    .unit = "",
    .meaning = "rows of the fullest rank over the mean, in the steps before the moves"};
inline constexpr Metric kLoadAfterMoves = {.tag = "parallel/layer_LL/load_after_moves",
                                           .unit = "",
                                           .meaning = "what that would have been with the experts where they are now"};
inline constexpr std::array kParallelMetrics = {&kExpertMoves, &kLoadBeforeMoves, &kLoadAfterMoves};

}  // namespace nmoe::tags
