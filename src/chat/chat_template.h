// Conversations as prompts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
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
  ChatTemplate(const CheckpointSettings& settings, const std::string& choice, const Tokenizer& tokenizer);

  const std::string& source() const { return source_; }  // Jinja

  // The text of a conversation. `messages` is a list of {"role", "content", ...}, `extra` an object of more variables
  // for the template ("enable_thinking"). With `add_generation_prompt`, the beginning of a reply follows. Error
  // (runtime): the template refuses it.
  std::vector<RenderedPiece> render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                    const nlohmann::ordered_json& extra) const;

  // The special token that the template writes behind what the assistant said, if it writes one: a reply ends with it.
  std::optional<int32_t> end_of_turn(const Tokenizer& tokenizer) const;

 private:
  std::string source_;
  JinjaTemplate template_;
  std::map<std::string, std::string> special_tokens_;
};

// The ids of a rendered text. Special tokens count where the template wrote them. In what came with the messages they
// are text: no message can end its turn and speak for another role. (The package transformers lets them.)
std::vector<int32_t> encode_rendered(const std::vector<RenderedPiece>& pieces, const Tokenizer& tokenizer);

}  // namespace nmoe
