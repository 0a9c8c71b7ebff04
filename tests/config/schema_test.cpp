#include "config/schema.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "config/scaling.h"
#include "configs.h"

namespace nmoe {
namespace {

// Counts the members of a struct: with how many values of any type it can be initialised.
struct Anything {
  template <class T>
  operator T() const;
};
template <class T, class... Values>
constexpr size_t num_members() {
  if constexpr (requires { T{Values{}..., Anything{}}; }) {
    return num_members<T, Values..., Anything>();
  } else {
    return sizeof...(Values);
  }
}

size_t sizes_of_base(std::string_view section) {
  return static_cast<size_t>(std::ranges::count(base_sizes(), section, &BaseSize::section));
}

// A member that the description leaves out would be unknown in TOML, unprinted, and not in the
// fingerprint.
TEST(Schema, DescribesEveryMember) {
  const std::map<std::string, size_t> expected = {
      {"run", num_members<RunConfig>()},
      {"precision", num_members<PrecisionConfig>()},
      {"model", num_members<ModelConfig>() - 10},  // less its structs
      {"model.rope", num_members<RopeConfig>()},
      {"model.yarn", num_members<YarnConfig>()},
      {"model.mla", num_members<MlaConfig>()},
      {"model.gqa", num_members<GqaConfig>()},
      {"model.mamba2", num_members<Mamba2Config>()},
      {"model.gated_deltanet", num_members<GatedDeltaNetConfig>()},
      {"model.moe", num_members<MoeConfig>()},
      {"model.mtp", num_members<MtpConfig>()},
      {"model.scaling", num_members<ScalingConfig>() - 1},
      {"model.scaling.base", sizes_of_base("") + 1},  // and layers
      {"model.scaling.base.mla", sizes_of_base("mla.")},
      {"model.scaling.base.gqa", sizes_of_base("gqa.")},
      {"model.scaling.base.mamba2", sizes_of_base("mamba2.")},
      {"model.scaling.base.gated_deltanet", sizes_of_base("gated_deltanet.")},
      {"model.scaling.base.moe", sizes_of_base("moe.")},
      {"model.init", num_members<InitConfig>()},
      {"data", num_members<DataConfig>()},
      // Less its structs and what a plan decides; lr stands for those of its groups.
      {"optim", num_members<OptimConfig>() - 7 - 1 + 1},
      {"optim.matrices", num_members<GroupConfig>()},
      {"optim.experts", num_members<GroupConfig>()},
      {"optim.router", num_members<GroupConfig>()},
      {"optim.rest", num_members<GroupConfig>()},
      {"optim.adamw", num_members<AdamWConfig>()},
      {"optim.muon", num_members<MuonConfig>()},
      {"optim.schedule", num_members<ScheduleConfig>()},
      {"train", num_members<TrainConfig>()},
      {"parallel", num_members<ParallelConfig>()},
      {"eval", num_members<EvalConfig>()},
      {"generation", num_members<GenerationConfig>()},
      {"checkpoint", num_members<CheckpointConfig>()},
      {"track", num_members<TrackConfig>()},
  };
  Config config;
  std::map<std::string, size_t> described;
  for (const Field& field : describe(config)) ++described[std::string(field.section())];
  EXPECT_EQ(described, expected);
  EXPECT_EQ(num_members<Config>(), 11u);
}

TEST(Schema, KeysDiffer) {
  Config config;
  std::set<std::string> keys;
  for (const Field& field : describe(config)) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    EXPECT_EQ(std::string(field.section()) + "." + std::string(field.name()), field.key);
  }
}

// Every key has a member of its own: changing one leaves all others as they are.
TEST(Schema, KeysReferToDifferentMembers) {
  for (const Config& base : all_kinds_of_configs()) {
    const std::vector<std::string> before = values_of(base);
    for (size_t i = 0; i < before.size(); ++i) {
      Config config = base;
      const std::vector<Field> fields = describe(config);
      const Field& field = fields[i];
      if (field.is_shorthand()) continue;
      if (!change(field)) {
        EXPECT_EQ(field.key, "optim.router.weight_decay");  // may only be 0
        continue;
      }
      const std::vector<std::string> after = values_of(config);
      for (size_t j = 0; j < before.size(); ++j) {
        if (fields[j].is_shorthand()) continue;  // follows the members it stands for
        EXPECT_EQ(before[j] == after[j], i != j) << before[j] << " after a change of " << field.key;
      }
    }
  }
}

TEST(Schema, DefaultsAreWithinLimits) {
  Config config;
  for (const Field& field : describe(config)) EXPECT_TRUE(field.set(field.get())) << field.key;
}

TEST(Schema, EveryKeyHasAnEffectInSomeConfig) {
  std::set<std::string> unused;
  Config config;
  for (const Field& field : describe(config)) unused.insert(field.key);
  for (Config used_in : all_kinds_of_configs()) {
    for (const Field& field : describe(used_in)) {
      if (field.used()) unused.erase(field.key);
    }
  }
  EXPECT_EQ(unused, std::set<std::string>());
}

TEST(Schema, SetRefusesWhatIsNotAllowedAndKeepsTheOldValue) {
  Config config;
  const std::vector<Field> fields = describe(config);
  const std::vector<std::string> before = values_of(config);
  for (const Field& field : fields) {
    for (const Value& value : {Value(-1.0), Value(int64_t{-1}), Value(std::numeric_limits<double>::quiet_NaN()),
                               Value(std::numeric_limits<double>::infinity())}) {
      EXPECT_FALSE(field.set(value)) << field.key << " = " << to_toml(value);
    }
    if (!std::holds_alternative<bool>(field.get())) {
      EXPECT_FALSE(field.set(true)) << field.key;
    }
    if (!field.is_text) {
      EXPECT_FALSE(field.set(std::string("1"))) << field.key;
    }
  }
  EXPECT_EQ(values_of(config), before);
}

TEST(Value, ToToml) {
  EXPECT_EQ(to_toml(true), "true");
  EXPECT_EQ(to_toml(int64_t{-7}), "-7");
  EXPECT_EQ(to_toml(1.0), "1.0");
  EXPECT_EQ(to_toml(1e-5), "1e-05");
  EXPECT_EQ(to_toml(0.1), "0.1");
  EXPECT_EQ(to_toml(1e300), "1e+300");
  EXPECT_EQ(to_toml(std::string("a\"b\\c\n\t\x01\x7f ü")), R"("a\"b\\c\n\t\u0001\u007f ü")");
}

// Whatever else keys of rotation need, they need something that rotates.
TEST(Schema, KeysOfRotationMeanNothingWhereNothingRotates) {
  const auto used = [](const char* layers) {
    Config config;
    config.model.layers = layers;
    config.model.yarn.factor = 4.0;
    config.model.rope.scaling = RopeScaling::kLlama3;
    std::set<std::string> sections;
    for (const Field& field : describe(config)) {
      if (field.used()) sections.emplace(field.section());
    }
    return sections.contains("model.rope") || sections.contains("model.yarn");
  };
  EXPECT_FALSE(used("mamba2, gqa_nope/dense"));
  EXPECT_TRUE(used("mamba2, gqa/dense"));
  EXPECT_TRUE(used(""));
}

}  // namespace
}  // namespace nmoe
