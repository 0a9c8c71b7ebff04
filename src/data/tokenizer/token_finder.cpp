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
  std::ranges::sort(tokens_, [](const NamedToken& a, const NamedToken& b) {
    return first_byte(a.text) != first_byte(b.text) ? first_byte(a.text) < first_byte(b.text)
                                                    : a.text.size() > b.text.size();
  });
}

std::optional<TokenFinder::Match> TokenFinder::find(std::string_view text, size_t begin) const {
  for (size_t i = begin; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    for (uint32_t t = first_[byte]; t < first_[byte + 1U]; ++t) {
      if (text.substr(i).starts_with(tokens_[t].text)) return Match{i, i + tokens_[t].text.size(), tokens_[t].id};
    }
  }
  return std::nullopt;
}

}  // namespace nmoe
