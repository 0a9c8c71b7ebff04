// Conversations as documents to train on, by a chat template.
#pragma once

#include <memory>
#include <string>

#include "data/prep/conversation.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// `chat_template`: "chatml", a Jinja file, or the folder of a checkpoint or of a Hugging Face model, for its own
// template.
//
// The whole conversation is written by the template at once. Learned of it is what follows the template's prompt for a
// reply, for each message of the assistant, up to the last special token in it (the end of its turn), or all of it
// where there is none. Ids behind the last that is learned are left out, and so is an end-of-sequence id there, since
// one ends every document. Prompts and replies are encoded each by itself, so that a reply is made of the ids that a
// model would write. encode() fails where the template writes a message in another way when more follow: there is then
// no one text in which each reply stands behind its prompt.
//
// Errors: JinjaTemplate's; (usage) for a folder without a template, and for ChatML with a tokenizer that lacks its
// special tokens; (runtime) for a file that cannot be read.
std::shared_ptr<const ConversationEncoder> make_conversation_encoder(const std::string& chat_template,
                                                                     std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace nmoe
