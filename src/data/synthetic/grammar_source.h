// "cfg": texts of a random layered grammar (data/synthetic/grammar.h).
//
// Settings: depth (4), levels of rules; symbols (3), of every level, terminals included; productions (2), of every
// symbol; unambiguous (true), only grammars in which every text has one derivation.
#pragma once

#include "data/synthetic/grammar.h"
#include "data/synthetic/settings.h"
#include "data/synthetic/source.h"

namespace nmoe {

class GrammarSource final : public SyntheticSource {
 public:
  // Error (usage) also when texts could be too unlikely for a double.
  GrammarSource(uint64_t seed, SettingReader& settings);

  const std::vector<std::string>& words() const override { return words_; }
  const ResolvedSettings& settings() const override { return settings_; }
  bool has_answers() const override { return false; }
  // Every token has a loss.
  void document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const override;
  // document_nats is exact if the grammar is unambiguous. Other values are means over sampled texts, from their exact
  // probabilities: end_nats, and by how much ambiguous texts are likelier than their derivations.
  EntropyFloor floor() const override;

  const Grammar& grammar() const { return grammar_; }

 private:
  // A text, and -log of its derivation's probability.
  double generate(uint64_t index, std::vector<int32_t>& tokens) const;

  uint64_t seed_;
  Grammar grammar_;
  std::vector<std::string> words_;
  ResolvedSettings settings_;
};

}  // namespace nmoe
