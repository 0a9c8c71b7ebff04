#include "config/entries.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace nmoe
