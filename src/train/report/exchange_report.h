// What the exchange between ranks did in a step, as numbers to log.
#pragma once

#include <span>

#include "rdep/cost.h"
#include "track/record.h"
#include "train/step/step_exchange.h"

namespace nmoe {

// Rows of the most loaded rank's experts over the mean of ranks; 0 where there are no rows.
double rank_load_max_over_mean(const LayerTraffic& layer);
// Bytes that a rank put into the memory of others in all transfers of a layer.
double sent_bytes(const RankTraffic& rank, const ExchangeCost& cost);

// The share of its transfers' time that other work hid on a rank; 0 without transfers.
double hidden_share(const RankTraffic& rank);

// Adds exchange/layer_LL/... and exchange_agg/... to `record` (track/tags/exchange.h has their meanings); LL is the
// model's layer, of which `costs` has all. All of one step.
void report_exchange(std::span<const LayerTraffic> layers, std::span<const ExchangeCost> costs, MetricRecord& record);

}  // namespace nmoe
