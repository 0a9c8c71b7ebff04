#include "data/tokenizer/unicode_properties.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

using CodePointRange = CodePointSet::Range;

constexpr CodePointRange kOtherAlphabetic[] = {
#include "data/tokenizer/unicode_other_alphabetic.inc"
};
constexpr CodePointRange kOtherLowercase[] = {
#include "data/tokenizer/unicode_other_lowercase.inc"
};
constexpr CodePointRange kOtherUppercase[] = {
#include "data/tokenizer/unicode_other_uppercase.inc"
};

struct ScriptRun {
  char32_t first;
  std::string_view script;
};
constexpr ScriptRun kScripts[] = {
#include "data/tokenizer/unicode_scripts.inc"
};

struct CategoryName {
  std::string_view name;
  std::string_view long_name;
};
// In the order of Category.
constexpr CategoryName kCategories[] = {
    {"Lu", "Uppercase_Letter"},    {"Ll", "Lowercase_Letter"},  {"Lt", "Titlecase_Letter"},
    {"Lm", "Modifier_Letter"},     {"Lo", "Other_Letter"},      {"Mn", "Nonspacing_Mark"},
    {"Mc", "Spacing_Mark"},        {"Me", "Enclosing_Mark"},    {"Nd", "Decimal_Number"},
    {"Nl", "Letter_Number"},       {"No", "Other_Number"},      {"Pc", "Connector_Punctuation"},
    {"Pd", "Dash_Punctuation"},    {"Ps", "Open_Punctuation"},  {"Pe", "Close_Punctuation"},
    {"Pi", "Initial_Punctuation"}, {"Pf", "Final_Punctuation"}, {"Po", "Other_Punctuation"},
    {"Sm", "Math_Symbol"},         {"Sc", "Currency_Symbol"},   {"Sk", "Modifier_Symbol"},
    {"So", "Other_Symbol"},        {"Zs", "Space_Separator"},   {"Zl", "Line_Separator"},
    {"Zp", "Paragraph_Separator"}, {"Cc", "Control"},           {"Cf", "Format"},
    {"Cs", "Surrogate"},           {"Co", "Private_Use"},       {"Cn", "Unassigned"},
};
constexpr CategoryName kMajorCategories[] = {{"L", "Letter"}, {"M", "Mark"},      {"N", "Number"}, {"P", "Punctuation"},
                                             {"S", "Symbol"}, {"Z", "Separator"}, {"C", "Other"}};

std::string normalised(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

CodePointSet set_of(std::span<const CodePointRange> ranges) { return CodePointSet({ranges.begin(), ranges.end()}); }

// The key of a POSIX bracket.
std::string bracket(std::string_view name) { return fmt::format("[:{}:]", name); }

// All properties, by normalised name.
class Properties {
 public:
  Properties() {
    add_categories();
    add_scripts();
    const CodePointSet controls({{'\t', '\r'}, {0x85, 0x85}});
    add("Any", ~CodePointSet());
    add("Assigned", ~at("Cn"));
    add("White_Space", at("Z") | controls);
    add("Alphabetic", at("L") | at("Nl") | set_of(kOtherAlphabetic));
    add("Lowercase", at("Ll") | set_of(kOtherLowercase));
    add("Uppercase", at("Lu") | set_of(kOtherUppercase));
    add_posix();
  }

  const CodePointSet* find(std::string_view name) const {
    const auto found = sets_.find(normalised(name));
    return found == sets_.end() ? nullptr : &found->second;
  }

 private:
  void add(std::string_view name, CodePointSet set) { sets_.insert_or_assign(normalised(name), std::move(set)); }
  const CodePointSet& at(std::string_view name) const { return sets_.at(normalised(name)); }

  void add_categories() {
    std::vector<CodePointRange> ranges[std::size(kCategories)];
    const auto runs = category_runs();
    for (size_t i = 0; i < runs.size(); ++i) {
      const char32_t end = i + 1 < runs.size() ? runs[i + 1].first : kNumCodePoints;
      ranges[static_cast<size_t>(runs[i].category)].push_back({runs[i].first, end - 1});
    }
    for (size_t i = 0; i < std::size(kCategories); ++i) {
      const CodePointSet set(std::move(ranges[i]));
      for (const std::string_view name : {kCategories[i].name, kCategories[i].long_name}) add(name, set);
    }
    for (const auto& [major, long_name] : kMajorCategories) {
      CodePointSet set;
      for (const auto& [name, unused] : kCategories) {
        if (name.starts_with(major)) set |= at(name);
      }
      add(major, set);
      add(long_name, std::move(set));
    }
    for (const std::string_view name : {"LC", "Cased_Letter"}) add(name, at("Lu") | at("Ll") | at("Lt"));
  }

  void add_scripts() {
    std::map<std::string_view, std::vector<CodePointRange>> ranges;
    for (size_t i = 0; i < std::size(kScripts); ++i) {
      const char32_t end = i + 1 < std::size(kScripts) ? kScripts[i + 1].first : kNumCodePoints;
      ranges[kScripts[i].script].push_back({kScripts[i].first, end - 1});
    }
    for (auto& [script, of_script] : ranges) add(script, CodePointSet(std::move(of_script)));
  }

  // Under their names as properties, and as brackets.
  void add_posix() {
    const CodePointSet graph = at("Any") - at("White_Space") - at("Cc") - at("Cs") - at("Cn");
    const std::pair<std::string_view, CodePointSet> classes[] = {
        {"Alpha", at("Alphabetic")},
        {"Alnum", at("Alphabetic") | at("Nd")},
        {"ASCII", CodePointSet({{0, 0x7F}})},
        {"Blank", at("Zs") | CodePointSet({{'\t', '\t'}})},
        {"Cntrl", at("Cc")},
        {"Digit", at("Nd")},
        {"Graph", graph},
        {"Lower", at("Lowercase")},
        {"Print", graph | at("Zs")},
        {"Punct", at("P")},
        {"Space", at("White_Space")},
        {"Upper", at("Uppercase")},
        {"XDigit", CodePointSet({{'0', '9'}, {'A', 'F'}, {'a', 'f'}})},
        {"Word", at("Alphabetic") | at("M") | at("Nd") | at("Pc")},
    };
    for (const auto& [name, set] : classes) {
      add(name, set);
      add(bracket(name), set);
    }
    add(bracket("Punct"), at("P") | at("S"));
  }

  std::map<std::string, CodePointSet, std::less<>> sets_;
};

const Properties& all_properties() {
  static const Properties properties;
  return properties;
}

}  // namespace

const CodePointSet* find_property(std::string_view name) { return all_properties().find(name); }

const CodePointSet* find_posix_bracket(std::string_view name) { return all_properties().find(bracket(name)); }

}  // namespace nmoe
