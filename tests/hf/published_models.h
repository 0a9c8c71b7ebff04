// What tests of published models' config.json share.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "config/layers.h"
#include "config/load.h"
#include "config/schema.h"
#include "hf/config_json.h"
#include "model/spec/spec.h"
#include "support/errors.h"

namespace nmoe::test {

using Json = nlohmann::ordered_json;

inline Json common_keys() {
  return Json::parse(R"({"torch_dtype": "bfloat16", "attention_dropout": 0.0, "hidden_act": "silu", "use_cache": true,
    "initializer_range": 0.02, "tie_word_embeddings": false, "transformers_version": "4.51.0"})");
}
inline Json merged(Json json, const char* more) {
  json.update(Json::parse(more));
  return json;
}

inline HfModel read_json(const Json& json) { return from_config_json(json.dump(), "config.json"); }

// The keys of [model] that have an effect, except those that all these models have.
inline std::string printed_model(const ModelConfig& model) {
  Config config;
  config.model = model;
  std::ostringstream text;
  for (const Field& field : describe(config)) {
    if (field.used() && field.section().starts_with("model"))
      text << field.key << " = " << to_toml(field.get()) << "\n";
  }
  return text.str();
}

inline int64_t elements(const ModelConfig& config) {
  int64_t sum = 0;
  for (const WeightSpec& weight : describe_model(config).weights) sum += weight.shape.num_elements();
  return sum;
}

// Written from scratch and read again it is the same model; written on what it came from, that.
inline void expect_round_trip(const Json& json) {
  SCOPED_TRACE(json["model_type"]);
  const HfModel model = read_json(json);
  const std::string text = to_config_json(model);
  const HfModel again = from_config_json(text, "config.json");
  EXPECT_EQ(again.type, model.type);
  EXPECT_EQ(printed_model(again.config), printed_model(model.config));
  EXPECT_EQ(again.num_nextn_predict_layers, model.num_nextn_predict_layers);
  EXPECT_EQ(to_config_json(again), text);
  EXPECT_EQ(to_config_json(model, json.dump()), json.dump(2) + "\n");
  EXPECT_EQ(obstacles_to(model.config, model.type), std::vector<std::string>());
  const ModelType nearest = nearest_type(model.config);
  EXPECT_EQ(nearest, model.type == ModelType::kGlm4MoeLite ? ModelType::kDeepseekV3 : model.type);
}

// What configs/models/FILE.toml says of the model is what it says of itself; how it is balanced is its own.
inline void expect_is_published_model(const std::string& file, const Json& json) {
  const ModelConfig published = read_json(json).config;
  const auto path = std::filesystem::path(NMOE_SOURCE_DIR) / "configs/models" / (file + ".toml");
  ModelConfig own = load_config(path).model;
  own.moe.balance_loss = published.moe.balance_loss;
  own.moe.z_loss = published.moe.z_loss;
  own.moe.bias_rate = published.moe.bias_rate;
  own.init = published.init;
  own.mtp = published.mtp;
  EXPECT_EQ(layer_specs(own), layer_specs(published)) << file;
  own.layers = published.layers;
  EXPECT_EQ(printed_model(own), printed_model(published)) << file;
}

}  // namespace nmoe::test
