// The layers of a model, one by one, and the pattern that describes them compactly (kLayerPatternGrammar).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace nmoe {

// What a pattern is, in Markdown, as the reference of all keys has it.
inline constexpr std::string_view kLayerPatternGrammar = R"md(A pattern has the layers from first to last:

```
pattern      = item {"," item}
item         = [count "x"] (layer | "(" pattern ")")
layer        = mixer [":" window] "/" feed-forward [":" hidden]
mixer        = "mla" | "gqa"
feed-forward = "dense" | "moe"
```

`"mla/dense, 26 x mla/moe"` is one dense layer and 26 with experts; `"4 x (3 x gqa:512/moe, gqa/moe)"` is sixteen
layers, of which every fourth sees all positions and the others the last 512, their own included. Without `window` a
layer sees all; without `hidden` its hidden size is `model.dense_dim` or `model.moe.expert_dim`. Groups nest up to 16
deep; spaces between the parts are ignored.)md";

// Stands for the layer number of what belongs to no layer.
inline constexpr int64_t kNoLayer = -1;

struct LayerSpec {
  MixerKind mixer = MixerKind::kMla;
  int64_t window = 0;  // positions a token sees, itself included; 0: all before it
  FeedForwardKind feed_forward = FeedForwardKind::kDense;
  int64_t hidden = 0;  // width of the dense MLP, or of one routed expert; in a pattern 0: the configuration's

  bool operator==(const LayerSpec&) const = default;
};

// The layers that a pattern describes, or where it is wrong.
struct LayerPattern {
  struct Problem {
    size_t character = 0;  // from 1
    std::string what;      // "\"mlx\" is no mixer"
    std::string remedy;    // "write mla or gqa"
  };
  std::vector<LayerSpec> layers;
  std::optional<Problem> problem;  // then there are no layers
};
LayerPattern read_layer_pattern(std::string_view text);

// From first to last. The pattern, if there is one, must be valid (config/validate.h).
std::vector<LayerSpec> layer_specs(const ModelConfig& config);

// The same model without model.layers, expressed by the keys that it replaces; nothing if they cannot express it:
// several kinds of mixers, windows, dense layers after MoE layers, or differing hidden sizes.
std::optional<ModelConfig> without_pattern(const ModelConfig& config);

}  // namespace nmoe
