#include <algorithm>
#include <numeric>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

// A plan made over given choices.
struct Planned {
  Planned(DType real, int num_threads, int64_t num_tokens, int64_t top_k, int64_t num_experts,
          const std::vector<double>& choices)
      : pool(real), ops(cpu_device(real, num_threads)) {
    top_idx = pool.ints({num_tokens, top_k}, choices);
    plan.offsets = pool.zeros(DType::kI32, {num_experts + 1});
    plan.row_of = pool.zeros(DType::kI32, {num_tokens, top_k});
    plan.token_of = pool.zeros(DType::kI32, {num_tokens * top_k});
    counts = pool.zeros(DType::kI32, {num_experts});
    ops->build_moe_plan({top_idx, plan, counts});
  }
  TensorPool pool;
  ReadyDevice ops;
  Tensor top_idx, counts;
  MoePlan plan;
};

// top_k different experts for every token.
std::vector<double> random_choices(int64_t num_tokens, int64_t top_k, int64_t num_experts) {
  const Philox rng(5, "choices");
  std::vector<double> choices;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const KeyedPermutation shuffled(static_cast<uint64_t>(num_experts), rng.bits(static_cast<uint64_t>(token)));
    for (int64_t k = 0; k < top_k; ++k) choices.push_back(static_cast<double>(shuffled(static_cast<uint64_t>(k))));
  }
  return choices;
}

std::vector<double> constant_choices(int64_t num_tokens, double expert) {
  return std::vector<double>(static_cast<size_t>(num_tokens), expert);
}

