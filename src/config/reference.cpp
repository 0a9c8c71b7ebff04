#include "config/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "config/schema.h"

namespace nmoe {
namespace {

constexpr std::string_view kHead = R"(# Configuration keys

What `n config --all` prints: every key of a run's configuration with its default, its meaning and the values it takes. A
file needs only what differs from the defaults; `n config --template dense` (or `moe`, `mla-moe`) prints one to begin with,
`n config FILE` the file with everything resolved, and `--set section.key=value` changes a key on the command line.

*Needs* says what a key has an effect with (for a kind of layer, one in `model.layers` will do); without that, setting it is
an error. A run that goes on with `--resume` may change the keys that are *free at a resume*; all others define it. In strings
`${NMOE_NAME:-default}` is the environment variable's value, or the default.
)";

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string describe_key(const Field& field) {
  std::string text = field.is_shorthand ? fmt::format("- **{}**, not set:", field.name())
                                        : fmt::format("- **{}** = `{}`:", field.name(), to_toml(field.get()));
  text += fmt::format(" {}. {}.", field.meaning, capitalised(field.allowed));
  if (!field.conditions.empty()) text += fmt::format(" Needs `{}`.", fmt::join(field.conditions, "` and `"));
  if (!field.defines_run && !field.is_shorthand) text += " Free at a resume.";
  return text + '\n';
}

}  // namespace

std::string config_reference() {
  Config config;
  std::string text(kHead);
  std::string section;
  for (const Field& field : describe(config)) {
    if (field.section() != section) {
      section = field.section();
      text += fmt::format("\n## [{}]\n\n", section);
    }
    text += describe_key(field);
  }
  return text;
}

}  // namespace nmoe
