// What reads bytes that others wrote, as functions of bytes: fuzzers call them, and the tests with the corpus.
#pragma once

#include <span>
#include <string_view>

namespace nmoe::fuzz {

struct Target {
  std::string_view name;  // also the folder of its corpus
  // Returns whatever the bytes are, good or refused with an Error. Anything else that happens is a defect: another
  // exception, a crash, a hang, memory without bound.
  void (*run)(std::string_view bytes);
};
std::span<const Target> targets();
const Target* find_target(std::string_view name);  // nullptr where there is none

}  // namespace nmoe::fuzz
