// Conversations as documents: messages of several speakers, with loss on the assistant's only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/prep/records.h"

namespace nmoe {

// A conversation ready for a shard, without its end-of-sequence id.
struct EncodedConversation {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // 1 for ids with loss
};

// Turns messages into a tokenizer's ids, by a chat template, on which this folder does not depend
// (chat/conversation_encoder.h). Immutable and thread-safe.
class ConversationEncoder {
 public:
  virtual ~ConversationEncoder() = default;

  // `messages` as Record::messages. Error (runtime) if they cannot be written as a conversation.
  virtual EncodedConversation encode(const std::string& messages) const = 0;

  // Identifies everything besides the tokenizer that determines the results of encode().
  virtual std::string fingerprint() const = 0;
};

// Sets a record's messages and text from `json`, the value of its messages field: a list of {"role", "content"}, both
// strings, other members allowed, with at least one whose role is "assistant". The text consists of all contents,
// separated by line ends, for filters and deduplication. Otherwise sets a fault.
void take_messages(const std::string& json, Record& record);

}  // namespace nmoe
