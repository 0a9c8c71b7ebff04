// Conversations as documents: messages of several speakers, of which the assistant's are to be learned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/prep/records.h"

namespace nmoe {

// One that is ready for a shard, without its end-of-sequence id.
struct EncodedConversation {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // 1 where the id is to be learned
};

// How a tokenizer's ids come out of messages: what chat templates are for, which this folder knows nothing of
// (chat/conversation_encoder.h). Immutable and thread-safe.
class ConversationEncoder {
 public:
  virtual ~ConversationEncoder() = default;

  // `messages` as Record::messages. Error (runtime) when they cannot be written as a conversation.
  virtual EncodedConversation encode(const std::string& messages) const = 0;

  // Names all that decides what encode() gives, beside the tokenizer.
  virtual std::string fingerprint() const = 0;
};

// Sets a record's messages and text from `json`, the value of its messages field: a list of {"role", "content"}, both
// strings, other members allowed, with at least one whose role is "assistant". The text is that of all contents, a line
// end between them: what filters and deduplication look at. Else a fault.
void take_messages(const std::string& json, Record& record);

}  // namespace nmoe
