#include "hf/tensor_map.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/spec/moe.h"
#include "model/spec/spec.h"

namespace nmoe {
namespace {

constexpr std::string_view kExperts = ".experts.";

// Collects the pieces of one parameter, top to bottom.
class Pieces {
 public:
  // `block`: what all tensors of the layer's one part begin with, where a type has such layers, in place of what the
  // names below begin with.
  Pieces(const WeightSpec& weight, std::string layer, std::string_view block = "")
      : shape_(weight.shape), layer_(std::move(layer)), block_(block) {}

  // The next rows are all of `tensor` (within the layer), which has `rows` rows; 0: those that are left.
  void whole(const std::string& tensor, int64_t rows = 0) {
    const int64_t count = rows == 0 ? num_left() : rows * row_size();
    add(tensor, tensor_shape(count), 0, count);
  }
  // All of a vector is the one row of `tensor`, which is a matrix.
  void row(const std::string& tensor) { add(tensor, {1, num_left()}, 0, num_left()); }
  // All rows are those of `tensor` from `first_row` on, of the `tensor_rows` it has.
  void part(const std::string& tensor, int64_t first_row, int64_t tensor_rows) {
    add(tensor, {tensor_rows, width()}, first_row * width(), num_left());
  }
  // All rows are the columns from `first_column` on of `tensor`, which has `tensor_columns`.
  void columns(const std::string& tensor, int64_t first_column, int64_t tensor_columns) {
    for (int64_t row = 0; row < shape_[0]; ++row) {
      add(tensor, {shape_[0], tensor_columns}, row * tensor_columns + first_column, width());
    }
  }
  // The next `rows` rows are rows of `tensor`, which has `tensor_rows`: the i-th is its row row_of(i). Of a vector,
  // rows are elements.
  template <class RowOf>
  void scattered(const std::string& tensor, int64_t rows, int64_t tensor_rows, const RowOf& row_of) {
    const Shape whole = tensor_shape(tensor_rows * row_size());
    for (int64_t row = 0; row < rows; ++row) add(tensor, whole, row_of(row) * row_size(), row_size());
  }
  // The next rows * width elements are spread over `tensor` (TensorPiece) from its element `first` on.
  void spread(const std::string& tensor, const Shape& tensor_shape, int64_t first, int64_t rows, int64_t width,
              int64_t row_step, int64_t column_step) {
    pieces_.push_back({.tensor = named(tensor),
                       .tensor_shape = tensor_shape,
                       .tensor_offset = first,
                       .parameter_offset = offset_,
                       .num_elements = rows * width,
                       .width = width,
                       .row_step = row_step,
                       .column_step = column_step});
    offset_ += rows * width;
  }
  // All of the next is all of `tensor`, of the same shape.
  void same(const std::string& tensor) { add(tensor, shape_, 0, num_left()); }
  // The same of a matrix, whose tensor has a dimension of 1 between the two.
  void channels(const std::string& tensor) { add(tensor, {shape_[0], 1, width()}, 0, num_left()); }
  std::vector<TensorPiece> take() {
    NMOE_CHECK(num_left() == 0, "{} elements of {} are mapped to nothing", num_left(), shape_);
    return std::move(pieces_);
  }

 private:
  int64_t width() const { return shape_[-1]; }
  int64_t row_size() const { return shape_.rank() == 1 ? 1 : width(); }
  int64_t num_left() const { return shape_.num_elements() - offset_; }
  std::string named(const std::string& tensor) const {
    return layer_ + (block_.empty() ? tensor : block_ + tensor.substr(tensor.find('.') + 1));
  }
  Shape tensor_shape(int64_t count) const {
    return shape_.rank() == 1 ? Shape{count} : Shape{count / width(), width()};
  }
  void add(const std::string& tensor, Shape tensor_shape, int64_t tensor_offset, int64_t count) {
    pieces_.push_back({named(tensor), tensor_shape, tensor_offset, offset_, count});
    offset_ += count;
  }

