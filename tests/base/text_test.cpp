#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

TEST(TerminalSafe, ShowsWhatWouldSteer) {
  EXPECT_EQ(terminal_safe("a\tb\n"), "a\tb\n");
  EXPECT_EQ(terminal_safe("\033[2J\r\007\x7f"), "\\x1b[2J\\x0d\\x07\\x7f");
  EXPECT_EQ(terminal_safe(std::string("\0", 1)), "\\x00");
  // U+009B begins a command as ESC [ does; U+00A0 and what follows are characters.
  EXPECT_EQ(terminal_safe("\xC2\x9B"
                          "2J \xC2\xA0 \xC3\xA4 \xC2"),
            "\\x9b"
            "2J \xC2\xA0 \xC3\xA4 \xC2");
}

TEST(TerminalSafe, ShowsWhatTurnsTheDirectionOfWriting) {
  EXPECT_EQ(terminal_safe("a\u202Eb\u2066\u061C\u200F\u2028"), "a\\u202eb\\u2066\\u061c\\u200f\\u2028");
  // U+05D0, U+65E5, U+1F600, and the joiner that emoji are made with.
  const std::string text = "\u05D0 \u65E5 \U0001F600\u200D";
  EXPECT_EQ(terminal_safe(text), text);
}

// Of bytes that are no characters, those that are commands in Latin-1.
TEST(TerminalSafe, ShowsCommandsOfOneByte) {
  EXPECT_EQ(terminal_safe(std::string("\x9B") + "2J\xE4\xFF"), "\\x9b2J\xE4\xFF");
  EXPECT_EQ(terminal_safe("\xE2\x80"), "\xE2\\x80");
}

TEST(Trimmed, TakesOnlyWhatIsNamedFromBothEnds) {
  EXPECT_EQ(trimmed("  a b "), "a b");
  EXPECT_EQ(trimmed("\ta "), "\ta");
  EXPECT_EQ(trimmed("\t a \r\n", " \t\r\n"), "a");
  EXPECT_EQ(trimmed("   "), "");
  EXPECT_EQ(trimmed(""), "");
}

TEST(Nearest, FindsTypos) {
  const std::vector<std::string> keys = {"num_experts", "top_k", "expert_dim", "num_groups"};
  EXPECT_EQ(nearest("topk", keys), "top_k");             // left out
  EXPECT_EQ(nearest("top__k", keys), "top_k");           // added
  EXPECT_EQ(nearest("top-k", keys), "top_k");            // replaced
  EXPECT_EQ(nearest("epxert_dim", keys), "expert_dim");  // swapped
  EXPECT_EQ(nearest("num_group", keys), "num_groups");
  EXPECT_EQ(nearest("top_k", keys), "top_k");
}

TEST(Nearest, ASwapIsOneSlip) {
  // One slip in three characters is allowed; two (as plain edit distance counts a swap) are not.
  EXPECT_EQ(nearest("dmi", std::vector<std::string>{"dim"}), "dim");
  EXPECT_EQ(nearest("mid", std::vector<std::string>{"dim"}), "");
}

TEST(Nearest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest("learning_rate", std::vector<std::string>{"lr", "weight_decay"}), "");
  EXPECT_EQ(nearest("x", std::vector<std::string>{"y"}), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest("", std::vector<std::string>{"a"}), "");
}

TEST(Nearest, PrefersTheFirstOfEquals) {
  EXPECT_EQ(nearest("beta", std::vector<std::string>{"beta1", "beta2"}), "beta1");
}

