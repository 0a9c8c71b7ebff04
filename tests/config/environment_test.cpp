#include "config/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "expect_error.h"
#include "support/errors.h"

namespace nmoe {
namespace {

class Environment : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NMOE_TEST_SET", "/data", 1);
    setenv("NMOE_TEST_EMPTY", "", 1);
    setenv("NMOE_TEST_TRAP", "a${NMOE_TEST_SET}", 1);
    unsetenv("NMOE_TEST_UNSET");
  }
  void TearDown() override {
    for (const char* name : {"NMOE_TEST_SET", "NMOE_TEST_EMPTY", "NMOE_TEST_TRAP"}) unsetenv(name);
  }
};

TEST_F(Environment, Expands) {
  EXPECT_EQ(expand_environment("", "x"), "");
  EXPECT_EQ(expand_environment("plain $NMOE_TEST_SET {} $", "x"), "plain $NMOE_TEST_SET {} $");
  EXPECT_EQ(expand_environment("${NMOE_TEST_SET}", "x"), "/data");
  EXPECT_EQ(expand_environment("a${NMOE_TEST_SET}/b${NMOE_TEST_SET:-c}d", "x"), "a/data/b/datad");
  EXPECT_EQ(expand_environment("${NMOE_TEST_EMPTY}", "x"), "");
}

// Checkpoints and the database of runs would keep them.
TEST_F(Environment, RefusesSecrets) {
  for (const char* name : {"NMOE_API_KEY", "NMOE_SECRET", "NMOE_SECRET_FILE", "NMOE_MY_TOKEN", "NMOE_DB_PASSWORD"}) {
    const Error error = test::error_of([&] { expand_environment(fmt::format("a${{{}:-x}}", name), "run.name"); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_TRUE(test::contains(error.what(), name));
    EXPECT_TRUE(test::contains(error.what(), "run.name"));
  }
  EXPECT_EQ(expand_environment("${NMOE_TOKENS:-3}${NMOE_MONKEY:-4}", "x"), "34");
}

TEST_F(Environment, RefusesWhateverNamesASecret) {
  for (const char* name : {"NMOE_KEY", "NMOE_API_KEY_2", "NMOE_API_KEY1", "NMOE_KEY_FILE", "NMOE_TOKEN_OF_HUB",
                           "NMOE_HFTOKEN", "NMOE_SECRETS_DIR", "NMOE_DBPASSWORD", "NMOE_PASSWD", "NMOE_PASSPHRASE",
                           "NMOE_CREDENTIALS", "NMOE_APIKEY", "NMOE__AUTH__", "NMOE_SSHKEY", "NMOE_PRIVATE_3"}) {
    setenv(name, "s3cr3t", 1);
    const Error error = test::error_of([&] { expand_environment(fmt::format("${{{}}}", name), "run.name"); });
    EXPECT_TRUE(test::contains(error.what(), fmt::format("{} names a secret", name)));
    EXPECT_FALSE(test::contains(error.what(), "s3cr3t"));
    unsetenv(name);
  }
  for (const char* name : {"NMOE_TOKENS", "NMOE_TOKENIZER", "NMOE_DIR_2", "NMOE_COMPASS", "NMOE_HOCKEY", "NMOE_X0"}) {
    EXPECT_EQ(expand_environment(fmt::format("${{{}:-x}}", name), "x"), "x") << name;
  }
}

TEST_F(Environment, NamesAreInCapitals) {
  for (const char* name : {"NMOE_api_key", "NMOE_Name", "NMOE_DATAset", "NMOE_\xC3\x84", "NMOE_A B"}) {
    setenv(name, "s3cr3t", 1);
    expect_usage_error(
        [&] { expand_environment(fmt::format("${{{}}}", name), "x"); },
        fmt::format("x: ${{{}}} is not expanded: its name has other characters than A to Z, 0 to 9 and _", name),
        "write ${NMOE_NAME} or ${NMOE_NAME:-default}");
    unsetenv(name);
  }
}

TEST_F(Environment, TakesTheDefaultForUnsetAndEmpty) {
  EXPECT_EQ(expand_environment("${NMOE_TEST_UNSET:-a b:-c}", "x"), "a b:-c");
  EXPECT_EQ(expand_environment("${NMOE_TEST_EMPTY:-d}", "x"), "d");
  EXPECT_EQ(expand_environment("[${NMOE_TEST_UNSET:-}]", "x"), "[]");
}

TEST_F(Environment, RefusesTheRest) {
  const std::string how = "write ${NMOE_NAME} or ${NMOE_NAME:-default}";
  expect_usage_error([] { expand_environment("${HOME}/x", "q.toml:3: data.path"); },
                     "q.toml:3: data.path: ${HOME} is not expanded: its name does not start with NMOE_", how);
  for (const char* text : {"${}", "${NMOE_}", "${NMOE_A-b}", "${ NMOE_A}", "${nmoe_a:-b}"}) {
    EXPECT_THROW(expand_environment(text, "x"), Error) << text;
  }
  expect_usage_error([] { expand_environment("a/${NMOE_TEST_SET", "x"); },
                     "x: \"${NMOE_TEST_SET\" has no closing brace", how);
  expect_usage_error([] { expand_environment("${NMOE_TEST_UNSET}", "x"); },
                     "x: the environment variable NMOE_TEST_UNSET is not set",
                     "set it, or give a default: ${NMOE_TEST_UNSET:-default}");
  expect_usage_error([] { expand_environment("${NMOE_TEST_TRAP}", "x"); },
                     "x: the value of NMOE_TEST_TRAP contains \"${\" itself: a${NMOE_TEST_SET}",
                     "set NMOE_TEST_TRAP to a value to be taken as it is");
  // Whether or not the variable is set: its value must not get the brace behind it.
  for (const std::string name : {"NMOE_TEST_UNSET", "NMOE_TEST_SET"}) {
    expect_usage_error([&] { expand_environment("${" + name + ":-${HOME}}", "x"); },
                       "x: the default of " + name + " contains \"${\" itself: " + name + ":-${HOME",
                       "write a default that is to be taken as it is");
  }
  expect_usage_error([] { expand_environment("$${NMOE_TEST_UNSET:-{}HOME}", "x"); },
                     "x: expanded, it contains \"${\" itself: ${HOME}", "write a default that is to be taken as it is");
}

}  // namespace
}  // namespace nmoe
