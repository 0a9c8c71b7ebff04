#include "config/per_layer.h"

#include <fmt/format.h>

#include <charconv>

#include "base/text.h"

namespace nmoe {
namespace {

constexpr int64_t kMaxCount = 1 << 20;

// "3 x norms" or "norms".
std::optional<LayerRun<std::string_view>> read_run(std::string_view text) {
  LayerRun<std::string_view> run;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), run.count);
  if (error == std::errc::invalid_argument) {
    run.value = text;
  } else {
    const std::string_view rest = trimmed(text.substr(static_cast<size_t>(end - text.data())));
    if (error != std::errc() || run.count < 1 || run.count > kMaxCount || !rest.starts_with('x')) return {};
    run.value = trimmed(rest.substr(1));
  }
  if (run.value.empty()) return {};
  return run;
}

}  // namespace

std::optional<std::vector<LayerRun<std::string_view>>> read_layer_runs(std::string_view text) {
  std::vector<LayerRun<std::string_view>> runs;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = trimmed(text.substr(begin, end - begin));
    const auto run = read_run(item);
    if (!run) return {};
    const bool is_alone = begin == 0 && end == text.size() && run->value == item;
    runs.push_back({is_alone ? 0 : run->count, run->value});
    begin = end + 1;
  }
  return runs;
}

std::string write_layer_runs(const std::vector<LayerRun<std::string_view>>& runs) {
  std::string text;
  for (const LayerRun<std::string_view>& run : runs) {
    if (!text.empty()) text += ", ";
    if (run.count > 1 || (run.count == 1 && runs.size() == 1)) text += fmt::format("{} x ", run.count);
    text += run.value;
  }
  return text;
}

}  // namespace nmoe
