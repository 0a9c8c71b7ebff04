#include "config/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr std::string_view kPrefix = "NMOE_";

bool is_expandable(std::string_view variable) {
  constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return variable.starts_with(kPrefix) && variable.size() > kPrefix.size() &&
         variable.find_first_not_of(kCharacters) == std::string_view::npos;
}

// Whether a name says so, in one of the words between its underscores: NMOE_API_KEY, NMOE_DB_PASSWORD_2,
// NMOE_SECRET_FILE, NMOE_HFTOKEN. NMOE_TOKENS and NMOE_MONKEY are none.
bool names_secret(std::string_view variable) {
  constexpr std::string_view kWords[] = {"KEY",   "KEYS", "PASS",   "PWD",    "PW",  "CRED",
                                         "CREDS", "AUTH", "BEARER", "COOKIE", "JWT", "PRIVATE"};
  constexpr std::string_view kParts[] = {"SECRET",     "PASSWORD", "PASSWD",    "PASSPHRASE", "PASSCODE",
                                         "CREDENTIAL", "APIKEY",   "ACCESSKEY", "PRIVATEKEY", "SSHKEY"};
  for (variable.remove_prefix(kPrefix.size()); !variable.empty();) {
    const size_t end = std::min(variable.find('_'), variable.size());
    std::string_view word = variable.substr(0, end);
    variable.remove_prefix(std::min(end + 1, variable.size()));
    word = word.substr(0, word.find_last_not_of("0123456789") + 1);
    const auto is_in = [word](std::string_view part) { return word.find(part) != std::string_view::npos; };
    if (std::ranges::find(kWords, word) != std::end(kWords) || word.ends_with("TOKEN") ||
        std::ranges::any_of(kParts, is_in)) {
      return true;
    }
  }
  return false;
}

// What stands between "${" and "}".
std::string expand_one(std::string_view expression, std::string_view place) {
  const size_t separator = expression.find(":-");
  const std::string variable(expression.substr(0, separator));
  if (!is_expandable(variable)) {
    const bool has_prefix = variable.starts_with(kPrefix) && variable.size() > kPrefix.size();
    throw usage_error(fmt::format("{}: ${{{}}} is not expanded: its name {}", place, expression,
                                  has_prefix ? "has other characters than A to Z, 0 to 9 and _"
                                             : fmt::format("does not start with {}", kPrefix)),
                      "write ${NMOE_NAME} or ${NMOE_NAME:-default}");
  }
  // A configuration is kept as it was understood, in checkpoints and their copies.
  if (names_secret(variable)) {
    throw usage_error(fmt::format("{}: {} names a secret, which checkpoints would keep", place, variable),
                      "take a variable of another name: those with KEY, SECRET, TOKEN, PASSWORD and the like are not "
                      "expanded");
  }
  if (expression.find("${") != std::string_view::npos) {
    throw usage_error(fmt::format("{}: the default of {} contains \"${{\" itself: {}", place, variable, expression),
                      "write a default that is to be taken as it is");
  }
  const char* value = std::getenv(variable.c_str());
  if (separator != std::string_view::npos) {
    if (value == nullptr || *value == '\0') return std::string(expression.substr(separator + 2));
  } else if (value == nullptr) {
    throw usage_error(fmt::format("{}: the environment variable {} is not set", place, variable),
                      fmt::format("set it, or give a default: ${{{}:-default}}", variable));
  }
  if (std::string_view(value).find("${") != std::string_view::npos) {
    throw usage_error(fmt::format("{}: the value of {} contains \"${{\" itself: {}", place, variable, value),
                      fmt::format("set {} to a value to be taken as it is", variable));
  }
  return value;
}

}  // namespace

std::string expand_environment(std::string_view text, std::string_view place) {
  std::string result;
  while (true) {
    const size_t begin = text.find("${");
    result += text.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const size_t end = text.find('}', begin);
    if (end == std::string_view::npos) {
      throw usage_error(fmt::format("{}: \"{}\" has no closing brace", place, text.substr(begin)),
                        "write ${NMOE_NAME} or ${NMOE_NAME:-default}");
    }
    result += expand_one(text.substr(begin + 2, end - begin - 2), place);
    text.remove_prefix(end + 1);
  }
  // The printed configuration has values and defaults in their places, and must read back.
  if (result.find("${") != std::string::npos) {
    throw usage_error(fmt::format("{}: expanded, it contains \"${{\" itself: {}", place, result),
                      "write a default that is to be taken as it is");
  }
  return result;
}

}  // namespace nmoe
