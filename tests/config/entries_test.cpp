#include "config/entries.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace nmoe {
namespace {

TEST(Entries, AreInTheOrderOfLines) {
  const std::vector<Entry> entries = read_entries(
      "[train]\nsteps = 3\n\n[model]\nzeta = 'z'\ndim = 4\nrope.theta = 0.5\n[model.moe]\n[a]\nb = "
      "[1]\nc = true\n\"model.d\" = 2020-01-01\n",
      "f.toml");
  std::vector<std::string> lines;
  for (const Entry& e : entries) lines.push_back(e.place + " " + e.key + " = " + e.written);
  EXPECT_EQ(lines, (std::vector<std::string>{"f.toml:2 train.steps = 3", "f.toml:5 model.zeta = \"z\"",
                                             "f.toml:6 model.dim = 4", "f.toml:7 model.rope.theta = 0.5",
                                             "f.toml:8 model.moe = {...}", "f.toml:10 a.b = [...]",
                                             "f.toml:11 a.c = true", "f.toml:12 a.\"model.d\" = a date or time"}));
  EXPECT_EQ(entries[0].value, Value(int64_t{3}));
  EXPECT_EQ(entries[1].value, Value(std::string("z")));
  EXPECT_EQ(entries[3].value, Value(0.5));
  EXPECT_TRUE(entries[4].is_table);
  EXPECT_EQ(entries[4].value, std::nullopt);
  EXPECT_EQ(entries[5].value, std::nullopt);
  EXPECT_FALSE(entries[5].is_table);
  EXPECT_EQ(entries[6].value, Value(true));
}

TEST(Entries, ReadValueTakesExactlyOneValue) {
  EXPECT_EQ(read_value("64")->value, Value(int64_t{64}));
  EXPECT_EQ(read_value("1e-3")->value, Value(1e-3));
  EXPECT_EQ(read_value("'a b'")->value, Value(std::string("a b")));
  EXPECT_EQ(read_value("[1, 2]")->value, std::nullopt);
  EXPECT_EQ(read_value("['a', 2]")->value, std::nullopt);
  EXPECT_EQ(read_value("['a', \"b\\n\"]")->value, Value(std::vector<std::string>{"a", "b\n"}));
  EXPECT_EQ(read_value("[]")->value, Value(std::vector<std::string>{}));
  for (const char* text : {"", "word", "1 2", "1\nother = 2", ".5", "\"open", "{a = 1}", "{}"}) {
    EXPECT_FALSE(read_value(text).has_value()) << text;
  }
}

std::string times(int64_t count, const std::string& text) {
  std::string all;
  for (int64_t i = 0; i < count; ++i) all += text;
  return all;
}

// Levels that would be walked by recursion, in all ways to write them, and of all of them together.
TEST(Entries, RefusesWhatIsNestedTooDeep) {
  const std::string deep = times(30'000, "a."), ten = times(9, "a.") + 'a';
  const std::pair<std::string, int> cases[] = {
      {deep + "a = 1\n", 1},
      {"x = 1\n[" + deep + "a]\n", 2},
      {"[[" + deep + "a]]\n", 1},
      {"'\\'.\"\\\"].\"." + times(31, "\"a b\" . 'c' .") + "d = 1", 1},
      {"x = " + times(40'000, "[") + times(40'000, "]"), 1},
      {"x = " + times(40'000, "{a=") + "1" + times(40'000, "}"), 1},
      {"x = " + times(4, "{" + ten + " = ") + "1" + times(4, "}"), 1},
      {"[" + ten + "]\ny = [[\n{" + ten + " = {" + ten + " = {}}}]]", 3},
      {"a = \"\"\"\n[\\\"\"\"\"\"\n[" + deep + "b]", 3},
      {"a = ''' \n\n'''''\n" + deep + "b = 1", 4},
      {deep, 1},
  };
  for (const auto& [text, line] : cases) {
    try {
      read_entries(text, "deep.toml");
      ADD_FAILURE() << text.substr(0, 80);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_EQ(error.what(), fmt::format("deep.toml:{}: tables and lists are more than 32 levels deep", line))
          << text.substr(0, 80);
    }
  }
  EXPECT_FALSE(read_value(times(40'000, "[")));
  EXPECT_FALSE(read_value("{" + deep + "a = 1}"));
}

TEST(Entries, TakesWhatOnlyLooksDeep) {
  const std::string dots = times(200, ".a") + times(200, "[{");
  const std::string text = "a = \"" + dots + "\" # " + dots + "\nb = '''\n" + dots + "'''\nc = \"\"\"\"" + dots +
                           "\\\"\"\"\"\nd = [" + times(300, "1.5, ['x'], ") + "2024-01-01T00:00:00.5]\n'" + dots +
                           "' = 1\n" + times(100, "[[s]]\nk.l = {m.n = 1}\n") + "[e]\n";
  const std::vector<Entry> entries = read_entries(text, "flat.toml");
  ASSERT_EQ(entries.size(), 7U);
  EXPECT_EQ(entries[2].value, Value("\"" + dots + "\""));
  EXPECT_EQ(entries.back().key, "e");
  EXPECT_EQ(read_entries(times(30, "a.") + "a = [1]", "x").size(), 1U);
}

}  // namespace
}  // namespace nmoe
