// A made-up model with a recurrent state: a running sum of all tokens so far, modulo a prime, from which its logits
// come. What it said of a text is wrong from the first token on that was left out, seen twice, or seen by another.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "infer/cached_model.h"
#include "model/sequence_model.h"
#include "ops/storage.h"
#include "support/log_sum.h"

namespace nmoe::test {

constexpr int64_t kRecurrentVocab = 257;

inline float next_sum(float sum, int32_t token) {  // whole numbers that F32 holds
  return std::fmod(sum * 31.0F + static_cast<float>(token + 1), 65521.0F);
}

inline std::vector<float> logits_of_sum(float sum) {
  std::vector<float> logits;
  for (int64_t id = 0; id < kRecurrentVocab; ++id) {
    logits.push_back(static_cast<float>(4.0 * std::sin(1e-3 * static_cast<double>(sum) * static_cast<double>(id + 1))));
  }
  return logits;
}

// Row i: the logits of what follows ids[0..i].
inline std::vector<std::vector<float>> logits_of_text(std::span<const int32_t> ids) {
  std::vector<std::vector<float>> rows;
  float sum = 0.0F;
  for (const int32_t id : ids) rows.push_back(logits_of_sum(sum = next_sum(sum, id)));
  return rows;
}

class RunningSumModel final : public SequenceModel {
 public:
  explicit RunningSumModel(Ops& ops) : ops_(ops) {}

  Ops& ops() const override { return ops_; }
  int64_t vocab_size() const override { return kRecurrentVocab; }
  // The sum and the position behind which it is; and every token, as something that is kept by position.
  std::vector<StateSpec> states() const override {
    return {{.widths = {1}, .fixed = {{.shape = Shape({2}), .is_stat = true}}}};
  }
  void cached_logits(const CachedRows& rows, const ModelStates& states, Arena&, Tensor wanted, Tensor logits) override {
    if (ops_.counting()) return;
    const std::vector<float> sums = run(rows, states);
    for (int64_t i = 0; i < wanted.dim(0); ++i) {
      const auto row = static_cast<size_t>(wanted.data<int32_t>()[i]);
      std::ranges::copy(logits_of_sum(sums[row]), logits[i].data<float>());
    }
  }
  void cached_scores(const CachedRows& rows, const ModelStates& states, Arena&, const ScoredRows& scored) override {
    if (ops_.counting()) return;
    const std::vector<float> sums = run(rows, states);
    for (int64_t i = 0; i < scored.rows.dim(0); ++i) {
      const std::vector<float> logits = logits_of_sum(sums[static_cast<size_t>(scored.rows.data<int32_t>()[i])]);
      const auto target = static_cast<size_t>(scored.targets.data<int32_t>()[i]);
      scored.losses.data<float>()[i] = test::log_sum(logits).loss(logits[target]);
      scored.predictions.data<int32_t>()[i] = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    }
  }

 private:
  // The sum behind each row.
  static std::vector<float> run(const CachedRows& rows, const ModelStates& states) {
    const PartStates& part = states.parts.front();
    std::vector<float> sums;
    for (int64_t t = 0; t < rows.tokens.dim(0); ++t) {
      const int32_t token = rows.tokens.data<int32_t>()[t], slot = rows.slots.data<int32_t>()[t],
                    position = rows.positions.data<int32_t>()[t];
      float* const state = part.fixed.front()[slot].data<float>();
      float* const seen = part.by_position.front()[slot].data<float>();
      const bool is_first = position == 0;
      EXPECT_TRUE(is_first || state[1] == static_cast<float>(position - 1))
          << "position " << position << " behind position " << state[1] << " in slot " << slot;
      state[0] = next_sum(is_first ? 0.0F : state[0], token);
      state[1] = static_cast<float>(position);
      seen[position] = static_cast<float>(token);
      float expected = 0.0F;
      for (int32_t i = 0; i <= position; ++i) expected = next_sum(expected, static_cast<int32_t>(seen[i]));
      EXPECT_EQ(state[0], expected) << "what is kept by position belongs to another sequence";
      sums.push_back(state[0]);
    }
    return sums;
  }

  Ops& ops_;
};

// With a device and memory of its own.
inline std::shared_ptr<CachedModel> recurrent_model(const Config& config, const CachedModelOptions& options) {
  struct Own {
    std::unique_ptr<Device> device;
    std::unique_ptr<Storage> storage;
    std::unique_ptr<RunningSumModel> model;
    std::unique_ptr<CachedModel> cached;
  };
  const auto make = [&](Storage& storage, Own& own) {
    own.model = std::make_unique<RunningSumModel>(storage.device().ops(Arithmetic::kBatchInvariant));
    own.cached = std::make_unique<CachedModel>(config, byte_tokenizer(), *own.model, RunnerRoom::of(storage), options);
  };
  const DeviceOptions where{.num_threads = 1};
  const StoragePlan plan = plan_storage(where, [&](Storage& storage) {
    Own rehearsed;
    make(storage, rehearsed);
  });
  auto own = std::make_shared<Own>();
  own->device = make_device(where);
  own->storage = std::make_unique<Storage>(*own->device, plan);
  make(*own->storage, *own);
  CachedModel* const cached = own->cached.get();
  return {std::move(own), cached};
}

}  // namespace nmoe::test
