#include "train/report/exchange_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "track/tags/exchange.h"

namespace nmoe {

double rank_load_max_over_mean(const LayerTraffic& layer) {
  int64_t most = 0, all = 0;
  for (const RankTraffic& rank : layer.ranks) {
    most = std::max(most, rank.rows);
    all += rank.rows;
  }
  return all == 0 ? 0.0
                  : static_cast<double>(most * static_cast<int64_t>(layer.ranks.size())) / static_cast<double>(all);
}

double sent_bytes(const RankTraffic& rank, const ExchangeCost& cost) {
  double sum = 0.0;
  for (const Transfer transfer : kTransfers) {
    const bool goes_out = transfer == Transfer::kDispatch || transfer == Transfer::kCombineBackward;
    const auto rows = static_cast<double>(goes_out ? rank.sent : rank.received);
    const auto copies = static_cast<double>(goes_out ? rank.sent_copies : rank.received_copies);
    sum += static_cast<double>(cost.times(transfer)) * cost.bytes(transfer, rows, copies);
  }
  return sum;
}

namespace {

double sum_of(const std::array<double, kTransfers.size()>& ms) { return std::accumulate(ms.begin(), ms.end(), 0.0); }

const Metric& wait_metric(Transfer transfer) {
  switch (transfer) {
    case Transfer::kDispatch:
      return tags::kExchangeWaitDispatchMs;
    case Transfer::kCombine:
      return tags::kExchangeWaitCombineMs;
    case Transfer::kCombineBackward:
      return tags::kExchangeWaitCombineBackwardMs;
    case Transfer::kDispatchBackward:
      return tags::kExchangeWaitDispatchBackwardMs;
  }
  NMOE_CHECK(false, "no transfer {}", static_cast<int>(transfer));
}

double share(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

}  // namespace

double hidden_share(const RankTraffic& rank) {
  const double lasted = sum_of(rank.lasted_ms);
  return share(lasted - sum_of(rank.exposed_ms), lasted);
}

void report_exchange(std::span<const LayerTraffic> layers, std::span<const ExchangeCost> costs, MetricRecord& record) {
  if (layers.empty()) return;
  const size_t num_ranks = layers[0].ranks.size();
  double worst_load = 0.0, bytes = 0.0, lasted_ms = 0.0, exposed_ms = 0.0;
  std::vector<double> waited_ms(num_ranks);
  for (const LayerTraffic& layer : layers) {
    const double load = rank_load_max_over_mean(layer);
    worst_load = std::max(worst_load, load);
    record.put(tags::kExchangeRankLoadMaxOverMean, {layer.layer}, load);
    for (size_t i = 0; i < num_ranks; ++i) {
      const RankTraffic& rank = layer.ranks[i];
      const auto put = [&](const Metric& metric, double value) { record.put(metric, {layer.layer, i}, value); };
      const double sent = sent_bytes(rank, costs[static_cast<size_t>(layer.layer)]);
      bytes += sent;
      put(tags::kExchangeSentBytes, sent);
      for (const Transfer transfer : kTransfers) {
        const double ms = rank.waited_ms[static_cast<size_t>(transfer)];
        waited_ms[i] += ms;
        put(wait_metric(transfer), ms);
      }
      put(tags::kExchangeTransferMs, sum_of(rank.lasted_ms));
      put(tags::kExchangeHiddenShare, hidden_share(rank));
      lasted_ms += sum_of(rank.lasted_ms);
      exposed_ms += sum_of(rank.exposed_ms);
    }
  }
  const double count = static_cast<double>(num_ranks);
  record.put(tags::kExchangesRankLoadMaxOverMean, worst_load);
  record.put(tags::kExchangesSentBytes, bytes / count);
  record.put(tags::kExchangesWaitMs, std::accumulate(waited_ms.begin(), waited_ms.end(), 0.0) / count);
  record.put(tags::kExchangesWaitMaxMs, std::ranges::max(waited_ms));
  record.put(tags::kExchangesTransferMs, lasted_ms / count);
  record.put(tags::kExchangesHiddenShare, share(lasted_ms - exposed_ms, lasted_ms));
}

}  // namespace nmoe
