// Requests of OpenAI's API for completions and chat, checked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "chat/checkpoint_settings.h"
#include "infer/sampler.h"

namespace nmoe {

struct ApiRequest {
  bool is_chat = false;
  std::string model;  // "": any

  // Of completions: texts, or ids that go to the model as they are.
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  bool echo = false;  // the prompt is a part of the text

  // Of chat: each {"role", "content"}, the content a string or parts of text (data/prep/messages.h), with "name",
  // "reasoning_content", "tool_calls" and "tool_call_id" where they were given, the arguments of calls as objects; and
  // more variables for the template, among them "tools", unless the model is not to call any.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json template_variables = nlohmann::ordered_json::object();

  std::optional<int64_t> max_tokens;
  SamplingOptions sampling;      // but for the seed
  std::optional<uint64_t> seed;  // of the first choice
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int64_t n = 1;  // choices a prompt
  bool logprobs = false;
  int top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;  // a last event of the stream
};

// The body of a POST. `defaults` are for what it leaves out. ApiError (400) naming the field: what is no JSON, out of
// its range, unknown, or known and not supported; a field that is null is one that is left out.
ApiRequest parse_completion_request(const std::string& body, const SamplingDefaults& defaults);
ApiRequest parse_chat_request(const std::string& body, const SamplingDefaults& defaults);

}  // namespace nmoe
