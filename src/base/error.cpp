#include "base/error.h"

namespace nmoe {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw CheckFailure(fmt::format("{}:{}: check '{}' failed: {}", file, line, condition, message));
}

}  // namespace nmoe
