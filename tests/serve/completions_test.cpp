// /v1/completions over HTTP.
#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "serve/served_model.h"

namespace nmoe {
namespace {

class CompletionsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new ServedModel(); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  static inline ServedModel* server_ = nullptr;
};

TEST_F(CompletionsTest, TheTextOfGenerate) {
  const test::Outcome outcome = test::run_n(trained_model(), {"generate", "runs/checkpoints/tiny", "--prompt",
                                                              "the cat", "--temperature", "0", "--max-tokens", "30"});
  const ordered_json answer = server_->complete({{"prompt", "the cat"}, {"temperature", 0}, {"max_tokens", 30}});
  EXPECT_EQ("the cat" + answer["choices"][0]["text"].get<std::string>() + "\n", outcome.out);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 8);  // a byte each, and what begins a text
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
  EXPECT_EQ(answer["usage"]["total_tokens"], 38);
  // The default is OpenAI's.
  const ordered_json request = {{"prompt", "the"}, {"model", "tiny"}, {"user", nullptr}, {"ignore_eos", true}};
  EXPECT_EQ(server_->complete(request)["usage"]["completion_tokens"], 16);
}

TEST_F(CompletionsTest, StreamsTheSameText) {
  const ordered_json request = {{"prompt", "a dog"}, {"seed", 3}, {"max_tokens", 25}, {"n", 2}};
  const ordered_json whole = server_->complete(request);
  ordered_json streamed = request;
  streamed["stream_options"] = {{"include_usage", true}};
  std::vector<std::string> texts(2), reasons(2);
  std::set<std::string> ids;
  const std::vector<ordered_json> events = server_->stream("/v1/completions", streamed);
  ASSERT_GT(events.size(), 20U);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const ordered_json& choice = events[i]["choices"].at(0);
    const auto index = choice["index"].get<size_t>();
    texts.at(index) += choice["text"];
    if (!choice["finish_reason"].is_null()) reasons.at(index) += choice["finish_reason"];
    EXPECT_TRUE(events[i].at("usage").is_null());
    ids.insert(events[i]["id"]);
  }
  EXPECT_EQ(ids.size(), 1U);
  EXPECT_EQ(events.back()["choices"], ordered_json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(texts[i], whole["choices"][i]["text"].get<std::string>());
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"].get<std::string>());
  }
  EXPECT_NE(texts[0], texts[1]);
}

