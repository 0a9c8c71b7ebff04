// Errors a user can cause (Error) and invariants only we can break (NMOE_CHECK).
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace nmoe {

// What the process exits with: 2 for a wrong command line or configuration, 1 for what fails while running.
enum class ErrorKind { kUsage, kRuntime };

// A failure with its cause, its place and its remedy. Thrown anywhere, caught once in cli/program.cpp.
class Error : public std::runtime_error {
 public:
  // `what` says what is wrong and where (file:line, key, tensor); `remedy` what the user can do about it.
  Error(ErrorKind kind, const std::string& what, std::string remedy)
      : std::runtime_error(what), kind_(kind), remedy_(std::move(remedy)) {}

  ErrorKind kind() const { return kind_; }
  const std::string& remedy() const { return remedy_; }
  int exit_code() const { return kind_ == ErrorKind::kUsage ? 2 : 1; }

 private:
  ErrorKind kind_;
  std::string remedy_;
};

inline Error usage_error(const std::string& what, const std::string& remedy) {
  return Error(ErrorKind::kUsage, what, remedy);
}
inline Error runtime_error(const std::string& what, const std::string& remedy) {
  return Error(ErrorKind::kRuntime, what, remedy);
}

// An invariant of the program itself was broken: a bug, never the user's doing.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace nmoe

// NMOE_CHECK(cond, "format", values...): always on, also in release builds. The message prints values.
#define NMOE_CHECK(cond, ...)                                                      \
  do {                                                                             \
    if (!(cond)) [[unlikely]] {                                                    \
      ::nmoe::check_failed(__FILE__, __LINE__, #cond, ::fmt::format(__VA_ARGS__)); \
    }                                                                              \
  } while (false)
