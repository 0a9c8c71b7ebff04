#include "config/per_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/load.h"

namespace nmoe {
namespace {

Config with(const std::string& levels) {
  return parse_config(fmt::format("model.num_layers = 5\ntrain.recompute = \"{}\"", levels), "levels.toml");
}

std::string refusal_of(const std::string& levels) {
  try {
    with(levels);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PerLayer, OneValueIsThatOfAllLayers) {
  const PerLayer<Recompute> levels = with("norms").train.recompute;
  EXPECT_EQ(levels, PerLayer<Recompute>(Recompute::kNorms));
  EXPECT_EQ(levels.num_layers(), 0);
  for (const int64_t layer : {0, 3, 1000}) EXPECT_EQ(levels.of(layer), Recompute::kNorms);
}

TEST(PerLayer, AListHasEveryLayer) {
  for (const std::string text :
       {"norms, 2 x none, 2 x blocks", " norms,none , none,2x blocks", "norms,2 x none,blocks,blocks"}) {
    const Config config = with(text);
    const PerLayer<Recompute>& levels = config.train.recompute;
    EXPECT_EQ(levels.num_layers(), 5);
    const Recompute expected[] = {Recompute::kNorms, Recompute::kNone, Recompute::kNone, Recompute::kBlocks,
                                  Recompute::kBlocks};
    for (int64_t layer = 0; layer < 5; ++layer) EXPECT_EQ(levels.of(layer), expected[layer]) << layer;
    const std::string printed = print_config(config);
    EXPECT_NE(printed.find("= \"norms, 2 x none, 2 x blocks\""), std::string::npos) << printed;
    EXPECT_EQ(parse_config(printed, "printed.toml").train.recompute, levels);
  }
}

TEST(PerLayer, RefusesWhatIsNoList) {
  for (const char* text : {"", ",", "norms,", "3 norms", "x norms", "0 x norms, 5 x none", "2 x , 3 x none",
                           "2 x fp8, 3 x none", "-1 x none, 6 x norms", "99999999999999999999 x none, norms"}) {
    EXPECT_NE(refusal_of(text).find(
                  "it must be \"none\", \"norms\", \"experts\", \"blocks\" or \"host\", or a list for layers, "
                  "as \"3 x norms, 24 x blocks\""),
              std::string::npos)
        << text << ": " << refusal_of(text);
  }
}

// Two inputs stay on the device, as do those that lie among what the block before keeps.
TEST(PerLayer, RefusesAHostToWhichNothingGoes) {
  for (const char* levels : {"host", "norms, 4 x host", "blocks, 3 x host, none", "2 x host, norms, 2 x host"}) {
    EXPECT_EQ(refusal_of(levels), "") << levels;
  }
  for (const char* levels : {"2 x host, 3 x norms", "norms, 3 x host, norms", "host, none, host, none, host"}) {
    EXPECT_NE(refusal_of(levels).find("block inputs that could go to the host none would"), std::string::npos)
        << levels;
  }
}

TEST(PerLayer, RefusesListsOfOtherModels) {
  EXPECT_NE(refusal_of("2 x norms, none").find("a list for 3 layers, of 5"), std::string::npos);
  EXPECT_NE(refusal_of("5 x norms, none").find("a list for 6 layers, of 5"), std::string::npos);
  EXPECT_NE(refusal_of("5 x norms").find("all layers have the same"), std::string::npos);
  EXPECT_NE(refusal_of("2 x norms, 3 x norms").find("all layers have the same"), std::string::npos);
}

}  // namespace
}  // namespace nmoe
