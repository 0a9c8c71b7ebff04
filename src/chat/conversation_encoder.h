// Conversations as documents to train on, by a chat template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/prep/conversation.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

struct ConversationOptions {
  // "chatml", a Jinja file, or the folder of a checkpoint or of a Hugging Face model, for its own template.
  std::string chat_template = "chatml";
  // Members of messages that mean nothing, though the template does not look at them.
  std::vector<std::string> ignored_fields = {};
  // YYYY-MM-DD, for a template that writes the date (strftime_now): the same conversations are the same bytes on any
  // day.
  std::string date = "2025-01-01";
};

// A conversation is written as the model will see it when it replies: behind the template's prompt for a reply. Where
// all replies stand so in the text of the whole conversation, that is the document. Where the template writes earlier
// turns in another way once more follow (it drops their reasoning, say), there is one document for each reply, that
// reply alone learned.
//
// Learned of a reply is all up to the last byte that came with the message, and what the model has to write behind it:
// through the end of the turn (ChatTemplate::end_of_reply, or a stop of the model), or else the last special token that
// the template writes there; where a template ends no reply so, through the first special token of the next turn, or
// else the text in front of what is said next. Ids behind the last that is learned are left out, and so is an
// end-of-sequence id there, since one ends every document. Prompts and replies are encoded each by itself, so that a
// reply is made of the ids that a model would write.
//
// Where the template takes the reasoning out of the reply that is to be learned (DeepSeek-R1), the reply is the content
// as it is, behind the prompt.
//
// encode() fails for messages that the template refuses; for a member of a message, or of the record, at which the
// template does not look, unless it is known to say nothing of the text (an id) or ignored; and where the reply does
// not stand behind the template's own prompt for it.
//
// Errors: JinjaTemplate's; (usage) for a folder without a template, for ChatML with a tokenizer that lacks its special
// tokens, for a date that is none; (runtime) for a file that cannot be read.
std::shared_ptr<const ConversationEncoder> make_conversation_encoder(const ConversationOptions& options,
                                                                     std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace nmoe
