// What a model says of a text that it sees at once, as training does: nothing of generation is in it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "config/config.h"
#include "model/model.h"
#include "ops/factory.h"
#include "support/tensors.h"

namespace nmoe::test {

// Row i: the logits of what follows ids[0..i]. `set_weights` gives the weights their values.
inline std::vector<std::vector<float>> whole_logits(const Config& config, const std::vector<int32_t>& ids,
                                                    const std::function<void(WeightSet&, Ops&)>& set_weights) {
  const auto device = make_device({.num_threads = 1});
  const auto size = static_cast<int64_t>(ids.size()), vocab = config.model.vocab_size;
  WeightSet weights(describe_model(config.model).weights);
  Model model(config.model, weights, device->ops(), size);
  Arena values("values"), grads("grads"), state("state"), activations("activations");
  for (Arena* arena : {&values, &state, &activations, &device->scratch(Lane::kCompute)}) {
    arena->reserve(device->memory(), 8 << 20);
  }
  weights.allocate(device->ops(), values, grads);
  model.allocate(state);
  set_weights(weights, device->ops());
  TensorPool pool(DType::kF32);
  const Tensor tokens = pool.ints({size}, std::vector<double>(ids.begin(), ids.end()));
  std::vector<double> positions;
  for (int64_t i = 0; i < size; ++i) positions.push_back(static_cast<double>(i));
  const Tensor logits = pool.zeros({size, vocab});
  model.logits({.num_seqs = 1, .seq_len = size, .tokens = tokens, .positions = pool.ints({size}, positions)},
               activations, logits);
  std::vector<std::vector<float>> rows;
  for (int64_t i = 0; i < size; ++i) {
    const std::span<const float> row = logits[i].span<float>();
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

}  // namespace nmoe::test
