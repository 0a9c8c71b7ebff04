// A template's text cut into tokens, with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <vector>

#include "chat/jinja/text.h"

namespace nmoe::jinja {

enum class TokenKind {
  kData,  // text outside of all tags, as it is to be printed
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kInteger,
  kFloat,
  kString,    // unescaped, without quotes
  kOperator,  // also brackets and the comma
  kEnd,
};

struct Token {
  TokenKind kind;
  Text text;
  int line;
};

// The last token is kEnd. Failure where a tag is not closed or a character has no place in it.
std::vector<Token> cut_template(const Text& source);

}  // namespace nmoe::jinja
