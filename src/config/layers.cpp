#include "config/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "config/names.h"

namespace nmoe {
namespace {

constexpr int64_t kMaxNumber = 1 << 20;  // of layers, of a window, of a width
constexpr int kMaxDepth = 16;            // of parentheses

constexpr Named<PartSpec> kPartNames[] = {{{.kind = PartKind::kMla}, "mla"},
                                          {{.kind = PartKind::kGqa}, "gqa"},
                                          {{.kind = PartKind::kGqa, .rotates = false}, "gqa_nope"},
                                          {{.kind = PartKind::kMamba2, .rotates = false}, "mamba2"},
                                          {{.kind = PartKind::kGatedDeltaNet, .rotates = false}, "gated_deltanet"},
                                          {{.kind = PartKind::kDense}, "dense"},
                                          {{.kind = PartKind::kMoe}, "moe"}};

// Reads a pattern from left to right; whatever cannot be read ends it.
class PatternReader {
 public:
  explicit PatternReader(std::string_view text) : text_(text) {}

  std::vector<LayerSpec> read() {
    std::vector<LayerSpec> layers = read_list();
    if (at_ < text_.size()) fail("\",\" or the end was expected", "separate layers by commas");
    return layers;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const { fail_at(at_, what, remedy); }
  [[noreturn]] static void fail_at(size_t at, const std::string& what, const std::string& remedy) {
    throw LayerPattern::Problem{at + 1, what, remedy};
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view take_while(bool (*belongs)(char)) {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  static bool is_digit(char c) { return '0' <= c && c <= '9'; }
  static bool is_letter(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_'; }
  std::string_view take_name() {
    skip_spaces();
    if (at_ == text_.size() || !is_letter(text_[at_])) return {};
    return take_while([](char c) { return is_letter(c) || is_digit(c); });
  }

  // `what` is what the number stands for.
  int64_t read_number(std::string_view what) {
    skip_spaces();
    const size_t begin = at_;
    const std::string_view digits = take_while(is_digit);
    int64_t number = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (result.ec != std::errc() || number < 1 || number > kMaxNumber) {
      fail_at(begin, fmt::format("{} must be an integer from 1 to {}", what, kMaxNumber), "write such a number here");
    }
    return number;
  }

  // Either of a mixer or of a feed-forward part, unless only the latter may stand here.
  PartSpec read_part(bool only_feed_forward) {
    skip_spaces();
    const size_t begin = at_;
    const std::string_view name = take_name();
    std::vector<std::string> names;
    for (const Named<PartSpec>& part : kPartNames) {
      if (only_feed_forward && is_mixer(part.value.kind)) continue;
      if (part.name == name) return with_number(part.value);
      names.emplace_back(part.name);
    }
    const std::string_view what = only_feed_forward ? "feed-forward kind" : "part of a layer";
    fail_at(begin,
            name.empty() ? fmt::format("a {} was expected", what) : fmt::format("\"{}\" is not a {}", name, what),
            fmt::format("write {}", join_or(names)));
  }
  PartSpec with_number(PartSpec part) {
    const size_t colon = at_;
    if (!take(':')) return part;
    if (is_recurrent(part.kind)) {
      const std::string_view name = part.kind == PartKind::kMamba2 ? "mamba2" : "gated_deltanet";
      fail_at(colon, fmt::format("{} has no window", name), fmt::format("write {} alone", name));
    }
    if (is_mixer(part.kind)) {
      part.window = read_number("a window");
    } else {
      part.hidden = read_number("a hidden width");
    }
    return part;
  }

  LayerSpec read_layer() {
    LayerSpec layer{.parts = {read_part(/*only_feed_forward=*/false)}};
    const bool is_mixed = is_mixer(layer.parts.front().kind);
    skip_spaces();
    const size_t slash = at_;
    if (!take('/')) return layer;
    if (!is_mixed) fail_at(slash, "a feed-forward part ends its layer", "separate layers by commas");
    layer.parts.push_back(read_part(/*only_feed_forward=*/true));
    return layer;
  }

  std::vector<LayerSpec> read_item() {
    skip_spaces();
    const size_t begin = at_;
    int64_t count = 1;
    if (at_ < text_.size() && is_digit(text_[at_])) {
      count = read_number("a count");
      if (!take('x')) fail("\"x\" was expected", "write how often as in 3 x gqa/moe");
    }
    std::vector<LayerSpec> once;
    if (take('(')) {
      if (++depth_ > kMaxDepth) fail("too many parentheses in each other", "write the groups out");
      once = read_list();
      --depth_;
      if (!take(')')) fail("\")\" was expected", "close the parenthesis");
    } else {
      once = {read_layer()};
    }
    if (count > kMaxNumber / static_cast<int64_t>(once.size())) {
      fail_at(begin, fmt::format("more than {} layers", kMaxNumber), "lower the count");
    }
    std::vector<LayerSpec> layers;
    for (int64_t i = 0; i < count; ++i) layers.insert(layers.end(), once.begin(), once.end());
    return layers;
  }

  std::vector<LayerSpec> read_list() {
    std::vector<LayerSpec> layers;
    do {
      const size_t begin = at_;
      const std::vector<LayerSpec> item = read_item();
      layers.insert(layers.end(), item.begin(), item.end());
      if (layers.size() > static_cast<size_t>(kMaxNumber)) {
        fail_at(begin, fmt::format("more than {} layers", kMaxNumber), "lower the counts");
      }
    } while (take(','));
    skip_spaces();
    return layers;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Layers without counts: "gqa:512/moe".
std::string written_layer(const LayerSpec& layer) {
  std::string text;
  for (const PartSpec& part : layer.parts) {
    const auto* const named = std::ranges::find_if(kPartNames, [&](const Named<PartSpec>& each) {
      return each.value.kind == part.kind && each.value.rotates == part.rotates;
    });
    text += fmt::format("{}{}{}", text.empty() ? "" : "/", named->name,
                        part.window > 0 ? fmt::format(":{}", part.window) : "");
  }
  return text;
}

// Equal neighbours counted: "gqa/dense, 3 x gqa/moe".
std::string written_runs(std::span<const std::string> layers) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    while (end < layers.size() && layers[end] == layers[begin]) ++end;
    const size_t count = end - begin;
    text +=
        fmt::format("{}{}{}", text.empty() ? "" : ", ", count > 1 ? fmt::format("{} x ", count) : "", layers[begin]);
  }
  return text;
}

// The window of a layer: 0 (global) every attn_global_every-th layer and in the last one, else config.window.
int64_t window_of(const ModelConfig& config, int64_t layer_idx) {
  const bool last = layer_idx + 1 == config.num_layers;
  const bool global = last || (layer_idx + 1) % config.attn_global_every == 0;
  return global ? 0 : config.window;
}

std::vector<LayerSpec> layers_of_keys(const ModelConfig& config) {
  std::vector<LayerSpec> layers;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool dense = layer < config.num_dense_layers || config.moe.num_experts == 0;
    layers.push_back({.parts = {{.kind = config.attention, .window = window_of(config, layer)},
                                {.kind = dense ? PartKind::kDense : PartKind::kMoe,
                                 .hidden = dense ? config.dense_dim : config.moe.expert_dim}}});
  }
  return layers;
}

// `key`: whose value the pattern is.
std::vector<LayerSpec> layers_of_pattern(std::string_view key, std::string_view text, const ModelConfig& config) {
  LayerPattern pattern = read_layer_pattern(text);
  NMOE_CHECK(!pattern.problem, "{} = {}: character {}: {}", key, text, pattern.problem->character,
             pattern.problem->what);
  for (LayerSpec& layer : pattern.layers) {
    for (PartSpec& part : layer.parts) {
      if (is_mixer(part.kind) || part.hidden > 0) continue;
      part.hidden = part.kind == PartKind::kDense ? config.dense_dim : config.moe.expert_dim;
    }
  }
  return std::move(pattern.layers);
}

}  // namespace

LayerPattern read_layer_pattern(std::string_view text) {
  try {
    return {.layers = PatternReader(text).read(), .problem = {}};
  } catch (const LayerPattern::Problem& problem) {
    return {.layers = {}, .problem = problem};
  }
}

std::string write_layer_pattern(std::span<const LayerSpec> layers) {
  std::vector<std::string> written;
  for (const LayerSpec& layer : layers) written.push_back(written_layer(layer));
  const std::span<const std::string> all = written;
  for (size_t period = 2; period <= all.size() / 2; ++period) {
    const bool repeats =
        all.size() % period == 0 && std::ranges::equal(all.subspan(period), all.first(all.size() - period));
    const std::string once = written_runs(all.first(period));
    if (repeats && once.find(',') != std::string::npos) return fmt::format("{} x ({})", all.size() / period, once);
  }
  return written_runs(all);
}

std::vector<LayerSpec> layer_specs(const ModelConfig& config) {
  return config.layers.empty() ? layers_of_keys(config) : layers_of_pattern("model.layers", config.layers, config);
}

std::vector<LayerSpec> prediction_layer_specs(const ModelConfig& config) {
  if (config.mtp.depth == 0) return {};
  if (!config.mtp.layers.empty()) return layers_of_pattern("model.mtp.layers", config.mtp.layers, config);
  return {layer_specs(config).back()};
}

std::vector<LayerSpec> all_layer_specs(const ModelConfig& config) {
  std::vector<LayerSpec> all = layer_specs(config);
  const std::vector<LayerSpec> of_module = prediction_layer_specs(config);
  for (int64_t i = 0; i < config.mtp.num_modules(); ++i) all.insert(all.end(), of_module.begin(), of_module.end());
  return all;
}

std::vector<PartSpec> parts_of(std::span<const LayerSpec> layers) {
  std::vector<PartSpec> parts;
  for (const LayerSpec& layer : layers) parts.insert(parts.end(), layer.parts.begin(), layer.parts.end());
  return parts;
}

int64_t count_parts(std::span<const LayerSpec> layers, PartKind kind) {
  return std::ranges::count(parts_of(layers), kind, &PartSpec::kind);
}

std::vector<int64_t> moe_passes(const ModelConfig& config) {
  const std::vector<LayerSpec> specs = all_layer_specs(config);
  const size_t num_layers = layer_specs(config).size();
  std::vector<int64_t> passes;
  for (size_t layer = 0; layer < specs.size(); ++layer) {
    const int64_t of_part = layer < num_layers ? 1 : config.mtp.passes_of_a_module();
    passes.push_back(of_part * count_parts({&specs[layer], 1}, PartKind::kMoe));
  }
  return passes;
}

std::optional<ModelConfig> without_pattern(const ModelConfig& config) {
  if (config.layers.empty()) return config;
  const std::vector<LayerSpec> layers = layer_specs(config);
  if (!std::ranges::all_of(layers, [](const LayerSpec& layer) { return layer.parts.size() == 2; })) return std::nullopt;
  if (!is_attention(layers.front().parts.front().kind)) return std::nullopt;
  const auto is_dense = [](const LayerSpec& layer) { return layer.parts.back().kind == PartKind::kDense; };
  ModelConfig same = config;
  same.layers.clear();
  same.attention = layers.front().parts.front().kind;
  same.window = 0;
  same.num_layers = static_cast<int64_t>(layers.size());
  same.num_dense_layers = std::ranges::find_if_not(layers, is_dense) - layers.begin();
  for (const LayerSpec& layer : layers) {
    (is_dense(layer) ? same.dense_dim : same.moe.expert_dim) = layer.parts.back().hidden;
  }
  if (layer_specs(same) != layers) return std::nullopt;
  return same;
}

}  // namespace nmoe
