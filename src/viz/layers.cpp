#include "viz/layers.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "track/tag.h"
#include "track/tags/router.h"
#include "viz/little_endian.h"

namespace nmoe {
namespace {

// Of an array that each layer's router records; nothing of other tags.
std::optional<int64_t> number_in(const std::string& tag) {
  for (const Metric* metric : tags::kRouterMetrics) {
    if (!metric->is_array) continue;
    if (const auto number = number_of(*metric, tag)) return number;
  }
  return std::nullopt;
}

uint32_t layer_of(const std::string& tag) { return static_cast<uint32_t>(number_in(tag).value_or(0)); }

}  // namespace

std::vector<std::string> layer_tags(const MetricsReader& metrics, const std::string& of) {
  std::vector<std::string> tags;
  for (const MetricsView::Last& last : metrics.tags()) {
    if (last.is_array && name_of(last.tag) == of && number_in(last.tag)) tags.push_back(last.tag);
  }
  std::ranges::stable_sort(tags, {}, layer_of);
  return tags;
}

std::string encode_layers(const MetricsReader& metrics, const std::vector<std::string>& tags, int64_t at) {
  size_t columns = 0;
  const ArraySeries* longest = nullptr;
  for (const std::string& tag : tags) {
    const ArraySeries& rows = metrics.arrays(tag);
    if (rows.size() == 0) continue;
    columns = std::max(columns, rows.rows().back().size());
    if (longest == nullptr || rows.size() > longest->size()) longest = &rows;
  }
  std::string bytes;
  const size_t steps = longest == nullptr ? 0 : longest->size();
  const size_t index = std::min(static_cast<size_t>(std::max<int64_t>(at, 0)), std::max<size_t>(steps, 1) - 1);
  const int64_t step = steps == 0 ? 0 : longest->steps()[index];
  append_number(bytes, uint32_t{1});
  append_number(bytes, static_cast<uint32_t>(tags.size()));
  append_number(bytes, static_cast<uint32_t>(columns));
  append_number(bytes, static_cast<uint32_t>(steps));
  append_number(bytes, step);
  for (const std::string& tag : tags) append_number(bytes, layer_of(tag));
  for (const std::string& tag : tags) {
    const ArraySeries& rows = metrics.arrays(tag);
    const bool here = std::ranges::binary_search(rows.steps(), step);
    const std::vector<float>* row = here ? rows.at(step) : nullptr;
    for (size_t column = 0; column < columns; ++column) {
      const bool known = row != nullptr && column < row->size();
      append_number(bytes, known ? (*row)[column] : std::numeric_limits<float>::quiet_NaN());
    }
  }
  return bytes;
}

}  // namespace nmoe
