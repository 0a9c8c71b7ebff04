// Configurations in which, taken together, every key has an effect.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "config/schema.h"

namespace nmoe {

inline Config dense_gqa_config() {
  return parse_config(R"(
    [model]
    attention = "gqa"
    window = 32
    attn_global_every = 2
    [data]
    mixture = "mixture.toml"
    profile = "full"
    mask_documents = true
    align_documents = 16
    [optim.schedule]
    warmup = 10)",
                      "dense_gqa.toml");
}

inline Config mla_moe_config() {
  return parse_config(R"(
    [model.yarn]
    factor = 2
    [model.moe]
    num_experts = 8
    num_groups = 2
    [optim.experts]
    optimizer = "muon"
    [optim.schedule]
    decay = 100
    [train]
    microbatch_seqs = 8
    valid_every = 5
    target_loss = 3.28
    sample_prompts = ["Once"]
    [parallel]
    ranks = 2
    [eval]
    every = 5)",
                      "mla_moe.toml");
}

inline Config hybrid_config() {
  return parse_config(R"toml(
    [model]
    layers = "mla/dense, 2 x (gqa:16/moe, gqa/moe:64)"
    [model.moe]
    num_experts = 8)toml",
                      "hybrid.toml");
}

inline Config low_precision_config() {
  return parse_config(R"(
    run.precision = "fp8"
    precision.fallback = "act"
    [model.moe]
    num_experts = 8)",
                      "low_precision.toml");
}

inline Config nvfp4_config() {
  return parse_config(R"(
    run.precision = "nvfp4"
    precision.nvfp4_transform = false
    [model.moe]
    num_experts = 8)",
                      "nvfp4.toml");
}

inline Config long_rope_config() {
  return parse_config(R"(
    [model]
    attention = "gqa"
    [model.rope]
    scaling = "llama3"
    [model.gqa]
    qk_norm = true
    rotary_dim = 32
    bias = "all"
    [model.moe]
    num_experts = 8
    shared_gate = true)",
                      "long_rope.toml");
}

inline Config predicting_config() {
  return parse_config(R"(
    [model.mtp]
    depth = 2
    shared = true
    later_from = 5)",
                      "predicting.toml");
}

// With a base of other sizes and a schedule in shares.
inline Config scaled_config() {
  return parse_config(R"(
    [model.mla]
    q_lora_rank = 32
    [model.moe]
    num_experts = 8
    [model.scaling]
    rule = "completep"
    base = { dim = 128, mla.q_lora_rank = 16, moe.expert_dim = 64 }
    [optim.schedule]
    warmup = "5%"
    hold = "rest"
    decay = "40.5%"
    length = 200)",
                      "scaled.toml");
}

inline Config recurrent_config() {
  return parse_config(R"toml(
    [model]
    layers = "3 x (mamba2, moe), gqa, gated_deltanet/moe"
    [model.moe]
    num_experts = 8)toml",
                      "recurrent.toml");
}

inline std::vector<Config> all_kinds_of_configs() {
  return {Config(),       dense_gqa_config(), mla_moe_config(),    hybrid_config(),    low_precision_config(),
          nvfp4_config(), long_rope_config(), predicting_config(), recurrent_config(), scaled_config()};
}

// The values of all keys, those without effect included.
inline std::vector<std::string> values_of(Config config) {
  std::vector<std::string> values;
  for (const Field& field : describe(config)) {
    values.push_back(field.key + " = " + to_toml(field.get()));
  }
  return values;
}

// Gives the key another value that it takes. False when it takes only the one it has.
inline bool change(const Field& field) {
  const Value old = field.get();
  std::vector<Value> others;
  if (const auto* flag = std::get_if<bool>(&old)) others = {!*flag};
  if (const auto* integer = std::get_if<int64_t>(&old)) others = {*integer + 1, *integer - 1};
  if (const auto* real = std::get_if<double>(&old)) others = {*real * 2.0 + 0.25, *real / 2.0};
  if (field.is_text) others = {"8 GiB", "another"};  // one of them suits every text
  if (std::holds_alternative<std::vector<std::string>>(old)) others = {std::vector<std::string>{"one", "another"}};
  if (std::holds_alternative<std::string>(old)) others.insert(others.end(), {"7.5%", int64_t{3}});  // of spans
  others.insert(others.end(), field.names.begin(), field.names.end());
  for (const Value& other : others) {
    if (other != old && field.set(other)) return true;
  }
  return false;
}

}  // namespace nmoe