// Rows are the copies stably sorted by expert.
void expect_sorted(const Planned& planned) {
  const auto choices = values(planned.top_idx);
  std::vector<size_t> copies(choices.size());
  std::iota(copies.begin(), copies.end(), size_t{0});
  std::stable_sort(copies.begin(), copies.end(), [&](size_t a, size_t b) { return choices[a] < choices[b]; });
  const auto top_k = static_cast<size_t>(planned.top_idx.dim(1));
  std::vector<double> row_of(choices.size()), token_of(choices.size());
  for (size_t row = 0; row < copies.size(); ++row) {
    row_of[copies[row]] = static_cast<double>(row);
    token_of[row] = static_cast<double>(copies[row] / top_k);
  }
  EXPECT_EQ(values(planned.plan.row_of), row_of);
  EXPECT_EQ(values(planned.plan.token_of), token_of);

  std::vector<double> counts(static_cast<size_t>(planned.counts.num_elements()));
  for (const double expert : choices) ++counts[static_cast<size_t>(expert)];
  std::vector<double> offsets(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  EXPECT_EQ(values(planned.counts), counts);
  EXPECT_EQ(values(planned.plan.offsets), offsets);
}

TEST(MoePlan, SortsCopiesByExpertTokenAndChoice) {
  expect_sorted(Planned(DType::kF32, 2, 13, 3, 7, random_choices(13, 3, 7)));
  expect_sorted(Planned(DType::kF32, 2, 1, 5, 5, random_choices(1, 5, 5)));          // one token, all experts
  expect_sorted(Planned(DType::kF32, 2, 9, 2, 300, random_choices(9, 2, 300)));      // nearly all experts empty
  expect_sorted(Planned(DType::kF32, 3, 5003, 4, 64, random_choices(5003, 4, 64)));  // several chunks
  expect_sorted(Planned(DType::kF32, 2, 2500, 1, 4, constant_choices(2500, 3)));     // all to the last expert
  expect_sorted(Planned(DType::kF32, 2, 2500, 1, 4, constant_choices(2500, 0)));
  expect_sorted(Planned(DType::kF32, 2, 0, 2, 3, {}));
}

TEST(MoePlan, AddsToCounts) {
  Planned planned(DType::kF32, 2, 4, 1, 3, {0, 2, 2, 0});
  planned.ops->build_moe_plan({planned.top_idx, planned.plan, planned.counts});
  EXPECT_EQ(values(planned.counts), (std::vector<double>{4, 0, 4}));
  EXPECT_EQ(values(planned.plan.offsets), (std::vector<double>{0, 2, 2, 4}));
}

TEST(MoePlan, RefusesUnknownExperts) {
  EXPECT_THROW(Planned(DType::kF32, 1, 2, 1, 3, {0, 3}), CheckFailure);
  EXPECT_THROW(Planned(DType::kF32, 1, 2, 1, 3, {-1, 0}), CheckFailure);
}

TEST(MoePlan, CountingRunClaimsTheScratchOfARealOne) {
  const Planned planned(DType::kF32, 2, 5003, 4, 64, random_choices(5003, 4, 64));
  const auto counting = make_device({.num_threads = 2});
  counting->ops().build_moe_plan({without_data(planned.top_idx),
                                  {without_data(planned.plan.offsets), without_data(planned.plan.row_of)},
                                  without_data(planned.counts)});
  EXPECT_GT(counting->scratch(Lane::kCompute).high_water(), 0);
  EXPECT_EQ(counting->scratch(Lane::kCompute).high_water(), planned.ops->scratch().high_water());
}

TEST(MoeDispatch, GathersTheTokenOfEveryRow) {
  Planned p(DType::kF32, 2, 13, 3, 7, random_choices(13, 3, 7));
  const Tensor x = p.pool.normal({13, 11}), rows = p.pool.zeros({39, 11});
  p.ops->moe_dispatch({x, p.plan, rows});
  for (int64_t copy = 0; copy < 39; ++copy) {
    const auto row = static_cast<int64_t>(get(p.plan.row_of, copy));
    ASSERT_TRUE(same_bits(rows[row], x[copy / 3])) << "row " << row;
  }
}

TEST(MoeDispatch, OfCodesGathersWhatTheyStandFor) {
  Planned p(DType::kF32, 2, 13, 3, 7, random_choices(13, 3, 7));
  const Tensor x = p.pool.normal({13, 131}), rows = p.pool.zeros({39, 131}), expected = p.pool.zeros({39, 131});
  const RowCodes codes{.values = p.pool.zeros(DType::kU8, {13, 131}), .scales = p.pool.zeros(DType::kU8, {13, 2})};
  p.ops->quantize({.format = OperandFormat::kFp8,
                   .x = x.reshape({1, 13, 131}),
                   .values = codes.values.reshape({1, 13, 131}),
                   .scales = codes.scales.reshape({1, 13, 2})});
  const Tensor widened = p.pool.zeros(x.shape());
  p.ops->widen_rows({.codes = codes, .x = widened});
  const RowCodes row_codes{.values = p.pool.zeros(DType::kU8, {39, 131}), .scales = p.pool.zeros(DType::kU8, {39, 2})};
  p.ops->moe_dispatch({.x = {}, .plan = p.plan, .rows = rows, .codes = codes, .row_codes = row_codes});
  p.ops->moe_dispatch({widened, p.plan, expected});
  EXPECT_TRUE(same_bits(rows, expected));
  for (int64_t copy = 0; copy < 39; ++copy) {
    const auto row = static_cast<int64_t>(get(p.plan.row_of, copy));
    ASSERT_TRUE(same_bits(row_codes.values[row], codes.values[copy / 3])) << "row " << row;
    ASSERT_TRUE(same_bits(row_codes.scales[row], codes.scales[copy / 3])) << "row " << row;
  }
}

// Together the parts have each row once, in its order; what is beyond the last row stays as it is.
TEST(MoeDispatch, GathersPartByPart) {
  for (const bool all_to_one : {false, true}) {
    const auto choices = all_to_one ? constant_choices(39, 4) : random_choices(13, 3, 7);
    Planned p(DType::kF32, 2, 13, 3, 7, choices);
    const Tensor x = p.pool.normal({13, 11}), whole = p.pool.zeros({39, 11});
    const Tensor weights = p.pool.normal({13, 3}), whole_weights = p.pool.zeros({39});
    p.ops->moe_dispatch({x, p.plan, whole});
    p.ops->moe_dispatch_weights({weights, p.plan, whole_weights});

    constexpr int64_t kCapacity = 10, kChunk = 8, kParts = 6;  // the last begins behind all rows, the one before has 5
    const Tensor parts = p.pool.zeros(DType::kI32, {kParts, 8});
    p.ops->divide_moe_rows({.offsets = p.plan.offsets, .capacity = kCapacity, .chunk = kChunk, .parts = parts});
    for (int64_t i = 0; i < kParts; ++i) {
      const int64_t first = i == 0 ? 0 : kCapacity + (i - 1) * kChunk, most = i == 0 ? kCapacity : kChunk;
      const int64_t num_rows = std::clamp<int64_t>(39 - first, 0, most);
      const MoePlan plan{.offsets = parts[i], .row_of = p.plan.row_of, .first_row = first};
      for (int64_t expert = 0; expert <= 7; ++expert) {
        const auto offset = static_cast<int64_t>(get(p.plan.offsets, expert));
        EXPECT_EQ(get(plan.offsets, expert), static_cast<double>(std::clamp<int64_t>(offset - first, 0, most)));
      }
      const Tensor rows = p.pool.full({most, 11}, 9.0), row_weight = p.pool.full({most}, 9.0);
      p.ops->moe_dispatch({x, plan, rows});
      p.ops->moe_dispatch_weights({weights, plan, row_weight});
      for (int64_t row = 0; row < most; ++row) {
        if (row < num_rows) {
          ASSERT_TRUE(same_bits(rows[row], whole[first + row])) << "row " << row << " of part " << i;
          EXPECT_EQ(get(row_weight, row), get(whole_weights, first + row));
        } else {
          ASSERT_TRUE(near(rows[row], std::vector<double>(11, 9.0), 0)) << "row " << row << " of part " << i;
          EXPECT_EQ(get(row_weight, row), 9.0);
        }
      }
    }
  }
}

TEST(MoeCombine, OfDispatchIsTopKTimesTheInput) {
  for (const int64_t top_k : {1, 2, 4}) {  // exact in binary
    Planned p(DType::kF32, 3, 1500, top_k, 8, random_choices(1500, top_k, 8));
    const Tensor x = p.pool.normal({1500, 67}), rows = p.pool.zeros({1500 * top_k, 67});
    const Tensor y = p.pool.full({1500, 67}, 9.0);
    p.ops->moe_dispatch({x, p.plan, rows});
    p.ops->moe_combine({rows, p.plan, y, /*accumulate=*/false});
    std::vector<double> expected = values(x);
    for (double& value : expected) value *= static_cast<double>(top_k);
    EXPECT_TRUE(near(y, expected, 0));
    p.ops->moe_combine({rows, p.plan, y, /*accumulate=*/true});
    for (double& value : expected) value *= 2;
    EXPECT_TRUE(near(y, expected, 1e-6));
  }
}

// The backward of dispatch is combine and the other way round, because each is the transpose of the
// other.
TEST(MoeCombine, IsTheTransposeOfDispatch) {
  Planned p(DType::kF64, 2, 17, 3, 5, random_choices(17, 3, 5));
  const Tensor x = p.pool.normal({17, 6}), rows = p.pool.normal({51, 6});
  const Tensor dispatched = p.pool.zeros({51, 6}), combined = p.pool.zeros({17, 6});
  p.ops->moe_dispatch({x, p.plan, dispatched});
  p.ops->moe_combine({rows, p.plan, combined, /*accumulate=*/false});
  EXPECT_NEAR(dot(dispatched, rows), dot(x, combined), 1e-12);
}

TEST(MoeCombine, BitsDoNotDependOnThreads) {
  const auto combine = [](int num_threads) {
    auto p = std::make_unique<Planned>(DType::kF32, num_threads, 2000, 5, 16, random_choices(2000, 5, 16));
    const Tensor rows = p->pool.normal({10'000, 33}), y = p->pool.zeros({2000, 33});
    p->ops->moe_combine({rows, p->plan, y, /*accumulate=*/true});
    return std::pair(std::move(p), y);
  };
  const auto one = combine(1), three = combine(3);
  EXPECT_TRUE(same_bits(one.second, three.second));
  EXPECT_TRUE(same_bits(one.first->plan.row_of, three.first->plan.row_of));
}

TEST(MoeWeights, GoToTheRowOfTheirCopyAndBack) {
  Planned p(DType::kF64, 2, 13, 3, 7, random_choices(13, 3, 7));
  const Tensor weights = p.pool.normal({13, 3}), row_weight = p.pool.zeros({39}), back = p.pool.zeros({13, 3});
  p.ops->moe_dispatch_weights({weights, p.plan, row_weight});
  for (int64_t copy = 0; copy < 39; ++copy) {
    EXPECT_EQ(get(row_weight, static_cast<int64_t>(get(p.plan.row_of, copy))), get(weights, copy));
  }
  p.ops->moe_combine_weights({row_weight, p.plan, back});
  EXPECT_TRUE(same_bits(back, weights));
}

}  // namespace
}  // namespace nmoe::test
