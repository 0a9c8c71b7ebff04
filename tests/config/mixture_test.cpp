#include "config/mixture.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/errors.h"

namespace nmoe {
namespace {

constexpr std::string_view kGood = R"([mixture]
temperature = 2

[sources.web]
path = "${NMOE_TEST_DATA:-data}/web"
[sources.code]
path = "code"
max_epochs = 0

[stages.pretrain]
tokens = "1.5M"
weights = { code = 1, web = 3.0 }
[stages.mid.source_tokens]
web = "30k"
code = 20_000

[profiles]
dev.tokens = "100k"
proxy.tokens_per_active_parameter = 0.5
full.scale = 1
)";

// The message and the remedy have these in them.
void expect_mixture_error(const std::string& toml, const std::string& what, const std::string& remedy) {
  const Error error = test::error_of([&] { parse_mixture(toml, "bad.toml"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(test::contains(error.what(), what));
  EXPECT_TRUE(test::contains(error.remedy(), remedy));
}

// kGood with `from` replaced by `to`.
std::string changed(std::string_view from, std::string_view to) {
  std::string text(kGood);
  const size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(Mixture, ReadsAllOfIt) {
  const Mixture mixture = parse_mixture(kGood, "good.toml");
  EXPECT_EQ(mixture.temperature, 2.0);
  ASSERT_EQ(mixture.sources.size(), 2u);
  EXPECT_EQ(mixture.sources[0].name, "web");
  EXPECT_EQ(mixture.sources[0].path, "data/web");
  EXPECT_EQ(mixture.sources[0].max_epochs, 4.0);
  EXPECT_EQ(mixture.sources[1].name, "code");
  EXPECT_EQ(mixture.sources[1].max_epochs, 0.0);
  ASSERT_EQ(mixture.stages.size(), 2u);
  EXPECT_EQ(mixture.stages[0].name, "pretrain");
  EXPECT_EQ(mixture.stages[0].tokens, 1'500'000);
  EXPECT_EQ(mixture.stages[0].weights, (std::vector{3.0, 1.0}));  // in the order of the sources
  EXPECT_EQ(mixture.stages[1].tokens, 50'000);                    // the sum of its sources'
  EXPECT_EQ(mixture.stages[1].weights, (std::vector{30e3, 20e3}));
  EXPECT_EQ(mixture.stages[1].seq_len, 0);  // the run's
  const std::string longer = changed("[stages.mid.", "[stages.mid]\nseq_len = 4096\n[stages.mid.");
  EXPECT_EQ(parse_mixture(longer, "longer.toml").stages[1].seq_len, 4096);
  ASSERT_EQ(mixture.profiles.size(), 3u);
  EXPECT_EQ(mixture.profiles[0].tokens, 100'000);
  EXPECT_EQ(mixture.profiles[1].tokens_per_active_parameter, 0.5);
  EXPECT_EQ(mixture.profiles[2].scale, 1.0);
}

TEST(Mixture, ErrorsNamePlaceAndRemedy) {
  expect_mixture_error(changed("temperature", "temprature"), "bad.toml:2: unknown key mixture.temprature",
                       "did you mean temperature?");
  expect_mixture_error(changed("temperature = 2", "temperature = 0"), "bad.toml:2: mixture.temperature = 0", "correct");
  expect_mixture_error(changed("max_epochs = 0", "max_epochs = -1"), "bad.toml:8: sources.code.max_epochs = -1",
                       "correct");
  expect_mixture_error(changed("tokens = \"1.5M\"", "tokens = 1\nseq_len = \"4k\""),
                       "bad.toml:12: stages.pretrain.seq_len = \"4k\"", "correct");
  expect_mixture_error(changed("tokens = \"1.5M\"", "tokens = 1\nseq_len = 0"), "must be a whole number from 1",
                       "correct");
  expect_mixture_error(changed("\"1.5M\"", "\"1.5X\""), "bad.toml:11: stages.pretrain.tokens = \"1.5X\"", "correct");
  expect_mixture_error(changed("web = 3.0", "wep = 3.0"), "names the source wep, which there is not",
                       "did you mean web?");
  expect_mixture_error(changed("{ code = 1, web = 3.0 }", "{ code = 0, web = 0.0 }"), "no source with a weight above 0",
                       "weights = {");
  expect_mixture_error(changed("tokens = \"1.5M\"\n", ""), "[stages.pretrain] has no tokens", "add its budget");
  expect_mixture_error(changed("[stages.mid.source_tokens]", "[stages.mid]\ntokens = 5\n[stages.mid.source_tokens]"),
                       "has both tokens and source_tokens", "remove tokens");
  expect_mixture_error(changed("full.scale = 1", "full.scale = 1\nfull.tokens = 7"),
                       "[profiles.full] has several of its keys", "give one of");
  expect_mixture_error(changed("path = \"code\"\n", ""), "[sources.code] has no path", "n prep");
  expect_mixture_error(changed("[profiles]", "[profile]"), "unknown key profile.dev.tokens", "sections: ");
  expect_mixture_error("[sources.web]\npath = \"web\"\n", "there are no stages", "add [stages.NAME]");
  expect_mixture_error("", "there are no sources", "add [sources.NAME]");
  expect_mixture_error(changed("[sources.code]", "[sources.\"c d\"]"), "sources.\"c d\".path: \"c d\" cannot be a name",
                       "letters");
  expect_mixture_error("sources = 5\n", "sources = 5, but it must be a section", "");
  expect_mixture_error(
      changed("web = \"30k\"\ncode = 20_000", "web = 9_000_000_000_000_000_000\ncode = 9_000_000_000_000_000_000"),
      "the source_tokens of [stages.mid] sum to 2^63 or more", "lower");
}

TEST(Mixture, ASectionMayBeEmpty) {
  EXPECT_EQ(
      parse_mixture(changed("dev.tokens = \"100k\"\nproxy.tokens_per_active_parameter = 0.5\nfull.scale = 1\n", ""),
                    "good.toml")
          .profiles.size(),
      0u);
}

TEST(Mixture, MissingFile) {
  const Error error = test::error_of([] { load_mixture("/nonexistent/m.toml"); });
  EXPECT_TRUE(test::contains(error.what(), "there is no mixture file /nonexistent/m.toml"));
  EXPECT_TRUE(test::contains(error.remedy(), "data.mixture"));
}

}  // namespace
}  // namespace nmoe
