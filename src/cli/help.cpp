#include "cli/help.h"

namespace nmoe::cli {

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  constexpr std::string_view kSeveral = " ...";
  std::string text = Formatter::make_option_opts(option);
  if (option->nonpositional() && !option->get_allow_extra_args()) {
    if (const size_t at = text.find(kSeveral); at != std::string::npos) text.erase(at, kSeveral.size());
  }
  return text;
}

}  // namespace nmoe::cli
