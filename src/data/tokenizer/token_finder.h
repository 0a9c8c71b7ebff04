// Finding tokens that stand in a text by name, such as "<|endoftext|>".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

struct NamedToken {
  std::string text;  // not empty
  int32_t id = 0;
  bool operator==(const NamedToken&) const = default;
};

// Immutable and safe to share between threads.
class TokenFinder {
 public:
  TokenFinder() = default;  // finds nothing
  explicit TokenFinder(std::span<const NamedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };
  // The leftmost token at or after `begin`, of several there the longest.
  std::optional<Match> find(std::string_view text, size_t begin) const;

  // Cuts `text`: calls on_text(part) for what is between tokens (parts that are not empty), on_token(id) for tokens, in
  // order.
  template <class OnText, class OnToken>
  void cut(std::string_view text, OnText&& on_text, OnToken&& on_token) const {
    size_t place = 0;
    while (place < text.size()) {
      const auto match = empty() ? std::nullopt : find(text, place);
      const size_t end = match ? match->begin : text.size();
      if (end > place) on_text(text.substr(place, end - place));
      if (!match) break;
      on_token(match->id);
      place = match->end;
    }
  }

 private:
  std::vector<NamedToken> tokens_;     // in byte order of their texts
  std::array<uint32_t, 257> first_{};  // tokens that begin with byte b: first_[b] up to first_[b + 1]
};

}  // namespace nmoe
