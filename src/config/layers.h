// The layers of a model, one by one, and the pattern that describes them compactly (kLayerPatternGrammar).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
layer        = mixer "/" feed-forward | mixer | feed-forward
mixer        = ("mla" | "gqa" | "gqa_nope") [":" window] | "mamba2" | "gated_deltanet"
feed-forward = ("dense" | "moe") [":" hidden]
```

A layer has two parts, or one alone; each part has a norm before it and adds its output to the residual stream.
`"mla/dense, 26 x mla/moe"` is one dense layer and 26 with experts; `"4 x (3 x gqa:512/moe, gqa/moe)"` is sixteen
layers, of which every fourth sees all positions and the others the last 512, their own included;
`"gqa, moe, 3 x (moe, dense), gqa"` is nine layers of a single part each. `gqa_nope` is `gqa` without rotary positions,
as some models have in every fourth layer; `mamba2` and `gated_deltanet` are recurrent layers ([model.mamba2],
[model.gated_deltanet]), as in `"4 x (mamba2, moe), gqa_nope, moe"`. Without `window` a mixer sees all positions; without `hidden` the hidden size
of a feed-forward part is `model.dense_dim` or `model.moe.expert_dim`. Groups nest up to 16 deep; spaces between the
parts are ignored.)md";

// Stands for the layer number of what belongs to no layer.
inline constexpr int64_t kNoLayer = -1;

// A part of a layer.
struct PartSpec {
  PartKind kind = PartKind::kMla;
  int64_t window = 0;   // of a mixer: positions a token sees, itself included; 0: all before it
  bool rotates = true;  // of attention: whether RoPE rotates queries and keys
  int64_t hidden = 0;   // of a feed-forward part: width of the MLP, or of one routed expert; in a pattern 0: the
                        // configuration's

  bool operator==(const PartSpec&) const = default;
};

// A layer: parts that follow each other, each x += part(norm(x)) on the residual stream. At most one is a mixer, and at
// most one a feed-forward part, which is the last.
struct LayerSpec {
  std::vector<PartSpec> parts;

  bool operator==(const LayerSpec&) const = default;
};

// The layers that a pattern describes, or where it is wrong.
struct LayerPattern {
  struct Problem {
    size_t character = 0;  // from 1
    std::string what;      // "\"mlx\" is not a part of a layer"
    std::string remedy;    // "write mla, gqa, gqa_nope, mamba2, gated_deltanet, dense or moe"
  };
  std::vector<LayerSpec> layers;
  std::optional<Problem> problem;  // then there are no layers
};
LayerPattern read_layer_pattern(std::string_view text);

// A pattern of these layers, without hidden sizes: those are the configuration's keys.
std::string write_layer_pattern(std::span<const LayerSpec> layers);

// From first to last. The pattern, if there is one, must be valid (config/validate.h).
std::vector<LayerSpec> layer_specs(const ModelConfig& config);

// Those of one module of multi-token prediction (MtpConfig); none without any.
std::vector<LayerSpec> prediction_layer_specs(const ModelConfig& config);
// The model's, then each module's: in the numbering of WeightSpec::layer.
std::vector<LayerSpec> all_layer_specs(const ModelConfig& config);

// All parts of these layers, in their order.
std::vector<PartSpec> parts_of(std::span<const LayerSpec> layers);
// How many of them are of this kind.
int64_t count_parts(std::span<const LayerSpec> layers, PartKind kind);
// How often tokens go through experts in each of all_layer_specs(): more than once where depths share a module.
std::vector<int64_t> moe_passes(const ModelConfig& config);

// The same model without model.layers, expressed by the keys that it replaces; nothing if they cannot express it:
// layers of a single part, several kinds of mixers or recurrent ones, windows, dense layers after MoE layers, or
// differing hidden sizes.
std::optional<ModelConfig> without_pattern(const ModelConfig& config);

}  // namespace nmoe
