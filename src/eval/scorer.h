// The likelihood of texts under a model: what every task needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace nmoe {

// A text of which the tokens from `begin` on are scored, each given all before it. begin is in [1, tokens.size()).
struct ScoredText {
  std::vector<int32_t> tokens;
  int64_t begin = 1;
};

struct TextScore {
  double nats = 0.0;   // the sum of the tokens' losses, in their order
  int64_t tokens = 0;  // that were scored
  bool greedy = true;  // each of them is the model's likeliest, the lowest of equals
  bool operator==(const TextScore&) const = default;
};

// Takes texts in groups, within which texts often share a prefix. The score of a text depends on the text and the model
// alone, to the bit: not on its group, nor on what else is scored.
class Scorer {
 public:
  virtual ~Scorer() = default;

  // The most tokens that a text may have.
  virtual int64_t max_tokens() const = 0;
  // Scores `groups`, calling `done` with the index of each when it is ready, in any order.
  virtual void score(std::span<const std::vector<ScoredText>* const> groups,
                     const std::function<void(size_t group, std::span<const TextScore> scores)>& done) = 0;
  // Tokens that the model has computed so far.
  virtual int64_t computed_tokens() const = 0;
};

}  // namespace nmoe
