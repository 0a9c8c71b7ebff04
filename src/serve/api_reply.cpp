#include "serve/api_reply.h"

#include <fmt/format.h>

#include <chrono>
#include <random>
#include <utility>

#include "base/json.h"
#include "chat/jinja/text.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

constexpr const char* kThoughts = "reasoning_content";  // as vLLM and DeepSeek's API call them

std::string dump(const ordered_json& json) { return json_text(json); }

std::string random_id(bool chat) {
  std::random_device device;
  std::string id = chat ? "chatcmpl-" : "cmpl-";
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", device());
  return id;
}

// Characters that begin in `bytes`.
size_t count_characters(std::string_view bytes) {
  size_t count = 0;
  for (const char c : bytes) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

void append(ordered_json& list, const ordered_json& more) {
  for (const auto& [key, values] : more.items()) {
    if (!values.is_array()) continue;
    if (!list[key].is_array()) list[key] = ordered_json::array();
    for (const ordered_json& value : values) list[key].push_back(value);
  }
}

}  // namespace

ApiReply::ApiReply(const ApiRequest& request, std::vector<ReplyPrompt> prompts, std::string model,
                   const Tokenizer& tokenizer)
    : request_(request),
      prompts_(std::move(prompts)),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      id_(random_id(request.is_chat)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      choices_(prompts_.size() * static_cast<size_t>(request.n)) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].text = echo_of(i);
    choices_[i].logprobs = choices_[i].unsent_logprobs = empty_logprobs();
  }
}

std::string ApiReply::echo_of(size_t choice) const {
  return request_.echo ? prompts_[choice / static_cast<size_t>(request_.n)].text : "";
}

// ---- tokens ----

std::string ApiReply::bytes_of(int32_t id) const {
  const std::string_view special = tokenizer_.special_text(id);
  return std::string(special.empty() ? tokenizer_.token_bytes(id) : special);
}

