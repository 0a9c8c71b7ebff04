// The files of configs/eval, embedded when the program was built.
#pragma once

#include <span>
#include <string_view>

namespace nmoe {

struct BuiltinTasks {
  std::string_view name;
  std::string_view toml;
};
std::span<const BuiltinTasks> builtin_tasks();

}  // namespace nmoe
