// What enumerators are called in TOML, for those that are read in several places.
#pragma once

#include <string_view>

#include "config/config.h"

namespace nmoe {

template <class Enum>
struct Named {
  Enum value;
  std::string_view name;
};

inline constexpr Named<PartKind> kMixerNames[] = {{PartKind::kMla, "mla"}, {PartKind::kGqa, "gqa"}};

}  // namespace nmoe
