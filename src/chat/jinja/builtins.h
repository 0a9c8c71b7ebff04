// What templates can call: methods of values, filters, tests, functions. Those of Jinja and Python that chat templates
// use; the same names, arguments and results.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/value.h"

namespace nmoe::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by the names of parameters.
class Bound {
 public:
  // Failure for arguments that are too many, unknown or given twice. `what` names the callee.
  Bound(std::string_view what, const Arguments& arguments, std::vector<std::string_view> names);

  bool has(size_t i) const { return given_[i]; }
  // The argument i; Failure where it is missing or of another type.
  const Value& value(size_t i) const;
  const Text& text(size_t i) const;
  int64_t whole(size_t i) const;
  // The same, `otherwise` where it is missing or none.
  const Text* text_or_null(size_t i) const;
  int64_t whole_or(size_t i, int64_t otherwise) const;
  bool flag_or(size_t i, bool otherwise) const;

 private:
  [[noreturn]] void wrong(size_t i, const char* expected) const;

  std::string what_;
  std::vector<std::string_view> names_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

bool has_method(const Value& object, std::string_view name);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments);

bool is_filter(std::string_view name);
Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments);

bool is_test(std::string_view name);
bool takes_argument(std::string_view test);
bool apply_test(const std::string& name, const Value& input, const Arguments& arguments);

bool is_function(std::string_view name);
// `now` is what strftime_now writes.
Value call_function(const std::string& name, const Arguments& arguments, const std::tm& now);

// object.name and object[key]. What is not there is undefined; Failure where the object itself is.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);

}  // namespace nmoe::jinja
