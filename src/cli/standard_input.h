// Standard input, for commands that read a text from it.
#pragma once

#include <iostream>
#include <iterator>
#include <string>

namespace nmoe::cli {

inline std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

}  // namespace nmoe::cli