// As a string; one that is no whole characters is told by its bytes, so that different tokens have different names.
std::string ApiReply::name_of(int32_t id) const {
  std::string bytes = bytes_of(id);
  if (jinja::encode(jinja::decode(bytes, 0)) == bytes) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

ordered_json ApiReply::empty_logprobs() const {
  if (!request_.logprobs) return nullptr;
  const ordered_json list = ordered_json::array();
  if (request_.is_chat) return {{"content", list}, {"refusal", nullptr}};
  return {{"text_offset", list},
          {"token_logprobs", list},
          {"tokens", list},
          {"top_logprobs", request_.top_logprobs > 0 ? list : ordered_json()}};
}

void ApiReply::add_token(Choice& choice, int32_t id, std::optional<float> logprob,
                         const std::vector<TokenLogprob>& top) {
  ordered_json& lists = choice.unsent_logprobs;
  const auto number = [](std::optional<float> value) {
    return value ? ordered_json(static_cast<double>(*value)) : ordered_json();
  };
  if (request_.is_chat) {
    const auto entry = [&](int32_t token, std::optional<float> value) {
      const std::string bytes = bytes_of(token);
      ordered_json values = ordered_json::array();
      for (const char byte : bytes) values.push_back(static_cast<unsigned char>(byte));
      return ordered_json{{"token", bytes}, {"logprob", number(value)}, {"bytes", std::move(values)}};
    };
    ordered_json token = entry(id, logprob);
    token["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& other : top) token["top_logprobs"].push_back(entry(other.id, other.logprob));
    lists["content"].push_back(std::move(token));
    return;
  }
  lists["text_offset"].push_back(choice.text_offset);
  lists["token_logprobs"].push_back(number(logprob));
  lists["tokens"].push_back(name_of(id));
  if (request_.top_logprobs > 0) {
    ordered_json named = nullptr;
    if (logprob) {
      named = ordered_json::object();
      for (const TokenLogprob& other : top) named.emplace(name_of(other.id), static_cast<double>(other.logprob));
      named.emplace(name_of(id), static_cast<double>(*logprob));
    }
    lists["top_logprobs"].push_back(std::move(named));
  }
  choice.text_offset += count_characters(tokenizer_.token_bytes(id));
}

// ---- events ----

std::vector<std::string> ApiReply::add(const ReplyEvent& event) {
  Choice& choice = choices_[event.choice];
  std::vector<std::string> chunks;
  if (const auto* text = std::get_if<ReplyEvent::Text>(&event.what)) {
    (text->is_thought ? choice.thoughts : choice.text) += text->piece;
    if (request_.stream) chunks.push_back(chunk(event.choice, text->piece, "", text->is_thought));
  } else if (const auto* token = std::get_if<GeneratedToken>(&event.what)) {
    add_token(choice, token->id, token->logprob, token->top);
  } else if (const auto* prompt = std::get_if<ReplyEvent::Prompt>(&event.what)) {
    const size_t hidden = prompts_[event.choice / static_cast<size_t>(request_.n)].hidden_tokens;
    for (size_t i = hidden; i < prompt->tokens.size(); ++i) {
      add_token(choice, prompt->tokens[i].id, prompt->tokens[i].logprob, prompt->tokens[i].top);
    }
    if (request_.stream) chunks.push_back(chunk(event.choice, echo_of(event.choice), ""));
  } else if (const auto* result = std::get_if<GenerationResult>(&event.what)) {
    choice.result = *result;
    // Evaluation harnesses count on as many tokens as were sampled, the one that ended the text among them.
    if (result->end && !request_.is_chat) add_token(choice, result->end->id, result->end->logprob, result->end->top);
    choice.finish_reason = finish_reason_name(result->reason);
    failed_ = failed_ || result->reason == FinishReason::kCancelled;
    if (request_.stream) {
      chunks.push_back(chunk(event.choice, "", choice.finish_reason));
    } else {
      append(choice.logprobs, choice.unsent_logprobs);
    }
    ++num_finished_;
  } else {
    failed_ = true;
    ++num_finished_;
  }
  return chunks;
}

ordered_json ApiReply::frame(bool chunk) const {
  const char* object = !request_.is_chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {
      {"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"choices", ordered_json::array()}};
}

std::string ApiReply::chunk(size_t index, const std::string& text, const std::string& finish_reason, bool is_thought) {
  Choice& choice = choices_[index];
  ordered_json body = {{"index", index}};
  if (request_.is_chat) {
    const char* const field = is_thought ? kThoughts : "content";
    body["delta"] = text.empty() ? ordered_json::object() : ordered_json{{field, text}};
  } else {
    body["text"] = text;
  }
  body["logprobs"] = std::exchange(choice.unsent_logprobs, empty_logprobs());
  body["finish_reason"] = finish_reason.empty() ? ordered_json() : ordered_json(finish_reason);
  ordered_json json = frame(/*chunk=*/true);
  json["choices"].push_back(std::move(body));
  if (request_.include_usage) json["usage"] = nullptr;
  return dump(json);
}

std::vector<std::string> ApiReply::first_chunks() {
  std::vector<std::string> chunks;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (request_.is_chat) {
      ordered_json json = frame(/*chunk=*/true);
      json["choices"].push_back({{"index", i},
                                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}});
      if (request_.include_usage) json["usage"] = nullptr;
      chunks.push_back(dump(json));
    } else if (request_.echo && !request_.logprobs) {
      chunks.push_back(chunk(i, echo_of(i), ""));
    }
  }
  return chunks;
}

std::vector<std::string> ApiReply::last_chunks() const {
  if (!request_.include_usage) return {};
  ordered_json json = frame(/*chunk=*/true);
  json["usage"] = usage();
  return {dump(json)};
}

int64_t ApiReply::prompt_tokens() const {
  int64_t count = 0;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(request_.n))
    count += choices_[i].result.prompt_tokens;
  return count;
}

int64_t ApiReply::output_tokens() const {
  int64_t count = 0;
  for (const Choice& choice : choices_) count += choice.result.output_tokens;
  return count;
}

ordered_json ApiReply::usage() const {
  int64_t cached = 0, drafted = 0, accepted = 0;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(request_.n))
    cached += choices_[i].result.cached_tokens;
  for (const Choice& choice : choices_) {
    drafted += choice.result.drafted_tokens;
    accepted += choice.result.accepted_tokens;
  }
  ordered_json usage = {{"prompt_tokens", prompt_tokens()},
                        {"completion_tokens", output_tokens()},
                        {"total_tokens", prompt_tokens() + output_tokens()},
                        {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (drafted > 0) {
    usage["completion_tokens_details"] = {{"accepted_prediction_tokens", accepted},
                                          {"rejected_prediction_tokens", drafted - accepted}};
  }
  return usage;
}

std::string ApiReply::whole() const {
  ordered_json json = frame(/*chunk=*/false);
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    ordered_json body = {{"index", i}};
    if (request_.is_chat) {
      body["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (!choice.thoughts.empty()) body["message"][kThoughts] = choice.thoughts;
    } else {
      body["text"] = choice.text;
    }
    body["logprobs"] = choice.logprobs;
    body["finish_reason"] = choice.finish_reason;
    json["choices"].push_back(std::move(body));
  }
  json["usage"] = usage();
  return dump(json);
}

}  // namespace nmoe
