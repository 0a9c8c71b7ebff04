// Router health as numbers to log, and the rule that calls a router collapsed.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "config/config.h"
#include "train/engine.h"

namespace nmoe {

using MetricSink = std::function<void(std::string_view tag, double value)>;

// router/layer_LL/{max_load, load_max_over_mean, cv, entropy, experts_active, bias_range, balance_loss, z_loss}, LL
// counting MoE layers from 00, and router_agg/{mean_cv, std_cv, mean_entropy, min_entropy, dead_experts_count,
// experts_active_mean}. cv (standard deviation over mean of the experts' rows) and max_load (the busiest expert's
// share of all rows) are percentages.
void report_routers(std::span<const RouterHealth> layers, const MetricSink& sink);

// "" or the layer and why. Collapsed: at most top_k + 1 experts get any token and cv is at least 97 % of what
// exactly top_k experts sharing everything would show, 100 * sqrt((E - K) / K).
std::string find_collapse(std::span<const RouterHealth> layers, const MoeConfig& moe);

}  // namespace nmoe
