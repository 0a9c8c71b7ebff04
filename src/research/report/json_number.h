// Numbers that may be unknown, for programs.
#pragma once

#include <optional>

#include "base/json.h"

namespace nmoe {

inline nlohmann::ordered_json number_json(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace nmoe
