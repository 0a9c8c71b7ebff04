// Every metric that a run records: the lists of track/tags/, joined. docs/metrics.md is made of it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/metric.h"

namespace nmoe {

// By group, as documented.
std::span<const Metric* const> tag_catalogue();

// The metric of a tag such as "router/layer_03/cv"; null of one that is not there.
const Metric* find_tag(std::string_view tag);

// Markdown: every metric. docs/metrics.md is this.
std::string tag_reference();

}  // namespace nmoe
