// How a shard stores token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace nmoe {

enum class TokenType { kUint16, kUint32 };

TokenType token_type_for(int64_t vocab_size);  // kUint16 up to 65,536 ids
size_t bytes_per_token(TokenType type);
std::string token_type_name(TokenType type);  // "uint16", "uint32"

}  // namespace nmoe
