#include "serve/api_request.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;
using test::contains;

constexpr const char* kMessages = R"([{"role": "user", "content": "hi"}])";

ApiRequest completion(const std::string& fields) { return parse_completion_request("{" + fields + "}", {}); }
ApiRequest chat(const std::string& fields) {
  return parse_chat_request(R"({"messages": )" + std::string(kMessages) + (fields.empty() ? "" : ", " + fields) + "}",
                            {});
}

// The field that a request is refused for, and why.
template <class Parse>
void refuses(Parse&& parse, const std::string& fields, const std::string& param, const std::string& message) {
  SCOPED_TRACE(fields);
  try {
    parse(fields);
    ADD_FAILURE() << "it was accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const ordered_json json = ordered_json::parse(error.json())["error"];
    EXPECT_EQ(json["param"], param.empty() ? ordered_json() : ordered_json(param));
    EXPECT_TRUE(contains(error.what(), message));
  }
}

TEST(ApiRequestTest, FieldsAndTheirDefaults) {
  const ApiRequest none = completion("");
  EXPECT_EQ(none.max_tokens, 16);
  EXPECT_EQ(none.sampling.temperature, 1.0);
  EXPECT_EQ(none.sampling.top_p, 1.0);
  EXPECT_EQ(none.sampling.top_k, 0);
  EXPECT_FALSE(none.seed || none.stream || none.echo || none.logprobs);
  EXPECT_EQ(std::get<std::string>(none.prompts.at(0)), "");
  EXPECT_FALSE(chat("").max_tokens);

  const ApiRequest all = completion(
      R"("model": "m", "prompt": ["a", "b"], "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
         "repetition_penalty": 1.5, "n": 2, "stream": true, "stream_options": {"include_usage": true}, "stop": ["x", "y"],
         "seed": -1, "logprobs": 0, "echo": true, "ignore_eos": true, "suffix": null, "best_of": 1,
         "presence_penalty": 0.0, "logit_bias": {}, "user": "someone")");
  EXPECT_EQ(all.prompts.size(), 2U);
  EXPECT_EQ(all.max_tokens, 7);
  EXPECT_EQ(all.sampling.temperature, 0.5);
  EXPECT_EQ(all.sampling.top_p, 0.9);
  EXPECT_EQ(all.sampling.top_k, 5);
  EXPECT_EQ(all.sampling.min_p, 0.1);
  EXPECT_EQ(all.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(all.n, 2);
  EXPECT_TRUE(all.stream && all.include_usage && all.echo && all.logprobs && all.ignore_eos);
  EXPECT_EQ(all.top_logprobs, 0);
  EXPECT_EQ(all.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(all.seed, ~uint64_t{0});
  EXPECT_EQ(completion(R"("top_k": -1)").sampling.top_k, 0);
  EXPECT_EQ(chat(R"("max_completion_tokens": 3)").max_tokens, 3);
  EXPECT_EQ(chat(R"("tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": false,
                    "parallel_tool_calls": true, "modalities": ["text"])")
                .messages.size(),
            1U);
}

TEST(ApiRequestTest, TheCheckpointsDefaults) {
  const SamplingDefaults defaults{
      .temperature = 0.6, .top_p = 0.95, .min_p = {}, .repetition_penalty = {}, .top_k = 20};
  EXPECT_EQ(parse_completion_request("{}", defaults).sampling.temperature, 0.6);
  EXPECT_EQ(parse_completion_request("{}", defaults).sampling.top_k, 20);
  EXPECT_EQ(parse_completion_request(R"({"temperature": 1, "top_k": 0})", defaults).sampling.temperature, 1.0);
  EXPECT_EQ(parse_completion_request(R"({"temperature": 1, "top_k": 0})", defaults).sampling.top_k, 0);
}

TEST(ApiRequestTest, WrongValues) {
  refuses(completion, R"("temperature": "hot")", "temperature", "a number from 0 to 100");
  refuses(completion, R"("top_p": 1.1)", "top_p", "from 0 to 1");
  refuses(completion, R"("max_tokens": -1)", "max_tokens", "an integer from 0");
  refuses(completion, R"("max_tokens": 1.5)", "max_tokens", "an integer");
  refuses(completion, R"("max_tokens": 99999999999999999999)", "",
          "the integer 99999999999999999999 has more than 64 bits");
  refuses(completion, R"("seed": 18446744073709551615)", "seed", "an integer");
  refuses(completion, R"("n": 0)", "n", "an integer from 1");
  refuses(completion, R"("stream": 1)", "stream", "true or false");
  refuses(completion, R"("stream_options": {})", "stream_options", "\"stream\": true");
  refuses(completion, R"("stream": true, "stream_options": {"usage": true})", "usage", "unknown field");
  refuses(completion, R"("stop": [""])", "stop", "none of them empty");
  refuses(completion, R"("stop": 3)", "stop", "a string");
  refuses(completion, R"("logprobs": true)", "logprobs", "an integer from 0 to 20");
  refuses(completion, R"("logprobs": 21)", "logprobs", "an integer from 0 to 20");
  refuses(completion, R"("prompt": {})", "prompt", "a string, a list of strings");
  refuses(completion, R"("prompt": [])", "prompt", "a string, a list of strings");
  refuses(completion, R"("prompt": [1, "a"])", "prompt", "a string, a list of strings");
  refuses(completion, R"("prompt": [-1])", "prompt", "a string, a list of strings");
  refuses(completion, R"("prompt": [["a"]])", "prompt", "a string, a list of strings");
  refuses(chat, R"("logprobs": 1)", "logprobs", "true or false");
  refuses(chat, R"("top_logprobs": 2)", "top_logprobs", "\"logprobs\": true");
  refuses(chat, R"("max_tokens": 2, "max_completion_tokens": 3)", "max_completion_tokens", "without another");
  refuses(chat, R"("chat_template_kwargs": [])", "chat_template_kwargs", "an object");
  refuses(chat, R"("tools": [{}])", "tools", "a list of");
  refuses(chat, R"("tools": [{"type": "function", "function": {}}])", "tools", "a list of");
}

TEST(ApiRequestTest, WhatIsNotSupportedIsSaid) {
  for (const char* field : {R"("suffix": "x")", R"("best_of": 2)", R"("presence_penalty": 0.5)",
                            R"("frequency_penalty": -1)", R"("logit_bias": {"5": 1})"}) {
    const std::string text = field;
    refuses(completion, text, text.substr(1, text.find('"', 1) - 1), "not supported");
  }
  for (const char* field :
       {R"("functions": [{}])", R"("response_format": {"type": "json_object"})", R"("tool_choice": "required")",
        R"("modalities": ["audio"])", R"("store": true)", R"("presence_penalty": 1)"}) {
    const std::string text = field;
    refuses(chat, text, text.substr(1, text.find('"', 1) - 1), "not supported");
  }
  refuses(completion, R"("temprature": 1)", "temprature", "did you mean 'temperature'?");
  refuses(chat, R"("prompt": "x")", "prompt", "unknown field");
  EXPECT_EQ(completion(R"("anything": null)").n, 1);
}

TEST(ApiRequestTest, BadJson) {
  const auto raw = [](const std::string& body) { return parse_completion_request(body, {}); };
  refuses(raw, "", "", "not valid JSON");
  refuses(raw, "[]", "", "not a JSON object");
  refuses(raw, "{} x", "", "not valid JSON");
  refuses(raw, "{\"prompt\": \"\xff\"}", "", "not valid JSON");
  refuses(raw, R"({"prompt": )" + std::string(100000, '['), "", "levels");
  refuses(raw, R"({"prompt": "\ud800"})", "", "not valid JSON");
}

}  // namespace
}  // namespace nmoe
