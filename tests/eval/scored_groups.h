// Texts to score, a model to score them with, and what a scorer says.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "eval/scorer.h"
#include "support/tiny_run.h"

namespace nmoe::test {

using Group = std::vector<ScoredText>;

inline Config random_config() {
  return parse_config(kTinyToml, "tiny.toml",
                      std::vector<std::string>{"model.vocab_size=257", "model.init.std=0.3",
                                               "model.init.embedding_std=1", "run.seed=3"});
}

inline ScoredText text_of(const std::string& text, int64_t begin) {
  return {.tokens = {text.begin(), text.end()}, .begin = begin};
}

// Texts that begin alike, that end alike, one that is the beginning of another, and single ones; longer than a call.
inline std::vector<Group> mixed_groups() {
  std::vector<Group> groups;
  for (uint64_t i = 0; i < 12; ++i) {
    const std::string head = tiny_text(5 + 23 * (i % 5), i);
    const auto size = static_cast<int64_t>(head.size());
    groups.push_back({text_of(head + " cat", size + 1), text_of(head + " dog and more", size + 1),
                      text_of(head + " c", size + 1), text_of(head + " " + std::string(i, 'x') + "y", size + 1)});
    groups.push_back({text_of("a " + head, 2), text_of("the " + head, 4)});
    groups.push_back({text_of(head, 1 + static_cast<int64_t>(i) % 3)});
  }
  groups.push_back({text_of(tiny_text(390, 99), 20)});
  groups.push_back({text_of(tiny_text(390, 99) + "b", 390), text_of(tiny_text(390, 99) + "a", 390)});
  return groups;
}

inline std::vector<std::vector<TextScore>> scores_of(Scorer& scorer, const std::vector<Group>& groups) {
  std::vector<const Group*> pointers;
  for (const Group& group : groups) pointers.push_back(&group);
  std::vector<std::vector<TextScore>> all(groups.size());
  scorer.score(pointers, [&](size_t group, std::span<const TextScore> scores) {
    EXPECT_TRUE(all[group].empty()) << "group " << group << " twice";
    all[group].assign(scores.begin(), scores.end());
  });
  return all;
}

}  // namespace nmoe::test
