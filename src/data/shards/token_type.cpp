#include "data/shards/token_type.h"

namespace nmoe {
namespace {

constexpr int64_t kMaxUint16Vocab = 1 << 16;

}  // namespace

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size <= kMaxUint16Vocab ? TokenType::kUint16 : TokenType::kUint32;
}
size_t bytes_per_token(TokenType type) { return type == TokenType::kUint16 ? 2 : 4; }
std::string token_type_name(TokenType type) { return type == TokenType::kUint16 ? "uint16" : "uint32"; }

}  // namespace nmoe
