// The messages of a record: what may be in them, and which of them are trained on.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/prep/record.h"

namespace nmoe {

// What a record says, apart from what only training is to know.
struct Conversation {
  nlohmann::ordered_json messages;   // a list of {"role", "content", ...}, as templates take it
  nlohmann::ordered_json variables;  // an object: what templates take beside it ("tools")
  std::vector<bool> learned;         // of each message: whether it is the assistant's, and to be trained on
};

// Whether the member `name` of a record, beside its messages, says something about the conversation:
//   tools, documents         lists (or JSON that is one, in a string) that a template takes beside the messages
//   chat_template_kwargs     an object of more variables for the template
// and those by whose meaning a conversation would be another, which nmoe refuses.
bool is_conversation_field(std::string_view name);
// The same of one that is not the messages themselves, and is not to be ignored.
bool is_field_beside_messages(std::string_view name, const RecordOptions& options);

// A content may be a list of parts in OpenAI's form, each {"type": "text", "text": string}. What is wrong with such a
// list, as the end of a sentence about its message ("a part of the type \"image_url\"..."); "" where nothing is.
std::string wrong_part(const nlohmann::ordered_json& parts);
// A content as one text: a string as it is, nothing for null, parts joined by line ends. Error (runtime) for wrong
// parts.
std::string content_text(const nlohmann::ordered_json& content);

// `messages`: JSON, a list of {"role": string, "content": string or parts, ...}; no content, or null, only beside
// "tool_calls".
// At least one must be the assistant's and learned. Members that are null are left out. A message is not learned where
// "weight", "train", "trainable" or "loss" is 0 or false, or "masked" is 1 or true. `fields`: a JSON object of the
// record's is_conversation_field members, or "". Error (runtime), naming the message and its member, for anything else.
Conversation parse_conversation(const std::string& messages, const std::string& fields);

// What the first `count` messages say, for filters and deduplication: contents, reasoning and tool calls, separated by
// line ends.
std::string conversation_text(const nlohmann::ordered_json& messages, size_t count);

// Sets a record's messages, fields and text from the value of its messages field and the object of its
// is_conversation_field members ("": none), as parse_conversation reads them. Otherwise sets a fault.
void take_messages(const std::string& messages, const std::string& fields, Record& record);

}  // namespace nmoe
