#include "config/reference.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "config/schema.h"
#include "config/templates.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;

TEST(Reference, HasEveryKeyWithDefaultLimitsAndNeeds) {
  const std::string text = config_reference();
  Config config;
  for (const Field& field : describe(config)) {
    EXPECT_TRUE(contains(text, fmt::format("\n- **{}**", field.name())));
    EXPECT_TRUE(contains(text, field.meaning));
    EXPECT_FALSE(field.meaning.empty());
    EXPECT_EQ(field.used(), field.lacks.empty());
    EXPECT_TRUE(field.used() || !field.conditions.empty()) << field.key;
  }
  EXPECT_TRUE(
      contains(text,
               "\n## [model.moe]\n\n- **num_experts** = `0`: number of routed experts; 0: every layer is dense. "
               "An integer from 0 to 1048576.\n"));
  EXPECT_TRUE(
      contains(text,
               "- **top_groups** = `1`: number of groups from which a token's experts are chosen. An integer from 1 to "
               "1048576. Needs `model.moe.num_experts > 0` and `model.moe.num_groups > 1`.\n"));
  EXPECT_TRUE(contains(text,
                       "- **steps** = `100`: step at which to stop; 0: where the plan of data.mixture ends. An integer "
                       "from 0 to 1000000000000000. Needs `train.tokens = 0` and `train.epochs = 0`. May change at a "
                       "resume.\n"));
  EXPECT_TRUE(contains(text, "- **lr**, not set: peak learning rate of every group"));
  EXPECT_TRUE(contains(text, "\"mla\" or \"gqa\"."));
}

TEST(Templates, AreConfigurationsWithoutFaults) {
  ASSERT_EQ(config_template_names(), (std::vector<std::string>{"tiny", "dense", "moe", "mla-moe"}));
  for (const std::string& name : config_template_names()) {
    const Config config = parse_config(config_template(name), name);
    EXPECT_EQ(config.run.name, name);
    EXPECT_EQ(config.model.moe.num_experts > 0, name != "dense");
    EXPECT_EQ(config.model.attention == PartKind::kMla, name == "mla-moe" || name == "tiny");
    const ScheduleConfig& schedule = config.optim.schedule;
    EXPECT_EQ(schedule.warmup.percent() + schedule.hold.percent() + schedule.decay.percent(), 100.0);
  }
}

}  // namespace
}  // namespace nmoe
