// A choice that every layer of a model has: one for all of them, or one for each in runs of layers, such as
// "2 x norms, 24 x blocks" (kPerLayerGrammar).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// What such a choice is in TOML, in Markdown, as the reference of all keys has it.
inline constexpr std::string_view kPerLayerGrammar =
    R"md(A value alone is that of all layers. A list has the layers from first to last, `value {"," value}` with a count
before each that is for several layers, as in `"3 x norms, 24 x blocks"`; its counts add up to the model's layers.)md";

// Neighbouring layers with the same value; its name, where it has been read but not understood.
template <class T>
struct LayerRun {
  int64_t count = 1;  // of layers
  T value{};

  bool operator==(const LayerRun&) const = default;
};

template <class T>
class PerLayer {
 public:
  // The value of all layers, however many these are.
  PerLayer(T all = {}) : runs_{{0, all}} {}
  // Of layers from first to last: at least one run, each of at least one layer.
  explicit PerLayer(const std::vector<LayerRun<T>>& runs) {
    for (const LayerRun<T>& run : runs) {
      if (!runs_.empty() && runs_.back().value == run.value) {
        runs_.back().count += run.count;
      } else {
        runs_.push_back(run);
      }
    }
  }

  // Layers behind those that it lists have the last one's: those of modules behind a model's layers.
  T of(int64_t layer) const {
    const LayerRun<T>* run = runs_.data();
    while (run != &runs_.back() && layer >= run->count) layer -= (run++)->count;
    return run->value;
  }
  // How many layers it lists; 0 if it has one value for all.
  int64_t num_layers() const {
    int64_t sum = 0;
    for (const LayerRun<T>& run : runs_) sum += run.count;
    return sum;
  }
  // From first to last, neighbours with different values; one of 0 layers if it has one value for all.
  const std::vector<LayerRun<T>>& runs() const { return runs_; }
  template <class Predicate>
  bool any(const Predicate& is_so) const {
    return std::ranges::any_of(runs_, is_so, &LayerRun<T>::value);
  }

  bool operator==(const PerLayer&) const = default;

 private:
  std::vector<LayerRun<T>> runs_;
};

// The runs of a text, whose values are names; a name alone is a run of 0 layers. Nothing if it is no such text.
std::optional<std::vector<LayerRun<std::string_view>>> read_layer_runs(std::string_view text);
// The text of these.
std::string write_layer_runs(const std::vector<LayerRun<std::string_view>>& runs);

}  // namespace nmoe
