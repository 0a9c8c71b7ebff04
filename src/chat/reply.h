// One reply of a conversation, as the model is to write it.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "chat/chat_template.h"

namespace nmoe {

// The first `count` messages.
nlohmann::ordered_json first_messages(const nlohmann::ordered_json& messages, size_t count);

struct RenderedReply {
  std::vector<RenderedPiece> pieces;  // all up to its end
  size_t prompt_bytes = 0;            // of these, what is given to the model
  bool as_written = false;            // the template itself would print something else
};

// Message `index` (from 0) of `messages`, the assistant's, behind the template's prompt for a reply to those before it.
// Where the template takes the message's reasoning ("<think>...</think>" in its content) out, or its prompt already
// begins with "<think>", the reply is the content as it is, what of it the prompt has left out. Error (runtime), naming
// the message, where a reply stands in no way behind its prompt.
RenderedReply reply_of(const ChatTemplate& chat, const nlohmann::ordered_json& messages, size_t index,
                       const nlohmann::ordered_json& variables);

}  // namespace nmoe
