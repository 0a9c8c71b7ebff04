// [model.scaling]: the keys, and the model that they describe as the base of the rule.
#pragma once

#include <span>
#include <string_view>

#include "config/config.h"
#include "config/field_list.h"

namespace nmoe {

// A size of a model in which its base may differ.
struct BaseSize {
  std::string_view section;  // below [model], with its dot: "moe."; "" for [model] itself
  std::string_view name;     // "expert_dim"
  int64_t& (*of)(ModelConfig& model);

  std::string key() const { return std::string(section) + std::string(name); }
};
std::span<const BaseSize> base_sizes();

// The section's keys, of which those of the base are 0, or empty, where it has what the model has.
void describe_scaling(FieldList& fields, ScalingConfig& scaling);

// The model with the sizes of its base, and without a rule.
ModelConfig scaling_base(const ModelConfig& model);

}  // namespace nmoe