TEST(JoinOr, PutsOrBeforeTheLast) {
  EXPECT_EQ(join_or({}), "");
  EXPECT_EQ(join_or(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(join_or(std::vector<std::string>{"a", "b"}), "a or b");
  EXPECT_EQ(join_or(std::vector<std::string>{"a", "b", "c"}), "a, b or c");
}

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(-1536), "-1.50 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");  // never "1024.00 KiB"
  EXPECT_EQ(human_bytes(int64_t{3} << 30), "3.00 GiB");
  EXPECT_EQ(human_bytes(int64_t{5000} << 40), "4.88 PiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
}

TEST(Human, Count) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(0.5), "0.50");
  EXPECT_EQ(human_count(1000), "1.00 k");
  EXPECT_EQ(human_count(1234567), "1.23 M");
  EXPECT_EQ(human_count(999999), "1.00 M");
  EXPECT_EQ(human_count(6.71e11), "671.00 G");
  EXPECT_EQ(human_count(2.25e15), "2.25 P");
  EXPECT_EQ(human_count(4.9e20), "490.00 E");
  EXPECT_EQ(human_count(1.5429773e23), "154.30 Z");
  EXPECT_EQ(human_count(9.99999e26), "1.00 R");  // never "1000.00 Y"
  EXPECT_EQ(human_count(1e34), "1.00e+34");
  EXPECT_EQ(human_count(9.49e-6), "9.5e-06");
  EXPECT_EQ(human_count(-0.5), "-0.50");
  EXPECT_EQ(human_quantity(6.23e4, "FLOP"), "62.30 kFLOP");
  EXPECT_EQ(human_quantity(999, "FLOP"), "999 FLOP");
  EXPECT_EQ(human_quantity(346.21, "tokens/s"), "346.21 tokens/s");
  EXPECT_EQ(human_quantity(1e34, "FLOP"), "1.00e+34 FLOP");
}

TEST(Human, Seconds) {
  EXPECT_EQ(human_seconds(0.01234), "12.3ms");
  EXPECT_EQ(human_seconds(0), "0s");
  EXPECT_EQ(human_seconds(9.49e-6), "9.5us");
  EXPECT_EQ(human_seconds(3e-9), "3.0ns");
  EXPECT_EQ(human_seconds(0.9999996e-3), "1.0ms");
  EXPECT_EQ(human_seconds(999.0 * 86400), "999d00h");
  EXPECT_EQ(human_seconds(12.5 * 365.25 * 86400), "12.50 years");
  EXPECT_EQ(human_seconds(1e15), "31.69 Myears");
  EXPECT_EQ(human_seconds(3.21), "3.2s");
  EXPECT_EQ(human_seconds(59.97), "1m00s");  // never "60.0s"
  EXPECT_EQ(human_seconds(75), "1m15s");
  EXPECT_EQ(human_seconds(3599.7), "1h00m");
  EXPECT_EQ(human_seconds(7384), "2h03m");
  EXPECT_EQ(human_seconds(100000), "1d04h");
  EXPECT_EQ(human_seconds(-75), "-1m15s");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(ParseBytes, ReadsNumbersWithUnits) {
  EXPECT_EQ(parse_bytes("1073741824", "x"), 1073741824);
  EXPECT_EQ(parse_bytes("1.5 GiB", "x"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("512MiB", "x"), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("2GB", "x"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("2 gib", "x"), int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("10 B", "x"), 10);
  EXPECT_EQ(parse_bytes("0", "x"), 0);
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const char* text : {"", "GiB", "-1 GiB", "+1", "1e9", "8 Gib/s", "8  GiB", "8 GiB ", " 8 GiB", "8 XB", "inf",
                           "nan", "0x10", "9223372036854775808", "99999999 TiB"}) {
    EXPECT_EQ(try_parse_bytes(text), std::nullopt) << text;
  }
  try {
    parse_bytes("lots", "train.memory_limit");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "train.memory_limit: \"lots\" is not a number of bytes");
    EXPECT_NE(error.remedy().find("8 GiB"), std::string::npos);
  }
}

TEST(ParseCount, ReadsUnitsAndSeparators) {
  EXPECT_EQ(try_parse_count("0"), 0);
  EXPECT_EQ(try_parse_count("123_456"), 123456);
  EXPECT_EQ(try_parse_count("1.5T"), 1'500'000'000'000);
  EXPECT_EQ(try_parse_count("0.1B"), 100'000'000);
  EXPECT_EQ(try_parse_count("2 G"), 2'000'000'000);
  EXPECT_EQ(try_parse_count("250k"), 250'000);
  EXPECT_EQ(try_parse_count("1e6"), 1'000'000);
  for (const char* text : {"", "-1", "M", "1X", "1MM", "1 MB", "1e30", "nan"}) {
    EXPECT_EQ(try_parse_count(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace nmoe