  Shape shape_;
  std::string layer_, block_;
  int64_t offset_ = 0;
  std::vector<TensorPiece> pieces_;
};

// Parameters under Hugging Face's name that are the same tensor there.
struct SameTensor {
  std::string_view parameter;
  std::string_view tensor;
};
constexpr SameTensor kModelTensors[] = {
    {"embedding", "model.embed_tokens.weight"}, {"final_norm", "model.norm.weight"}, {"head", "lm_head.weight"}};
constexpr SameTensor kHybridModelTensors[] = {
    {"embedding", "backbone.embeddings.weight"}, {"final_norm", "backbone.norm_f.weight"}, {"head", "lm_head.weight"}};
constexpr std::string_view kHybridBlock = "mixer.", kHybridNorm = "norm.weight";
constexpr SameTensor kLayerTensors[] = {{"attention_norm", "input_layernorm.weight"},
                                        {"mlp_norm", "post_attention_layernorm.weight"},
                                        {"attention.out", "self_attn.o_proj.weight"}};
constexpr SameTensor kModuleTensors[] = {
    {"embedding_norm", "enorm.weight"}, {"hidden_norm", "hnorm.weight"}, {"final_norm", "shared_head.norm.weight"}};
constexpr SameTensor kDenseTensors[] = {{"mlp.out", "mlp.down_proj.weight"}};
constexpr SameTensor kLatentTensors[] = {{"attention.q_down", "self_attn.q_a_proj.weight"},
                                         {"attention.q_norm", "self_attn.q_a_layernorm.weight"},
                                         {"attention.kv_norm", "self_attn.kv_a_layernorm.weight"},
                                         {"attention.kv_up", "self_attn.kv_b_proj.weight"}};
constexpr SameTensor kMamba2Tensors[] = {
    {"mamba2.conv_bias", "mixer.conv1d.bias"}, {"mamba2.dt_bias", "mixer.dt_bias"},
    {"mamba2.a_log", "mixer.A_log"},           {"mamba2.d", "mixer.D"},
    {"mamba2.norm", "mixer.norm.weight"},      {"mamba2.out", "mixer.out_proj.weight"}};
constexpr SameTensor kGroupedTensors[] = {
    {"attention.q", "self_attn.q_proj.weight"},      {"attention.k", "self_attn.k_proj.weight"},
    {"attention.v", "self_attn.v_proj.weight"},      {"attention.out_bias", "self_attn.o_proj.bias"},
    {"attention.q_norm", "self_attn.q_norm.weight"}, {"attention.k_norm", "self_attn.k_norm.weight"},
    {"attention.sinks", "self_attn.sinks"}};

template <size_t N>
bool map_same(const SameTensor (&table)[N], std::string_view name, Pieces& pieces) {
  for (const SameTensor& same : table) {
    if (same.parameter != name) continue;
    pieces.whole(std::string(same.tensor));
    return true;
  }
  return false;
}

// Gate, then up: SwiGLU's stacked first layer. "" as the gate: there is none.
void map_gated(const std::string& gate, const std::string& up, int64_t hidden, Pieces& pieces) {
  if (!gate.empty()) pieces.whole(gate + ".weight", hidden);
  pieces.whole(up + ".weight", hidden);
}

// Where a row of a rotated head is in a type's tensors, if they pair rows otherwise: pair p of R rows is (2p, 2p + 1)
// or (p, p + R/2), with the same angle in both (RopeLayout). The order of a head's rows means nothing else: queries and
// keys meet in sums over all of them.
class RowOrder {
 public:
  RowOrder(RopeLayout layout, ModelType type) : from_(layout), to_(only_rope_layout(type).value_or(layout)) {}

