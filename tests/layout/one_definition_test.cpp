// No two headers give a type of one namespace one name: a linker would take what the compiler made for either, say a
// destructor, for both.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "base/files.h"

namespace nmoe::test {
namespace {

// "namespace::Type" of each type that the text of a header defines outside of other types and unnamed namespaces.
std::set<std::string> types_defined(const std::string& text) {
  static const std::regex kNamespace(R"(^namespace ([a-z0-9_:]+) \{)");
  static const std::regex kType(R"(^(?:struct|class|enum class|union) (\w+)(?: final)?(?: :[^;{]*)? \{)");
  std::set<std::string> types;
  std::istringstream lines(text);
  std::string of;
  bool unnamed = false;
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("namespace {")) unnamed = true;
    if (line.starts_with("}  // namespace")) unnamed = false;
    if (std::regex_search(line, match, kNamespace)) of = match[1];
    if (!unnamed && std::regex_search(line, match, kType)) types.insert(of + "::" + match[1].str());
  }
  return types;
}

TEST(OneDefinition, TypesOfHeadersHaveNamesOfTheirOwn) {
  const fs::path src = fs::path(NMOE_SOURCE_DIR) / "src";
  const std::set<std::string> extensions = {".h", ".cuh"};
  std::map<std::string, std::string> where;
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    if (!entry.is_regular_file() || !extensions.contains(entry.path().extension().string())) continue;
    const std::string file = entry.path().lexically_relative(src).string();
    for (const std::string& type : types_defined(read_file(entry.path()))) {
      const auto [first, is_new] = where.emplace(type, file);
      EXPECT_TRUE(is_new) << type << " is defined in " << first->second << " and in " << file;
    }
  }
  EXPECT_GT(where.size(), 500U);
}

TEST(OneDefinition, ReadsTypesOfNamespaces) {
  const std::string text =
      "namespace nmoe::x1 {\nstruct A {\n  struct In {};\n};\nclass B final : public A {\n};\nnamespace {\nstruct C "
      "{\n};\n}  "
      "// namespace\nenum class D { kOne };\nstruct E;\n}  // namespace nmoe::x1\n";
  EXPECT_EQ(types_defined(text), (std::set<std::string>{"nmoe::x1::A", "nmoe::x1::B", "nmoe::x1::D"}));
}

}  // namespace
}  // namespace nmoe::test
