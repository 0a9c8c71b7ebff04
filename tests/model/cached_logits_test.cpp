// A model that reads from its cache against the same model that sees everything at once, for every kind of attention;
// and that a row of it depends on its own sequence alone, to the bit.
#include <gtest/gtest.h>

#include <map>

#include "model/model.h"
#include "model/small_models.h"
#include "ops/factory.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

constexpr int64_t kVocab = 11, kSlots = 4, kCapacity = 12;

using Ids = std::vector<int32_t>;

// The next tokens of a slot.
struct Piece {
  int32_t slot;
  Ids tokens;
};

class CachedTestModel {
 public:
  explicit CachedTestModel(const ModelConfig& config, DType real = DType::kF64, int num_threads = 2)
      : ops_({.num_threads = num_threads, .compute_dtype = real}, 4 << 20, Arithmetic::kBatchInvariant),
        pool_(real),
        weights_(describe_model(config).weights),
        model_(config, weights_, *ops_, kCapacity) {
    for (Arena* arena : {&values_, &state_, &activations_}) arena->reserve(ops_.device().memory(), 4 << 20);
    weights_.allocate(*ops_, values_, grads_);
    model_.allocate(state_);
    weights_.initialise(*ops_, 7, config.init.truncation);
    const StateSizes sizes{.num_slots = kSlots, .capacity = kCapacity};
    states_ = make_states(model_.states(), *ops_, state_, sizes);
    ops_.device().upload(states_.pages, own_pages(sizes).data());
    for (const PartStates& part : states_.parts) {  // what was not written must not be read
      for (const Tensor& tensor : part.by_position) ops_->fill({tensor, NAN});
    }
  }

  // Runs the pieces in one call and returns the logits of all of their tokens, in order.
  Tensor run(const std::vector<Piece>& pieces) {
    std::vector<double> tokens, slots, positions, wanted;
    for (const Piece& piece : pieces) {
      for (const int32_t token : piece.tokens) {
        wanted.push_back(static_cast<double>(tokens.size()));
        tokens.push_back(token);
        slots.push_back(piece.slot);
        positions.push_back(length_[piece.slot]++);
      }
    }
    const auto size = static_cast<int64_t>(tokens.size());
    const Tensor logits = pool_.full({size, kVocab}, NAN);
    model_.cached_logits({pool_.ints({size}, tokens), pool_.ints({size}, slots), pool_.ints({size}, positions)},
                         states_, activations_, pool_.ints({size}, wanted), logits);
    return logits;
  }
  void restart(int32_t slot) { length_[slot] = 0; }

  // The logits of a sequence by the way that training takes.
  Tensor whole(const Ids& ids) {
    const auto size = static_cast<int64_t>(ids.size());
    std::vector<double> positions;
    for (int64_t i = 0; i < size; ++i) positions.push_back(static_cast<double>(i));
    const Tensor tokens = pool_.ints({size}, std::vector<double>(ids.begin(), ids.end()));
    const Tensor logits = pool_.full({size, kVocab}, NAN);
    model_.logits({.num_seqs = 1, .seq_len = size, .tokens = tokens, .positions = pool_.ints({size}, positions)},
                  activations_, logits);
    return logits;
  }

 private:
  ReadyDevice ops_;
  TensorPool pool_;
  Arena values_{"values"}, grads_{"grads"}, state_{"state"}, activations_{"activations"};
  WeightSet weights_;
  Model model_;
  ModelStates states_;
  std::map<int32_t, int> length_;
};

const Ids kFirst = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}, kSecond = {2, 7, 1, 8, 2, 8, 1}, kThird = {10};

Ids part(const Ids& ids, size_t begin, size_t end) { return {ids.begin() + begin, ids.begin() + end}; }

