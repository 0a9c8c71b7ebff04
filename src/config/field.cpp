#include "config/field.h"

namespace nmoe {

std::string_view Field::section() const { return std::string_view(key).substr(0, key.rfind('.')); }

std::string_view Field::name() const { return std::string_view(key).substr(key.rfind('.') + 1); }

Field& Field::needs(bool met, std::string_view what) {
  conditions.emplace_back(what);
  if (!met && lacks.empty()) lacks = what;
  return *this;
}

Field& Field::not_in_fingerprint() {
  defines_run = false;
  return *this;
}

Field& Field::leave_out_if(bool condition) {
  left_out = condition;
  return *this;
}

}  // namespace nmoe
