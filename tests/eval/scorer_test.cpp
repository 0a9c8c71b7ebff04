// A model with random weights: what texts get, against the model seen whole, and that nothing beside them changes it.
#include <gtest/gtest.h>

#include <cmath>

#include "eval/cached_scorer.h"
#include "eval/packed_scorer.h"
#include "eval/scored_groups.h"
#include "infer/load_model.h"
#include "infer/logprobs.h"
#include "infer/recurrent_model.h"
#include "infer/whole_logits.h"
#include "support/log_sum.h"

namespace nmoe {
namespace {

using test::Group;
using test::mixed_groups;
using test::random_config;
using test::scores_of;
using test::text_of;

std::unique_ptr<CachedScorer> make_scorer(int64_t slots, bool share_prefixes, int num_threads = 2) {
  return std::make_unique<CachedScorer>(
      random_cached_model(random_config(), byte_tokenizer(),
                          {.num_threads = num_threads,
                           .cached = {.num_slots = slots, .capacity = 400, .max_scores = CachedScorer::kMaxScores}}),
      share_prefixes);
}

TEST(CachedScorer, GivesWhatTheWholeModelSays) {
  const std::vector<Group> groups = mixed_groups();
  const auto scores = scores_of(*make_scorer(4, true), groups);
  for (const size_t group : {size_t{0}, size_t{1}, size_t{2}, size_t{9}, groups.size() - 1}) {
    for (size_t i = 0; i < groups[group].size(); ++i) {
      const ScoredText& text = groups[group][i];
      const auto logits = test::whole_logits(random_config(), text.tokens, [](WeightSet& weights, Ops& ops) {
        weights.initialise(ops, 3, random_config().model.init.truncation);
      });
      double nats = 0.0;
      bool greedy = true;
      for (auto at = static_cast<size_t>(text.begin); at < text.tokens.size(); ++at) {
        const std::vector<float>& row = logits[at - 1];
        const auto target = static_cast<size_t>(text.tokens[at]);
        nats += static_cast<double>(test::log_sum(row).loss(row[target]));
        greedy = greedy && *std::ranges::max_element(row) == row[target];
      }
      EXPECT_NEAR(scores[group][i].nats, nats, 1e-5 * nats + 1e-5) << "group " << group << ", text " << i;
      EXPECT_EQ(scores[group][i].greedy, greedy);
      EXPECT_EQ(scores[group][i].tokens, std::ssize(text.tokens) - text.begin);
    }
  }
}

// States that do not go back: a prefix is copied, and every text goes on from the copy.
TEST(CachedScorer, SharesPrefixesOfRecurrentStatesByCopies) {
  const std::vector<Group> groups = mixed_groups();
  std::vector<int64_t> computed;
  for (const auto& [slots, share] : {std::pair(1, true), std::pair(4, false), std::pair(2, true), std::pair(9, true)}) {
    CachedScorer scorer(
        test::recurrent_model(random_config(),
                              {.num_slots = slots, .capacity = 400, .max_scores = CachedScorer::kMaxScores}),
        share);
    for (int round = 0; round < 2; ++round) {
      const auto scores = scores_of(scorer, groups);
      for (size_t group = 0; group < groups.size(); ++group) {
        for (size_t i = 0; i < groups[group].size(); ++i) {
          const ScoredText& text = groups[group][i];
          const auto rows = test::logits_of_text(text.tokens);
          double nats = 0.0;
          for (auto at = static_cast<size_t>(text.begin); at < text.tokens.size(); ++at) {
            const std::vector<float>& row = rows[at - 1];
            nats += static_cast<double>(test::log_sum(row).loss(row[static_cast<size_t>(text.tokens[at])]));
          }
          EXPECT_EQ(scores[group][i].nats, nats) << "group " << group << ", text " << i << ", " << slots << " slots";
        }
      }
    }
    computed.push_back(scorer.computed_tokens());
  }
  EXPECT_EQ(computed[0], computed[1]);  // no slot for a copy
  EXPECT_LT(computed[2], computed[1] * 3 / 4);
  EXPECT_LE(computed[3], computed[1] * 3 / 4);
}

TEST(CachedScorer, SameBitsForAnySlotsOrderThreadsAndSharing) {
  const std::vector<Group> groups = mixed_groups();
  const auto expected = scores_of(*make_scorer(1, false), groups);
  for (const auto& of_group : expected) ASSERT_FALSE(of_group.empty());
  for (const int64_t slots : {1, 3, 40}) {
    const auto scorer = make_scorer(slots, true);
    EXPECT_EQ(scores_of(*scorer, groups), expected) << slots << " slots";
    EXPECT_EQ(scores_of(*scorer, groups), expected) << slots << " slots, with what was in the cache before";
  }
  EXPECT_EQ(scores_of(*make_scorer(5, true, 1), groups), expected);
  auto reversed = groups;
  std::ranges::reverse(reversed);
  auto backwards = scores_of(*make_scorer(5, true), reversed);
  std::ranges::reverse(backwards);
  EXPECT_EQ(backwards, expected);
}

TEST(CachedScorer, ComputesBeginningsOnce) {
  const std::string head = test::tiny_text(100, 5);
  const auto size = static_cast<int64_t>(head.size());
  const std::vector<Group> groups = {{text_of(head + "A", size), text_of(head + "B", size), text_of(head + "C", size)},
                                     {text_of(head + "xyA", size + 2), text_of(head + "xyB", size + 2)}};
  const auto shared = make_scorer(1, true), whole = make_scorer(1, false);
  EXPECT_EQ(scores_of(*shared, groups), scores_of(*whole, groups));
  // A last token that alone differs is a score of a row that all have; the second group goes on from the first.
  EXPECT_EQ(shared->computed_tokens(), size + 2);
  EXPECT_EQ(whole->computed_tokens(), 3 * size + 2 * (size + 2));
}

// On the CPU a long product's bits depend on its rows, so that these agree up to rounding.
TEST(PackedScorer, GivesWhatTheCachedOneDoes) {
  const std::vector<Group> groups = mixed_groups();
  const auto expected = scores_of(*make_scorer(4, true), groups);
  for (const auto& [num_rows, share_prefixes] : {std::pair(400, true), {1300, true}, {1300, false}}) {
    PackedScorer packed(random_config(),
                        {.num_threads = 2, .max_tokens = 400, .num_rows = num_rows, .share_prefixes = share_prefixes});
    const auto scores = scores_of(packed, groups);
    for (size_t group = 0; group < groups.size(); ++group) {
      ASSERT_EQ(scores[group].size(), expected[group].size());
      for (size_t i = 0; i < scores[group].size(); ++i) {
        EXPECT_NEAR(scores[group][i].nats, expected[group][i].nats, 1e-4 * expected[group][i].nats);
        EXPECT_EQ(scores[group][i].tokens, expected[group][i].tokens);
        EXPECT_EQ(scores[group][i].greedy, expected[group][i].greedy);
      }
    }
  }
}

// Ends behind the same place, ends that share more, and a text that ends within what others begin with.
TEST(PackedScorer, ComputesBeginningsOnce) {
  const std::string head = test::tiny_text(100, 5), middle = test::tiny_text(40, 6);
  const auto size = static_cast<int64_t>(head.size()), both = static_cast<int64_t>(head.size() + middle.size());
  const std::vector<Group> groups = {
      {text_of(head + "A", size), text_of(head + "B", size), text_of(head + "QRSTU", size)},
      {text_of(head + middle + "xA", both), text_of(head + middle + "yyB", both)},
      {text_of(head.substr(0, 60) + "!", 60)},
      {text_of(head + middle + "zzA", both)},
      {text_of("something else", 3)}};
  PackedScorer shared(random_config(), {.num_threads = 2, .max_tokens = 400, .num_rows = 1000});
  PackedScorer whole(random_config(), {.num_threads = 2, .max_tokens = 400, .num_rows = 1000, .share_prefixes = false});
  const auto scores = scores_of(shared, groups), expected = scores_of(whole, groups);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < groups[group].size(); ++i) {
      EXPECT_NEAR(scores[group][i].nats, expected[group][i].nats, 1e-5 * expected[group][i].nats);
      EXPECT_EQ(scores[group][i].tokens, expected[group][i].tokens);
      EXPECT_EQ(scores[group][i].greedy, expected[group][i].greedy);
    }
  }
  EXPECT_EQ(whole.computed_tokens(), 3 * size + 4 + 3 * both + 1 + 2 + 2 + 60 + 13);
  // The last of the first group leaves four rows behind `head`, the next group begins behind it, too; what comes behind
  // the short text shares its 60 with it.
  EXPECT_EQ(shared.computed_tokens(), size + 4 + (both - size) + 1 + 2 + (both - 60) + 2 + 13);
}

}  // namespace
}  // namespace nmoe
