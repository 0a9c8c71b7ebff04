// Steps in which experts have so many rows that their weights' gradients are summed in pieces (ops/contracts/pieces.h).
// Pieces are small here: this program has products of the CPU of its own, compiled with NMOE_PIECE_ROWS.
#include <gtest/gtest.h>

#include "ops/contracts/pieces.h"
#include "support/tensors.h"
#include "support/tiny_corpus.h"
#include "train/rank_engines.h"

namespace nmoe {
namespace {

using test::Bytes;
using test::near;
using test::random_step;
using test::ReadyEngine;
using test::same_bits;
using test::skew_routing;
using test::TensorPool;
using test::weight_of;
using test::whole_state;

static_assert(kUncutRows <= 32, "no expert of a small model has so many rows");

// Of groups of rows at, around and far above the limit, in every format: to the bit what the pieces give one after the
// other, each an operation of its own that is not cut.
TEST(LaterPieces, AreAddedInTheirOrder) {
  constexpr int64_t kIn = 24, kOut = 10;
  const std::vector<int64_t> rows = {kUncutRows, kUncutRows + 1, 0, 3, 4 * kUncutRows + 1};
  std::vector<double> ends = {0};
  for (const int64_t count : rows) ends.push_back(ends.back() + static_cast<double>(count));
  const auto ops = test::cpu_device(DType::kF32);
  TensorPool pool(DType::kF32);
  const Tensor x = pool.normal({static_cast<int64_t>(ends.back()), kIn}),
               dy = pool.normal({static_cast<int64_t>(ends.back()), kOut});
  const auto E = std::ssize(rows);
  const Tensor dw = pool.zeros({E, kOut, kIn}), expected = pool.zeros({E, kOut, kIn});
  ops->grouped_linear_backward_weight({x, dy, pool.ints({E + 1}, ends), dw});
  for (int64_t expert = 0; expert < E; ++expert) {
    const int64_t count = rows[static_cast<size_t>(expert)];
    const int64_t piece = count > kUncutRows ? kPieceRows : count;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t size = std::min(piece, count - begin), first = static_cast<int64_t>(ends[expert]) + begin;
      ops->grouped_linear_backward_weight({x.rows(first, first + size), dy.rows(first, first + size),
                                           pool.ints({2}, {0, static_cast<double>(size)}),
                                           expected.rows(expert, expert + 1), /*accumulate=*/begin > 0});
    }
  }
  EXPECT_TRUE(same_bits(dw, expected));
}

const std::vector<std::string> kFormats[] = {
    {"run.precision=fp32"}, {"run.precision=fp8", "precision.fp8_weight_gradients=true"}, {"run.precision=nvfp4"}};

Config config_with(const std::vector<std::string>& format, std::vector<std::string> more) {
  more.insert(more.begin(), {"model.vocab_size=50", "model.dim=40", "model.moe.num_experts=8", "train.batch_seqs=16"});
  more.insert(more.end(), format.begin(), format.end());
  return test::tiny_config("/nowhere", more);
}

// Two experts have all rows, 64 each in a shard. What their pieces are depends on them alone.
TEST(LaterPieces, AreTheSameOnAnyNumberOfRanks) {
  const auto skew = [](ReadyEngine& ready) { skew_routing(ready, 3, 2); };
  for (const std::vector<std::string>& format : kFormats) {
    for (const char* recompute : {"none", "norms", "experts"}) {
      SCOPED_TRACE(format.front() + ", recompute " + recompute);
      const auto with = [&](int64_t ranks) {
        return config_with(format, {"parallel.logical_shards=4", fmt::format("train.recompute={}", recompute),
                                    fmt::format("parallel.ranks={}", ranks)});
      };
      const Bytes expected = whole_state(with(1), 2, skew);
      for (const int64_t ranks : {2, 4}) {
        EXPECT_EQ(test::differences(whole_state(with(ranks), 2, skew), expected), std::vector<std::string>()) << ranks;
      }
    }
  }
}

// A microbatch whose experts are cut against microbatches of one sequence, whose experts are not: 16 rows each.
TEST(LaterPieces, AddUpToTheGradient) {
  const auto gradient = [](const char* microbatch_seqs) {
    const Config config =
        config_with({"run.precision=fp32"}, {fmt::format("train.microbatch_seqs={}", microbatch_seqs)});
    auto ready = std::make_unique<ReadyEngine>(config);
    skew_routing(*ready, 3, 2);
    random_step(ready->engine, config, 1);
    return ready;
  };
  const auto cut = gradient("16"), uncut = gradient("1");
  for (const char* name : {"layers.1.moe.experts_in", "layers.1.moe.experts_out"}) {
    const Tensor mine = weight_of(cut->engine, name).grad, other = weight_of(uncut->engine, name).grad;
    EXPECT_TRUE(near(mine, other, 2e-3)) << name;
  }
}

}  // namespace
}  // namespace nmoe
