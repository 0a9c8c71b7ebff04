// The answers of OpenAI's API, put together from the events of a generation.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "serve/api_request.h"
#include "serve/generation_queue.h"

namespace nmoe {

// The prompt of some choices as the answer shows it.
struct ReplyPrompt {
  std::string text;          // of `echo`
  size_t hidden_tokens = 0;  // at the beginning: put before the text for the model's sake, not the client's
};

// One answer, whole or as the events of a stream. Call add() for each event until finished().
class ApiReply {
 public:
  // `prompts`: one for every `request.n` choices. Both live as long as this object, and the tokenizer too.
  ApiReply(const ApiRequest& request, std::vector<ReplyPrompt> prompts, std::string model, const Tokenizer& tokenizer);

  // What is to be sent for the event in a stream: chunks of JSON, often none.
  std::vector<std::string> add(const ReplyEvent& event);
  // The chunks before the first event, and after the last.
  std::vector<std::string> first_chunks();
  std::vector<std::string> last_chunks() const;

  bool finished() const { return num_finished_ == choices_.size(); }
  bool failed() const { return failed_; }  // the answer is not whole, and will not be
  std::string whole() const;               // when finished()

  const std::string& id() const { return id_; }
  int64_t prompt_tokens() const;
  int64_t output_tokens() const;

 private:
  struct Choice {
    std::string text;
    std::string thoughts;             // apart from it, of a reply that has channels
    nlohmann::ordered_json logprobs;  // null where not asked for
    std::string finish_reason;
    GenerationResult result;
    size_t text_offset = 0;  // characters of the tokens so far
    // Of a stream, what was not sent yet:
    nlohmann::ordered_json unsent_logprobs;
  };

  nlohmann::ordered_json frame(bool chunk) const;
  std::string chunk(size_t index, const std::string& text, const std::string& finish_reason, bool is_thought = false);
  nlohmann::ordered_json usage() const;
  nlohmann::ordered_json empty_logprobs() const;
  void add_token(Choice& choice, int32_t id, std::optional<float> logprob, const std::vector<TokenLogprob>& top);
  std::string bytes_of(int32_t id) const;
  std::string name_of(int32_t id) const;
  std::string echo_of(size_t choice) const;

  const ApiRequest& request_;
  std::vector<ReplyPrompt> prompts_;
  std::string model_;
  const Tokenizer& tokenizer_;
  std::string id_;
  int64_t created_;  // seconds since 1970
  std::vector<Choice> choices_;
  size_t num_finished_ = 0;
  bool failed_ = false;
};

}  // namespace nmoe
