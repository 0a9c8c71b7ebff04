// What routers do in a logged step.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kRouterLoad = {.tag = "router/layer_LL/load",
                                       .unit = "rows",
                                       .meaning = "token copies that each expert got in the step, over all ranks",
                                       .is_array = true};
inline constexpr Metric kRouterBias = {
    .tag = "router/layer_LL/bias",
    .unit = "",
    .meaning = "selection bias of each expert, added to its score when experts are selected",
    .is_array = true};
inline constexpr Metric kRouterLoadMaxOverMean = {
    .tag = "router/layer_LL/load_max_over_mean", .unit = "", .meaning = "rows of the fullest expert over the mean"};
inline constexpr Metric kRouterMaxLoad = {
    .tag = "router/layer_LL/max_load", .unit = "%", .meaning = "share of all rows that the fullest expert got"};
inline constexpr Metric kRouterCv = {
    .tag = "router/layer_LL/cv",
    .unit = "%",
    .meaning = "coefficient of variation of the experts' rows: standard deviation over mean"};
inline constexpr Metric kRouterEntropy = {.tag = "router/layer_LL/entropy",
                                          .unit = "nats",
                                          .meaning = "entropy of a token's routing probabilities, mean over tokens"};
inline constexpr Metric kRouterExpertsActive = {
    .tag = "router/layer_LL/experts_active", .unit = "", .meaning = "number of experts that got any row"};
inline constexpr Metric kRouterBiasRange = {
    .tag = "router/layer_LL/bias_range", .unit = "", .meaning = "largest minus smallest bias"};
inline constexpr Metric kRouterBalanceLoss = {
    .tag = "router/layer_LL/balance_loss",
    .unit = "",
    .meaning = "auxiliary loss that evens out loads (model.moe.balance_loss)"};
inline constexpr Metric kRouterZLoss = {
    .tag = "router/layer_LL/z_loss",
    .unit = "",
    .meaning = "auxiliary loss that keeps the router's logits small (model.moe.z_loss)"};
inline constexpr std::array kRouterMetrics = {
    &kRouterLoad,    &kRouterBias,          &kRouterLoadMaxOverMean, &kRouterMaxLoad,     &kRouterCv,
    &kRouterEntropy, &kRouterExpertsActive, &kRouterBiasRange,       &kRouterBalanceLoss, &kRouterZLoss};

inline constexpr Metric kRoutersMeanCv = {.tag = "router_agg/mean_cv", .unit = "%", .meaning = "cv, mean over layers"};
inline constexpr Metric kRoutersStdCv = {
    .tag = "router_agg/std_cv", .unit = "%", .meaning = "cv, standard deviation over layers"};
inline constexpr Metric kRoutersMeanEntropy = {
    .tag = "router_agg/mean_entropy", .unit = "nats", .meaning = "entropy, mean over layers"};
inline constexpr Metric kRoutersMinEntropy = {
    .tag = "router_agg/min_entropy", .unit = "nats", .meaning = "entropy of the layer where it is lowest"};
inline constexpr Metric kRoutersDeadExpertsCount = {
    .tag = "router_agg/dead_experts_count", .unit = "", .meaning = "number of experts of all layers that got no row"};
inline constexpr Metric kRoutersExpertsActiveMean = {.tag = "router_agg/experts_active_mean",
                                                     .unit = "",
                                                     .meaning = "number of experts that got any row, mean over layers"};
inline constexpr std::array kRouterAggMetrics = {&kRoutersMeanCv,           &kRoutersStdCv,
                                                 &kRoutersMeanEntropy,      &kRoutersMinEntropy,
                                                 &kRoutersDeadExpertsCount, &kRoutersExpertsActiveMean};

}  // namespace nmoe::tags
