// Conversations as documents: messages of several speakers, with loss on the assistant's only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nmoe {

// A document ready for a shard, without its end-of-sequence id.
struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // 1 for ids with loss; empty where the shards have no masks
  int64_t text_bytes = 0;     // of its prompt and text; of a conversation, conversation_text (data/prep/messages.h)
};

// Turns messages into a tokenizer's ids, by a chat template, on which this folder does not depend
// (chat/conversation_encoder.h). Immutable and thread-safe.
class ConversationEncoder {
 public:
  virtual ~ConversationEncoder() = default;

  // Its documents: one, or several where a reply is seen behind other text than when more follows. `messages` and
  // `fields` as Record has them. Error (runtime) if they cannot be written as a conversation.
  virtual std::vector<EncodedDocument> encode(const std::string& messages, const std::string& fields) const = 0;

  // The chat template, a Jinja source.
  virtual const std::string& source() const = 0;

  // What the user should know of how conversations are written; "": nothing.
  virtual std::string note() const = 0;

  // Identifies everything besides the tokenizer that determines the results of encode().
  virtual std::string fingerprint() const = 0;
};

}  // namespace nmoe
