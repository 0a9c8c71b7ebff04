#include "data/stream/schedule.h"

#include <gtest/gtest.h>

#include <numeric>

#include "data/test_data.h"

namespace nmoe {
namespace {

StreamPlan plan_of(std::vector<std::vector<int64_t>> stage_quotas) {
  StreamPlan plan{.seq_len = 4};
  for (size_t i = 0; i < stage_quotas[0].size(); ++i) {
    plan.sources.push_back({.name = fmt::format("s{}", i), .hash = "", .num_tokens = 1000});
  }
  std::vector<int64_t> taken(plan.sources.size(), 0);
  for (const auto& quotas : stage_quotas) {
    const int64_t total = std::accumulate(quotas.begin(), quotas.end(), int64_t{0});
    plan.stages.push_back({.name = "stage", .seq_len = 4, .num_sequences = total, .quotas = quotas, .first = taken});
    for (size_t i = 0; i < taken.size(); ++i) taken[i] += quotas[i];
  }
  return plan;
}

std::vector<SequenceRef> take(StreamSchedule& schedule, int64_t count) {
  std::vector<SequenceRef> refs;
  schedule.take(count, refs);
  return refs;
}

TEST(Schedule, SmoothWeightedRoundRobinByHand) {
  const StreamPlan plan = plan_of({{5, 1, 1}});
  StreamSchedule schedule(plan);
  // The order of nginx's documentation of the algorithm for weights 5, 1, 1: a a b a c a a.
  const std::vector<SequenceRef> expected = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {2, 0}, {0, 3}, {0, 4}};
  EXPECT_EQ(take(schedule, 7), expected);
  EXPECT_EQ(schedule.cursor().stage, 1);
  expect_error(ErrorKind::kRuntime, "the data plan ends after 7 sequences", [&] { take(schedule, 1); });
}

// Every source is taken exactly as often as planned, in order, and at any time within one of its share for each other
// source; rare ones up to their last sequence.
TEST(Schedule, QuotasAreMetAndSpreadEvenly) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<std::vector<int64_t>> stages;
    const size_t num_sources = 1 + random() % 6;
    for (size_t s = 0; s < 1 + random() % 3; ++s) {
      std::vector<int64_t> quotas;
      for (size_t i = 0; i < num_sources; ++i) quotas.push_back(random() % 4 == 0 ? random() % 2 : random() % 300);
      ++quotas[0];
      stages.push_back(quotas);
    }
    const StreamPlan plan = plan_of(stages);
    StreamSchedule schedule(plan);
    std::vector<int64_t> taken(num_sources, 0), before(num_sources, 0);
    for (const PlannedStage& stage : plan.stages) {
      for (int64_t k = 1; k <= stage.num_sequences; ++k) {
        const SequenceRef ref = take(schedule, 1)[0];
        const auto source = static_cast<size_t>(ref.source);
        ASSERT_EQ(ref.index, taken[source]++);
        for (size_t i = 0; i < num_sources; ++i) {
          const double share = static_cast<double>(stage.quotas[i] * k) / static_cast<double>(stage.num_sequences);
          ASSERT_LE(std::abs(static_cast<double>(taken[i] - before[i]) - share), static_cast<double>(num_sources));
        }
      }
      for (size_t i = 0; i < num_sources; ++i) ASSERT_EQ(taken[i] - before[i], stage.quotas[i]);
      ASSERT_EQ(schedule.cursor().credits, std::vector<int64_t>(num_sources, 0));
      before = taken;
    }
  }
}

TEST(Schedule, ResumesAnywhere) {
  const StreamPlan plan = plan_of({{5, 3, 0}, {1, 7, 2}, {0, 0, 4}});
  StreamSchedule straight(plan);
  const std::vector<SequenceRef> all = take(straight, plan.num_sequences());
  for (int64_t cut = 0; cut <= plan.num_sequences(); ++cut) {
    StreamSchedule first(plan);
    std::vector<SequenceRef> refs = take(first, cut);
    StreamSchedule second(plan);
    second.seek(first.cursor());
    second.take(plan.num_sequences() - cut, refs);
    EXPECT_EQ(refs, all) << cut;
    EXPECT_EQ(second.cursor(), straight.cursor());
  }
}

TEST(Schedule, RefusesTheCursorOfAnotherPlan) {
  const StreamPlan plan = plan_of({{5, 3}, {2, 2}}), other = plan_of({{2, 2}, {5, 3}}), wider = plan_of({{5, 3, 1}});
  const StreamPlan shares = plan_of({{4, 4}, {2, 2}}), later = plan_of({{5, 3}, {1, 3}});  // of the same lengths
  StreamSchedule schedule(plan);
  take(schedule, 9);
  for (const StreamPlan* wrong : {&other, &wider, &shares, &later}) {
    StreamSchedule target(*wrong);
    expect_error(ErrorKind::kRuntime, "sequence 9 of the checkpoint", [&] { target.seek(schedule.cursor()); });
  }
}

}  // namespace
}  // namespace nmoe
