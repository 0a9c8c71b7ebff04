#include "data/tokenizer/token_finder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nmoe {
namespace {

size_t first_byte(std::string_view text) { return static_cast<unsigned char>(text.front()); }

}  // namespace

TokenFinder::TokenFinder(std::span<const NamedToken> tokens) : tokens_(tokens.begin(), tokens.end()) {
  for (const NamedToken& token : tokens_) {
    NMOE_CHECK(!token.text.empty(), "token {} has no text", token.id);
    ++first_[first_byte(token.text) + 1];
  }
  for (size_t byte = 1; byte < first_.size(); ++byte) first_[byte] += first_[byte - 1];
  std::ranges::stable_sort(tokens_, {}, &NamedToken::text);
}

std::optional<TokenFinder::Match> TokenFinder::find(std::string_view text, size_t begin) const {
  for (size_t i = begin; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // Tokens [first, last) begin as the text does at i, for `size` bytes and more: fewer with every byte.
    uint32_t first = first_[byte], last = first_[byte + 1U];
    const NamedToken* longest = nullptr;
    for (size_t size = 1; first < last; ++size) {
      if (tokens_[first].text.size() == size) longest = &tokens_[first];
      while (first < last && tokens_[first].text.size() == size) ++first;
      if (i + size == text.size()) break;
      const auto next = static_cast<unsigned char>(text[i + size]);
      const auto byte_at = [&](const NamedToken& token) { return static_cast<unsigned char>(token.text[size]); };
      const std::span range = std::span(tokens_).subspan(first, last - first);
      const auto same = std::ranges::equal_range(range, next, {}, byte_at);
      last = first + static_cast<uint32_t>(same.end() - range.begin());
      first += static_cast<uint32_t>(same.begin() - range.begin());
    }
    if (longest != nullptr) return Match{i, i + longest->text.size(), longest->id};
  }
  return std::nullopt;
}

}  // namespace nmoe