std::vector<SmallModel> cached_models() {
  std::vector<SmallModel> models = small_models();
  SmallModel windows{"mla_query_latent_windows", base_model()};
  windows.config.mla.q_lora_rank = 3;
  windows.config.num_layers = 3;
  windows.config.window = 3;
  windows.config.attn_global_every = 2;
  models.push_back(windows);
  SmallModel wide{"wide_heads", base_model()};  // more than one vector of everything, and no multiple of one
  wide.config.dim = 37;
  wide.config.num_heads = 5;
  wide.config.mla = {
      .q_lora_rank = 9, .kv_lora_rank = 21, .qk_nope_head_dim = 19, .qk_rope_head_dim = 6, .v_head_dim = 18};
  wide.config.init.std = 0.2;
  models.push_back(wide);
  return models;
}

class EveryCachedModel : public ::testing::TestWithParam<SmallModel> {};

// One token at a time, as output is written.
TEST_P(EveryCachedModel, TokenByTokenGivesTheLogitsOfTheWhole) {
  for (const auto& [real, tolerance] : {std::pair(DType::kF64, 1e-10), std::pair(DType::kF32, 1e-3)}) {
    CachedTestModel model(GetParam().config, real);
    const Tensor whole = model.whole(kFirst);
    for (size_t i = 0; i < kFirst.size(); ++i) {
      const Tensor one = model.run({{2, {kFirst[i]}}});
      EXPECT_TRUE(near(one[0], whole[static_cast<int64_t>(i)], tolerance)) << "position " << i;
    }
  }
}

// Prompts of several sequences together, then parts of them beside single tokens of others.
TEST_P(EveryCachedModel, RaggedPiecesGiveTheLogitsOfTheWhole) {
  CachedTestModel model(GetParam().config);
  const Tensor first = model.whole(kFirst), second = model.whole(kSecond), third = model.whole(kThird);
  const Tensor prompts = model.run({{0, part(kFirst, 0, 5)}, {3, kThird}, {1, part(kSecond, 0, 6)}});
  EXPECT_TRUE(near(prompts.rows(0, 5), first.rows(0, 5), 1e-10));
  EXPECT_TRUE(near(prompts.rows(5, 6), third, 1e-10));
  EXPECT_TRUE(near(prompts.rows(6, 12), second.rows(0, 6), 1e-10));
  const Tensor more = model.run({{1, part(kSecond, 6, 7)}, {0, part(kFirst, 5, 11)}});
  EXPECT_TRUE(near(more.rows(0, 1), second.rows(6, 7), 1e-10));
  EXPECT_TRUE(near(more.rows(1, 7), first.rows(5, 11), 1e-10));
  model.restart(0);  // a slot is used again
  EXPECT_TRUE(near(model.run({{0, kSecond}}), second, 1e-10));
}

// The same bits for a sequence however it is cut, whatever runs beside it, in any slot and with any number of threads.
TEST_P(EveryCachedModel, ARowDependsOnItsSequenceAlone) {
  CachedTestModel alone(GetParam().config, DType::kF32, 1);
  const Tensor expected = alone.run({{0, kFirst}});
  for (const int num_threads : {1, 3}) {
    CachedTestModel model(GetParam().config, DType::kF32, num_threads);
    for (size_t i = 0; i < kFirst.size(); ++i) {
      const int32_t extra = static_cast<int32_t>(i % kVocab);
      std::vector<Piece> pieces = {{3, {kFirst[i]}}};
      if (i % 3 == 0) pieces.insert(pieces.begin(), {1, {extra, 7}});
      if (i % 2 == 0) pieces.push_back({0, {extra}});
      const Tensor logits = model.run(pieces);
      const int64_t row = i % 3 == 0 ? 2 : 0;
      EXPECT_TRUE(same_bits(logits[row], expected[static_cast<int64_t>(i)])) << "position " << i;
    }
    model.restart(1);
    model.restart(2);
    model.run({{2, part(kFirst, 0, 4)}, {1, kSecond}});
    EXPECT_TRUE(same_bits(model.run({{2, part(kFirst, 4, 11)}}), expected.rows(4, 11)));
  }
}

INSTANTIATE_TEST_SUITE_P(Cached, EveryCachedModel, ::testing::ValuesIn(cached_models()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace nmoe::test
