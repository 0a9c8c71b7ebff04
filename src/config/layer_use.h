// What the description of keys (config/schema.cpp) asks of a model's layers.
#pragma once

#include <algorithm>

#include "config/config.h"
#include "config/layers.h"

namespace nmoe {

// Which keys the layers of a model, and of its modules of multi-token prediction, have a use for. Of a pattern that
// cannot be read nothing is known: it could use all.
class LayerUse {
 public:
  explicit LayerUse(const ModelConfig& model) : by_keys_(model.layers.empty()) {
    if (!by_keys_) pattern_ = read_layer_pattern(model.layers);
    if (model.mtp.depth == 0 || model.mtp.layers.empty()) return;
    const LayerPattern modules = read_layer_pattern(model.mtp.layers);
    if (modules.problem) pattern_.problem = modules.problem;
    pattern_.layers.insert(pattern_.layers.end(), modules.layers.begin(), modules.layers.end());
  }

  bool by_keys() const { return by_keys_; }
  // Whether some part of the pattern's layers is so.
  template <class Predicate>
  bool any(const Predicate& is_so) const {
    return pattern_.problem.has_value() || std::ranges::any_of(parts_of(pattern_.layers), is_so);
  }
  bool has_mixer(const ModelConfig& model, PartKind kind) const {
    return by_keys_ ? model.attention == kind : any([&](const PartSpec& part) { return part.kind == kind; });
  }
  // Whether RoPE rotates anything.
  bool rotates() const {
    return by_keys_ || any([](const PartSpec& part) { return is_mixer(part.kind) && part.rotates; });
  }
  // Whether a part of this kind has no width of its own in the pattern.
  bool leaves_width(PartKind kind) const {
    return any([&](const PartSpec& part) { return part.kind == kind && part.hidden == 0; });
  }

 private:
  bool by_keys_;
  LayerPattern pattern_;
};

}  // namespace nmoe
