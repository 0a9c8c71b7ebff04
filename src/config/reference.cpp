#include "config/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "config/schema.h"

namespace nmoe {
namespace {

constexpr std::string_view kHead = R"(# Configuration keys

The output of `n config --all`: every configuration key with its default, its meaning and the values it takes. A
configuration file needs only the keys that differ from their defaults. `n config --template tiny` (or `dense`,
`moe`, `mla-moe`) prints one to start from, `n config FILE` prints the file with every value resolved, and
`--set section.key=value` changes a key on the command line.

*Needs* names the settings without which a key has no effect; setting it without them is an error. (A need for a kind
of layer is also met by such a layer in `model.layers`, a pattern such as `"mla/dense, 26 x mla/moe"`.) Keys that *may
change at a resume* can have another value when a run is continued with `--resume`; all others must stay the same. In
strings, `${NMOE_NAME:-default}` stands for the value of that environment variable, or for the default if it is not
set. The name has capital letters, digits and underscores; one that says that it holds a secret (`NMOE_API_KEY`,
`NMOE_HF_TOKEN`) is refused, since checkpoints would keep it.
)";

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string describe_key(const Field& field) {
  std::string text = field.is_shorthand() ? fmt::format("- **{}**, not set:", field.name())
                                          : fmt::format("- **{}** = `{}`:", field.name(), to_toml(field.get()));
  text += fmt::format(" {}. {}.", field.meaning, capitalised(field.allowed));
  if (!field.conditions.empty()) text += fmt::format(" Needs `{}`.", fmt::join(field.conditions, "` and `"));
  if (!field.defines_run && !field.is_shorthand()) text += " May change at a resume.";
  text += '\n';
  if (field.details.empty()) return text;
  // Indented, it is part of the list's item.
  text += '\n';
  for (size_t begin = 0; begin < field.details.size();) {
    const size_t end = std::min(field.details.find('\n', begin), field.details.size());
    const std::string_view line = field.details.substr(begin, end - begin);
    text += line.empty() ? "\n" : fmt::format("  {}\n", line);
    begin = end + 1;
  }
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
