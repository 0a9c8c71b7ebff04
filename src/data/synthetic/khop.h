// "khop": relations to look up and to follow, as in "Physics of Language Models: Part 4.1" (task Depo).
//
// A document draws `entities` of `pool` names and a permutation of them that is one cycle, and states it as pairs in
// random order, "a b" meaning that b follows a. Then come `queries` triples "hopK a b": K steps on from a is b, with K
// uniform in 1 ... max_hops and a uniform. Only the answers b have a loss.
//
// Settings: entities (16), pool (64), max_hops (4), queries (4).
#pragma once

#include "data/synthetic/settings.h"
#include "data/synthetic/source.h"

namespace nmoe {

class KHopSource final : public SyntheticSource {
 public:
  KHopSource(uint64_t seed, SettingReader& settings);

  // "0" ... names, then "hop1" ...
  const std::vector<std::string>& words() const override { return words_; }
  const ResolvedSettings& settings() const override { return settings_; }
  bool has_answers() const override { return true; }
  void document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const override;
  // Exact: all documents have the same length and are equally likely, one for each set of choices.
  EntropyFloor floor() const override;

 private:
  uint64_t seed_;
  int64_t num_entities_, pool_, max_hops_, num_queries_;
  std::vector<std::string> words_;
  ResolvedSettings settings_;
};

}  // namespace nmoe
