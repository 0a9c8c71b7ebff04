#include "mon/grid.h"

#include <gtest/gtest.h>

namespace nmoe::mon {
namespace {

TEST(Grid, TextIsClippedAndKeepsItsPlace) {
  Grid grid(8, 2);
  EXPECT_EQ(grid.put(2, 0, "abc"), 5);
  EXPECT_EQ(grid.put(6, 0, "xyz"), 8);
  EXPECT_EQ(grid.put(0, 1, "abcdef", Style::kBad, 3), 3);
  grid.put(0, 5, "outside");
  grid.set(-1, 0, U'x');
  EXPECT_EQ(grid.text(), "  abc xy\nabc\n");
  EXPECT_EQ(grid.at(2, 1).style, Style::kBad);
  EXPECT_EQ(grid.at(3, 1).style, Style::kPlain);
}

TEST(Grid, WideCharactersTakeTwoColumns) {
  Grid grid(5, 1);
  EXPECT_EQ(grid.put(0, 0, "é漢字x"), 5) << "the last does not fit";
  EXPECT_EQ(grid.line(0), "é漢字");
  EXPECT_EQ(grid.at(2, 0).glyph, 0u);
  EXPECT_EQ(grid.put(0, 0, "漢字", Style::kPlain, 3), 2) << "no half of one";
}

// What would steer a terminal, turn the direction of writing, or has no width of its own, and what is no UTF-8.
TEST(Grid, NothingSteersATerminal) {
  Grid grid(80, 1);
  grid.put(0, 0,
           "a\x1b[2J\x9b"
           "1m\xc2\x9b\x07\r\n\t\xe2\x80\xae"
           "b\xcc\x81\xff\xed\xa0\x80\xf4\x90\x80\x80z\x7f");
  for (int x = 0; x < grid.width(); ++x) {
    const char32_t glyph = grid.at(x, 0).glyph;
    EXPECT_TRUE(glyph >= 0x20 && glyph < 0x7f) << x << ": " << static_cast<uint32_t>(glyph);
  }
  EXPECT_TRUE(grid.line(0).starts_with("a\\x1b[2J?1m\\x9b\\x07\\x0d  ?b?")) << grid.line(0);
}

}  // namespace
}  // namespace nmoe::mon