  bool differs() const { return from_ != to_; }
  // The rows of a head, one after the other: some that do not rotate, those that do, and more that do not.
  struct Head {
    int64_t plain = 0, rotated = 0, rest = 0;
  };
  int64_t row_of(int64_t row, const Head& head) const {
    const int64_t rotated = head.rotated, half = rotated / 2;
    const int64_t at = row % (head.plain + rotated + head.rest) - head.plain;
    if (at < 0 || at >= rotated || !differs()) return row;
    const bool interleaved = from_ == RopeLayout::kInterleaved;
    const int64_t pair = interleaved ? at / 2 : at % half, second = interleaved ? at % 2 : at / half;
    return row - at + (interleaved ? pair + second * half : 2 * pair + second);
  }

 private:
  RopeLayout from_, to_;
};

bool map_latent_attention(const ModelConfig& config, const RowOrder& order, std::string_view name, Pieces& pieces) {
  const MlaConfig& mla = config.mla;
  const int64_t plain = mla.qk_nope_head_dim, rotated = mla.qk_rope_head_dim;
  const std::string q = mla.q_lora_rank > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight";
  const std::string joint = "self_attn.kv_a_proj_with_mqa.weight";
  const int64_t joint_rows = mla.kv_lora_rank + rotated;
  if (map_same(kLatentTensors, name, pieces)) return true;
  if (name == "attention.q" && order.differs()) {
    const int64_t rows = config.num_heads * (plain + rotated);
    pieces.scattered(q, rows, rows,
                     [&](int64_t row) { return order.row_of(row, {.plain = plain, .rotated = rotated}); });
  } else if (name == "attention.q") {
    pieces.whole(q);
  } else if (name == "attention.kv_down") {
    pieces.part(joint, 0, joint_rows);
  } else if (name == "attention.k_rope" && order.differs()) {
    pieces.scattered(joint, rotated, joint_rows,
                     [&](int64_t row) { return mla.kv_lora_rank + order.row_of(row, {.rotated = rotated}); });
  } else if (name == "attention.k_rope") {
    pieces.part(joint, mla.kv_lora_rank, joint_rows);
  } else {
    return false;
  }
  return true;
}

bool map_grouped_attention(const ModelConfig& config, const RowOrder& order, std::string_view name, Pieces& pieces) {
  const GqaConfig& gqa = config.gqa;
  const int64_t C = gqa.head_dim;
  const auto row_of = [&](int64_t row) {
    return order.row_of(row, {.rotated = gqa.rotated(), .rest = C - gqa.rotated()});
  };
  // Rows of a tensor, which belong to so many heads; those that do not rotate are where they are.
  const auto map_heads = [&](const std::string& tensor, int64_t heads, bool rotates) {
    if (rotates && order.differs()) {
      pieces.scattered(tensor, heads * C, heads * C, row_of);
    } else {
      pieces.whole(tensor, heads * C);
    }
  };
  if (name == "attention.qkv_bias") {
    map_heads("self_attn.q_proj.bias", config.num_heads, true);
    map_heads("self_attn.k_proj.bias", gqa.num_kv_heads, true);
    map_heads("self_attn.v_proj.bias", gqa.num_kv_heads, false);
    return true;
  }
  const bool over_all = gqa.qk_norm_over == QkNormOver::kAllHeads;
  for (const auto& [parameter, heads] : {std::pair<std::string_view, int64_t>("attention.q", config.num_heads),
                                         {"attention.k", gqa.num_kv_heads},
                                         {"attention.q_norm", over_all ? config.num_heads : 1},
                                         {"attention.k_norm", over_all ? gqa.num_kv_heads : 1}}) {
    if (name != parameter) continue;
    const auto* const same = std::ranges::find(kGroupedTensors, name, &SameTensor::parameter);
    map_heads(std::string(same->tensor), heads, true);
    return true;
  }
  return map_same(kGroupedTensors, name, pieces);
}

// The rows of one projection, [z | x | B | C | dt].
bool map_mamba2(const Mamba2Config& config, std::string_view name, Pieces& pieces) {
  const int64_t W = config.width(), G = config.group_width(), H = config.num_heads, rows = 2 * W + 2 * G + H;
  int64_t first = 0;
  for (const auto& [section, size] : {std::pair<std::string_view, int64_t>("mamba2.z", W),
                                      {"mamba2.x", W},
                                      {"mamba2.b", G},
                                      {"mamba2.c", G},
                                      {"mamba2.dt", H}}) {
    if (name == section) {
      pieces.part("mixer.in_proj.weight", first, rows);
      return true;
    }
    first += size;
  }
  if (name != "mamba2.conv") return map_same(kMamba2Tensors, name, pieces);
  pieces.channels("mixer.conv1d.weight");
  return true;
}

bool map_dense(const LayerPart& part, ModelType type, std::string_view name, Pieces& pieces) {
  if (name != "mlp.in") return map_same(kDenseTensors, name, pieces);
  map_gated(is_hybrid(type) ? "" : "mlp.gate_proj", "mlp.up_proj", part.spec.hidden, pieces);
  return true;
}

// Experts and biases of a type that has those of a layer in one tensor.
bool map_experts_in_one(const LayerPart& part, std::string_view name, Pieces& pieces) {
  const int64_t E = part.config.moe.num_experts, D = travelling_width(part.config), F = part.spec.hidden;
  if (name == "moe.experts_in") {
    for (int64_t i = 0; i < 2 * E; ++i) {  // of each expert its gates, then what they gate
      pieces.spread("mlp.experts.gate_up_proj", {E, D, 2 * F}, i / 2 * D * 2 * F + i % 2, F, D, 2, 2 * F);
    }
  } else if (name == "moe.experts_in_bias") {
    for (int64_t i = 0; i < 2 * E; ++i) {
      pieces.spread("mlp.experts.gate_up_proj_bias", {E, 2 * F}, i / 2 * 2 * F + i % 2, F, 1, 2, 1);
    }
  } else if (name == "moe.experts_out") {
    for (int64_t e = 0; e < E; ++e) pieces.spread("mlp.experts.down_proj", {E, F, D}, e * D * F, D, F, 1, D);
  } else if (name == "moe.experts_out_bias") {
    pieces.whole("mlp.experts.down_proj_bias");
  } else if (name == "moe.logit_bias") {
    pieces.same("mlp.router.bias");
  } else {
    return false;
  }
  return true;
}

bool map_moe(const LayerPart& part, ModelType type, std::string_view name, Pieces& pieces) {
  const MoeConfig& moe = part.config.moe;
  const ExpertNames names = expert_names(type);
  const std::string block(names.block), shared = block + std::string(names.shared);
  const auto expert = [&](int64_t e, std::string_view matrix) {
    return matrix.empty() ? "" : fmt::format("{}experts.{}.{}", block, e, matrix);
  };
  if (names.in_one_tensor && map_experts_in_one(part, name, pieces)) return true;
  if (name == "moe.router") {
    pieces.whole(block + std::string(names.router));
  } else if (name == "moe.shared.in") {
    map_gated(names.gate.empty() ? "" : shared + "gate_proj", shared + "up_proj", shared_width(part), pieces);
  } else if (name == "moe.latent_down" || name == "moe.latent_up") {
    pieces.whole(block + (name == "moe.latent_down" ? "fc1_latent_proj.weight" : "fc2_latent_proj.weight"));
  } else if (name == "moe.shared.out") {
    pieces.whole(shared + "down_proj.weight");
  } else if (name == "moe.shared.gate") {
    pieces.whole(block + std::string(names.shared_gate));
  } else if (name == "moe.experts_in") {
    for (int64_t e = 0; e < moe.num_experts; ++e) {
      map_gated(expert(e, names.gate), expert(e, names.up), part.spec.hidden, pieces);
    }
  } else if (name == "moe.experts_out") {
    for (int64_t e = 0; e < moe.num_experts; ++e) {
      pieces.whole(expert(e, names.down) + ".weight", travelling_width(part.config));
    }
  } else if (name == "moe.router_bias" && has_selection_bias(type)) {
    const std::string tensor = block + std::string(names.selection_bias);
    names.bias_is_matrix ? pieces.row(tensor) : pieces.whole(tensor);
  } else {
    return false;
  }
  return true;
}

bool map_part(const LayerPart& part, ModelType type, std::string_view name, Pieces& pieces) {
  const RowOrder order(part.config.rope.layout, type);
  switch (part.spec.kind) {
    case PartKind::kMla:
      return map_latent_attention(part.config, order, name, pieces);
    case PartKind::kGqa:
      return map_grouped_attention(part.config, order, name, pieces);
    case PartKind::kMamba2:
      return map_mamba2(part.config.mamba2, name, pieces);
    case PartKind::kGatedDeltaNet:
      return false;
    case PartKind::kDense:
      return map_dense(part, type, name, pieces);
    case PartKind::kMoe:
      return map_moe(part, type, name, pieces);
  }
  return false;
}

std::vector<TensorPiece> pieces_of_model(const WeightSpec& weight, ModelType type) {
  Pieces pieces(weight, "");
  const bool found = is_hybrid(type) ? map_same(kHybridModelTensors, weight.name, pieces)
                                     : map_same(kModelTensors, weight.name, pieces);
  NMOE_CHECK(found, "weight {} has no counterpart", weight.name);
  return pieces.take();
}

// What the names of tensors of a layer begin with.
std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

// The same of a hybrid of so many layers, behind which those of its one module count from 0 again.
std::string hybrid_layer_prefix(int64_t layer, int64_t num_layers) {
  return layer < num_layers ? fmt::format("backbone.layers.{}.", layer)
                            : fmt::format("mtp.layers.{}.", layer - num_layers);
}

// Of a module, without its layer.
std::optional<std::vector<TensorPiece>> pieces_of_module(const ModelConfig& config, ModelType type,
                                                         const WeightSpec& weight) {
  const int64_t num_layers = std::ssize(layer_specs(config));
  for (int64_t module = 0; module < config.mtp.num_modules(); ++module) {
    const std::string prefix = prediction_prefix(module);
    if (!weight.name.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(weight.name).substr(prefix.size());
    if (is_hybrid(type) && name == "final_norm") {  // behind its last layer
      const int64_t last = num_layers + std::ssize(prediction_layer_specs(config)) - 1;
      Pieces pieces(weight, hybrid_layer_prefix(last, num_layers));
      pieces.whole("final_layernorm.weight");
      return pieces.take();
    }
    Pieces pieces(weight,
                  is_hybrid(type) ? hybrid_layer_prefix(num_layers, num_layers) : layer_prefix(num_layers + module));
    if (map_same(kModuleTensors, name, pieces)) return pieces.take();
    if (!name.starts_with("projection_")) break;
    pieces.columns("eh_proj.weight", name == "projection_hidden" ? config.dim : 0, 2 * config.dim);
    return pieces.take();
  }
  return std::nullopt;
}

// Of a layer that consists of these parts.
std::vector<TensorPiece> pieces_of_layer(const std::vector<LayerPart>& parts, int64_t num_layers, ModelType type,
                                         const WeightSpec& weight) {
  const std::string& prefix = parts.front().prefix;
  const std::string_view name = std::string_view(weight.name).substr(prefix.size());
  if (is_hybrid(type)) {
    NMOE_CHECK(parts.size() == 1, "layer {} of {} parts", weight.layer, parts.size());
    const bool is_norm = weight.name == parts.front().norm_name();
    Pieces pieces(weight, hybrid_layer_prefix(weight.layer, num_layers), is_norm ? "" : kHybridBlock);
    if (is_norm) pieces.whole(std::string(kHybridNorm));
    NMOE_CHECK(is_norm || map_same(kLayerTensors, name, pieces) || map_part(parts.front(), type, name, pieces),
               "weight {} has no counterpart", weight.name);
    return pieces.take();
  }
  Pieces pieces(weight, layer_prefix(weight.layer));
  const auto maps = [&](const LayerPart& part) { return map_part(part, type, name, pieces); };
  if (map_same(kLayerTensors, name, pieces) || std::ranges::any_of(parts, maps)) return pieces.take();
  NMOE_CHECK(name == "moe.router_bias", "weight {} has no counterpart", weight.name);
  return {};
}

}  // namespace

std::vector<MappedParameter> map_parameters(const ModelConfig& config, ModelType type) {
  std::vector<std::vector<LayerPart>> layers = layer_parts(config);
  const auto num_layers = std::ssize(layers);
  NMOE_CHECK(config.mtp.depth == 0 ||
                 (predicts_further(type) &&
                  (is_hybrid(type) ? config.mtp.num_modules() == 1 : prediction_layer_specs(config).size() == 1)),
             "{} modules of {} layers, of a type without", config.mtp.num_modules(),
             prediction_layer_specs(config).size());
  std::ranges::move(prediction_parts(config), std::back_inserter(layers));
  std::vector<MappedParameter> mapped;
  for (const WeightSpec& weight : describe_model(config).weights) {
    std::optional<std::vector<TensorPiece>> pieces = pieces_of_module(config, type, weight);
    if (!pieces) {
      pieces = weight.layer == kNoLayer
                   ? pieces_of_model(weight, type)
                   : pieces_of_layer(layers[static_cast<size_t>(weight.layer)], num_layers, type, weight);
    }
    MappedParameter& parameter = mapped.emplace_back(weight.name, weight.shape, *std::move(pieces));
    for (int64_t module = 0; module < config.mtp.num_modules() && !is_hybrid(type); ++module) {
      const std::string prefix = layer_prefix(num_layers + module);
      const bool is_embedding = weight.name == "embedding";
      if (is_embedding) parameter.copies.push_back(prefix + "embed_tokens.weight");
      if (weight.name == "head" || (is_embedding && config.tied_head)) {
        parameter.copies.push_back(prefix + "shared_head.head.weight");
      }
    }
  }
  return mapped;
}

bool predicts_further(ModelType type) {
  return type == ModelType::kDeepseekV3 || type == ModelType::kKimiK2 || type == ModelType::kGlm4Moe ||
         type == ModelType::kGlm4MoeLite || type == ModelType::kNemotronH;
}

bool has_selection_bias(ModelType type) { return !expert_names(type).selection_bias.empty(); }

bool is_selection_bias(const std::string& tensor) { return tensor.ends_with("e_score_correction_bias"); }

std::string module_name(const std::string& tensor) {
  constexpr std::string_view kBlock = ".block_sparse_moe.", kBackbone = "backbone.";
  if (tensor.starts_with(kBackbone)) return "model." + tensor.substr(kBackbone.size());
  const size_t block = tensor.find(kBlock);
  return block == std::string::npos ? tensor : std::string(tensor).replace(block, kBlock.size(), ".mlp.");
}

std::string fused_expert_name(const std::string& tensor) {
  const std::string name = module_name(tensor);
  const size_t experts = name.find(kExperts);
  if (experts == std::string::npos) return "";
  const char next = name[experts + kExperts.size()];
  if (next < '0' || next > '9') return "";
  const bool is_down = name.ends_with(".down_proj.weight") || name.ends_with(".w2.weight");
  const bool has_gate = name.find(".mixer.experts.") == std::string::npos;
  return name.substr(0, experts + kExperts.size()) + (is_down ? "down_proj" : has_gate ? "gate_up_proj" : "up_proj");
}

}  // namespace nmoe
