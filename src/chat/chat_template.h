// Conversations as prompts.
#pragma once

#include <array>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/checkpoint_settings.h"
#include "chat/jinja/template.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// The special tokens with which a turn begins and ends in ChatML.
inline constexpr std::array kChatMlMarks = {"<|im_start|>", "<|im_end|>"};

// A chat template and a checkpoint's special tokens. Immutable; safe to use from several threads at once.
class ChatTemplate {
 public:
  // `choice`:
  //   ""        the checkpoint's own; where it has none, ChatML
  //   "chatml"  ChatML: "<|im_start|>role\ncontent<|im_end|>\n" for each message, both marks being special tokens
  //   other     a Jinja file
  // Errors: JinjaTemplate's; (usage) when the tokenizer lacks ChatML's marks, or there is no such file; (runtime) when
  // it cannot be read.
  // `now` is the time for templates that write one; nothing: the clock's.
  ChatTemplate(const CheckpointSettings& settings, const std::string& choice, const Tokenizer& tokenizer,
               const std::optional<std::tm>& now = {});

  const std::string& source() const { return source_; }  // Jinja
  bool mentions(std::string_view name) const { return template_.mentions(name); }

  // The text of a conversation. `messages` is a list of {"role", "content", ...}, `extra` an object of more variables
  // for the template ("enable_thinking"). With `add_generation_prompt`, the beginning of a reply follows. A role is the
  // template's own text if it is one of those that templates know (system, developer, user, assistant, tool, function,
  // observation, ipython), so that markers are built around it; any other came with the data. A content that is a list
  // of parts (data/prep/messages.h) is given as such to a template that reads lists, and as one text to others. Error
  // (runtime): the template refuses it.
  std::vector<RenderedPiece> render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                    const nlohmann::ordered_json& extra) const;

  // The place of the first message, but for the assistant's, whose content has no part in the text of the conversation:
  // templates pass over messages of a role that they do not know.
  std::optional<size_t> unwritten_message(const nlohmann::ordered_json& messages,
                                          const nlohmann::ordered_json& extra) const;

  // The special token that the template writes behind what the assistant said, if it writes one.
  std::optional<int32_t> end_of_reply(const Tokenizer& tokenizer) const;
  // What a reply ends with: that one, or else the first special token of the turn that follows.
  std::optional<int32_t> end_of_turn(const Tokenizer& tokenizer) const;
  // What the template writes from the end of `messages` to what `role` says next; "" where it takes no such message.
  std::string next_turn(const nlohmann::ordered_json& messages, const std::string& role,
                        const nlohmann::ordered_json& extra) const;

 private:
  std::vector<RenderedPiece> render_as_given(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                             const nlohmann::ordered_json& extra) const;

  std::string source_;
  JinjaTemplate template_;
  std::map<std::string, std::string> special_tokens_;
  std::optional<std::tm> now_;
};

// The special tokens in what a template wrote, in order.
std::vector<TokenFinder::Match> special_tokens_in(std::string_view text, const Tokenizer& tokenizer);

// The ids of a rendered text. Special tokens count where the template wrote them. In what came with the messages they
// are text: no message can end its turn and speak for another role. (The package transformers lets them.)
std::vector<int32_t> encode_rendered(const std::vector<RenderedPiece>& pieces, const Tokenizer& tokenizer);

}  // namespace nmoe
