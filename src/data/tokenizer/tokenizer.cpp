#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

constexpr int32_t kByteTokens = 256;

constexpr std::array<char, kByteTokens> kBytes = [] {
  std::array<char, kByteTokens> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::vector<std::string> patterns() const override { return {}; }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    const size_t begin = out.size();
    out.resize(begin + text.size());
    int32_t* ids = out.data() + begin;
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
  }

  std::span<const NamedToken> special_tokens() const override {
    static const NamedToken eos{std::string(kEosText), kByteTokens};
    return {&eos, 1};
  }

  std::string_view token_bytes(int32_t id) const override {
    NMOE_CHECK(id >= 0 && id < vocab_size(), "id {} of {}", id, vocab_size());
    if (id == kByteTokens) return {};
    return {&kBytes[static_cast<size_t>(id)], 1};
  }

  int64_t vocab_size() const override { return kByteTokens + 1; }
  int32_t eos_id() const override { return kByteTokens; }
  std::string hash() const override { return sha256_hex("nmoe bytes 1"); }
  std::string hash_with_end(int32_t /*eos_id*/) const override { return hash(); }
  std::string json() const override { return "{\"type\": \"bytes\"}\n"; }
};

}  // namespace

void Tokenizer::encode(std::string_view text, const TokenFinder& allowed, std::vector<int32_t>& out) const {
  allowed.cut(
      text, [&](std::string_view part) { encode(part, out); }, [&](int32_t id) { out.push_back(id); });
}

std::optional<int32_t> Tokenizer::special_id(std::string_view text) const {
  const auto specials = special_tokens();
  const auto found = std::ranges::find(specials, text, &NamedToken::text);
  return found == specials.end() ? std::nullopt : std::optional(found->id);
}

std::string_view Tokenizer::special_text(int32_t id) const {
  const auto specials = special_tokens();
  const auto found = std::ranges::find(specials, id, &NamedToken::id);
  return found == specials.end() ? std::string_view() : found->text;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_bytes(id);
  return text;
}

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  static const auto tokenizer = std::make_shared<const ByteTokenizer>();
  return tokenizer;
}

}  // namespace nmoe
