// What a rendering may still do. Templates are not trusted: one line of them can ask for more time and memory than
// there is.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace nmoe::jinja {

// Why a template cannot be parsed or rendered. The public interface (template.h) makes it an Error.
struct Failure {
  std::string what;
  int line = 0;  // of the template, from 1; 0: not yet known
};
template <class... Args>
[[noreturn]] void fail_at(int line, const Args&... parts) {
  std::string what;
  ((what += parts), ...);
  throw Failure{std::move(what), line};
}
template <class... Args>
[[noreturn]] void fail(const Args&... parts) {
  fail_at(0, parts...);
}

// A unit is a character that is made or looked at, and about 4 bytes: all that a rendering ever made, freed or not,
// stays below 4 bytes times the budget, and its time below some 20 ns times it.
inline constexpr int64_t kRenderUnits = 64 << 20;
inline constexpr int64_t kStepUnits = 16;   // of a statement or expression, of a value's own memory
inline constexpr int64_t kValueUnits = 10;  // of a place in a list

// While one exists, charge() in its thread takes from it; outside of any, all is free.
class Budget {
 public:
  explicit Budget(int64_t units);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

 private:
  int64_t* before_;
  int64_t left_;
};

// Failure when it is used up.
void charge(int64_t units);

}  // namespace nmoe::jinja
