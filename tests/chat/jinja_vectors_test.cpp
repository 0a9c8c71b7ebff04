// The template language against Jinja itself (scripts/jinja_vectors.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "chat/jinja/template.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

// What Jinja prints and nmoe refuses.
const std::set<std::string> kRefused = {"strings 8", "for 26"};

TEST(JinjaVectorsTest, EveryCase) {
  const ordered_json vectors =
      ordered_json::parse(read_file(std::string(NMOE_SOURCE_DIR) + "/tests/chat/fixtures/jinja.json"));
  ASSERT_GE(vectors.at("cases").size(), 500U);
  for (const ordered_json& entry : vectors.at("cases")) {
    const auto name = entry.at("name").get<std::string>();
    const auto source = entry.at("template").get<std::string>();
    const bool refused = entry.contains("error") || kRefused.contains(name);
    SCOPED_TRACE(name + ": " + source);
    std::string text;
    try {
      for (const RenderedPiece& piece : JinjaTemplate(source, "vectors").render(vectors.at("context"), {})) {
        text += piece.text;
      }
    } catch (const Error& error) {
      EXPECT_TRUE(refused) << error.what();
      EXPECT_NE(std::string(error.what()).find("vectors:"), std::string::npos) << error.what();
      continue;
    }
    EXPECT_FALSE(refused) << text;
    EXPECT_EQ(text, refused ? text : entry.at("expected").get<std::string>());
  }
}

// Whole templates with what those of Qwen3, GLM, MiniMax, OLMoE, Mixtral and gpt-oss use.
TEST(JinjaVectorsTest, WholeConversations) {
  const std::string folder = std::string(NMOE_SOURCE_DIR) + "/tests/chat/fixtures/templates/";
  const ordered_json vectors = ordered_json::parse(read_file(folder + "conversations.json"));
  ASSERT_GE(vectors.at("cases").size(), 108U);
  std::tm first_of_may{};
  first_of_may.tm_year = 125;
  first_of_may.tm_mon = 4;
  first_of_may.tm_mday = 1;
  for (const ordered_json& entry : vectors.at("cases")) {
    SCOPED_TRACE(entry.at("name"));
    const auto file = entry.at("template").get<std::string>();
    ordered_json variables = {{"tools", nullptr}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    variables.update(vectors.at("conversations").at(entry.at("conversation").get<std::string>()));
    std::string text;
    try {
      for (const RenderedPiece& piece :
           JinjaTemplate(read_file(folder + file), file).render(variables, {}, first_of_may)) {
        text += piece.text;
      }
    } catch (const Error& error) {
      EXPECT_TRUE(entry.contains("error")) << error.what();
      continue;
    }
    EXPECT_FALSE(entry.contains("error")) << text;
    EXPECT_EQ(text, entry.value("expected", text));
  }
}

}  // namespace
}  // namespace nmoe
