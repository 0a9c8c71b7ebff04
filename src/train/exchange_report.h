// What the exchange between ranks did in a step, as numbers to log.
#pragma once

#include <span>

#include "model/exchange_cost.h"
#include "train/router_report.h"
#include "train/step_exchange.h"

namespace nmoe {

// Rows of the most loaded rank's experts over the mean of ranks; 0 where there are no rows.
double rank_load_max_over_mean(const LayerTraffic& layer);
// Bytes that a rank put into the memory of others in all transfers of a layer.
double sent_bytes(const RankTraffic& rank, const ExchangeCost& cost);

// The share of its transfers' time that other work hid on a rank; 0 without transfers.
double hidden_share(const RankTraffic& rank);

// exchange/layer_LL/rank_load_max_over_mean, of each rank RR exchange/layer_LL/rank_RR/{sent_bytes, wait_dispatch_ms,
// wait_combine_ms, wait_combine_backward_ms, wait_dispatch_backward_ms, transfer_ms, hidden_share}, and
// exchange_agg/{rank_load_max_over_mean, sent_bytes, wait_ms, wait_max_ms, transfer_ms, hidden_share}: of the worst
// layer; then sums over layers, of the mean rank, and of the one that waited longest. LL is the model's layer. All of
// one step.
void report_exchange(std::span<const LayerTraffic> layers, const ExchangeCost& cost, const MetricSink& sink);

}  // namespace nmoe