TEST_F(CompletionsTest, PromptsOfEveryForm) {
  const ordered_json ids = {116, 104, 101};  // "the", as it is: nothing is put before it
  const auto echoed = [&](const ordered_json& prompt) {
    return server_->complete({{"prompt", prompt}, {"max_tokens", 4}, {"temperature", 0}, {"echo", true}});
  };
  EXPECT_TRUE(echoed(ids)["choices"][0]["text"].get<std::string>().starts_with("the"));
  EXPECT_EQ(echoed(ids)["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(echoed("the")["usage"]["prompt_tokens"], 4);
  const ordered_json both = echoed(ordered_json::array({"the", "a c"}));
  ASSERT_EQ(both["choices"].size(), 2U);
  EXPECT_EQ(both["choices"][0]["text"], echoed("the")["choices"][0]["text"]);
  EXPECT_EQ(both["choices"][1]["text"], echoed("a c")["choices"][0]["text"]);
  EXPECT_EQ(both["choices"][1]["index"], 1);
  EXPECT_EQ(both["usage"]["prompt_tokens"], 8);
  const ordered_json lists = echoed(ordered_json::array({ids, {97, 32}}));
  EXPECT_EQ(lists["choices"][0]["text"], echoed(ids)["choices"][0]["text"]);
  EXPECT_EQ(server_->complete({{"max_tokens", 3}})["usage"]["prompt_tokens"], 1);  // the start of a text
}

TEST_F(CompletionsTest, LogprobsOfAPromptAreThoseOfWritingIt) {
  const std::string prompt = "the wild";
  const ordered_json written =
      server_->complete({{"prompt", prompt}, {"max_tokens", 8}, {"temperature", 0}, {"logprobs", 2}})["choices"][0];
  const std::string text = prompt + written["text"].get<std::string>();
  const ordered_json read =
      server_->complete({{"prompt", text}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}})["choices"][0];
  EXPECT_EQ(read["text"], text);
  const ordered_json &of_writing = written["logprobs"], &of_reading = read["logprobs"];
  ASSERT_EQ(of_writing["tokens"].size(), 8U);
  ASSERT_EQ(of_reading["tokens"].size(), 16U);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(of_writing["tokens"][i], of_reading["tokens"][i + 8]);
    const auto logprob = of_writing["token_logprobs"][i].get<double>();
    EXPECT_NEAR(logprob, of_reading["token_logprobs"][i + 8].get<double>(), 1e-4);
    // The likeliest token was written, and is among the two that are told.
    EXPECT_EQ(of_writing["top_logprobs"][i].size(), 2U);
    for (const auto& [token, other] : of_writing["top_logprobs"][i].items()) EXPECT_LE(other.get<double>(), logprob);
    EXPECT_EQ(of_writing["top_logprobs"][i][of_writing["tokens"][i].get<std::string>()], logprob);
    EXPECT_EQ(of_reading["text_offset"][i + 8], i + 8);
  }
  // One more token is as evaluations ask for it; the first of bare ids has no probability.
  const ordered_json bare = server_->complete({{"prompt", ordered_json::array({116, 104, 101})},
                                               {"max_tokens", 1},
                                               {"echo", true},
                                               {"temperature", 0},
                                               {"logprobs", 1}})["choices"][0]["logprobs"];
  ASSERT_EQ(bare["token_logprobs"].size(), 4U);
  EXPECT_TRUE(bare["token_logprobs"][0].is_null());
  EXPECT_TRUE(bare["top_logprobs"][0].is_null());
  EXPECT_LT(bare["token_logprobs"][1].get<double>(), 0);
}

TEST_F(CompletionsTest, StreamedLogprobsAreThoseOfTheWhole) {
  const ordered_json request = {{"prompt", "the"}, {"max_tokens", 9}, {"seed", 5}, {"logprobs", 1}, {"echo", true}};
  const ordered_json whole = server_->complete(request)["choices"][0];
  ordered_json tokens = ordered_json::array(), logprobs = ordered_json::array();
  std::string text;
  for (const ordered_json& event : server_->stream("/v1/completions", request)) {
    const ordered_json& choice = event["choices"][0];
    text += choice["text"];
    for (const ordered_json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
    for (const ordered_json& logprob : choice["logprobs"]["token_logprobs"]) logprobs.push_back(logprob);
  }
  EXPECT_EQ(text, whole["text"].get<std::string>());
  EXPECT_EQ(tokens, whole["logprobs"]["tokens"]);
  EXPECT_EQ(logprobs, whole["logprobs"]["token_logprobs"]);
}

TEST_F(CompletionsTest, StopStringsAndSeeds) {
  const ordered_json request = {{"prompt", "the"}, {"max_tokens", 50}, {"seed", 1}};
  const std::string text = server_->text(request);
  EXPECT_EQ(server_->text(request), text);
  ordered_json other = request;
  other["seed"] = 2;
  EXPECT_NE(server_->text(other), text);
  ordered_json stopped = request;
  stopped["stop"] = text.substr(10, 3);
  const ordered_json choice = server_->complete(stopped)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["text"], text.substr(0, text.find(text.substr(10, 3))));
}

TEST_F(CompletionsTest, ManyAtOnceGetWhatOneGets) {
  constexpr size_t kClients = 12;
  const auto request = [](size_t i) {
    return ordered_json{{"prompt", test::tiny_text(5 + 2 * i, i)}, {"seed", i}, {"max_tokens", 30}};
  };
  std::vector<std::string> alone(kClients), together(kClients);
  for (size_t i = 0; i < kClients; ++i) alone[i] = server_->text(request(i));
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      for (int repeat = 0; repeat < 3; ++repeat) together[i] = server_->text(request(i));
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
  EXPECT_TRUE(server_->becomes("running", 0));
}

}  // namespace
}  // namespace nmoe
