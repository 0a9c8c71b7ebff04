// Engines of several ranks, on threads.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>

#include "parallel/thread_group.h"
#include "train/tiny_engine.h"

namespace nmoe::test {

// Runs `drive` on an engine a rank.
inline void run_engines(const Config& config, const std::function<void(ReadyEngine&)>& drive) {
  run_ranks(config.parallel.ranks, std::chrono::minutes(1), [&](Communicator& communicator) {
    ReadyEngine ready(config, 1, communicator);
    drive(ready);
  });
}

inline Weight& weight_of(Engine& engine, const std::string& name) { return engine.model().weights().at(name); }

// The router of layer 1 chooses `count` experts from `first` on for every token.
inline void skew_routing(ReadyEngine& ready, int64_t first, int64_t count) {
  const Tensor bias = weight_of(ready.engine, "layers.1.moe.router_bias").value;
  ready.ops().fill({bias, -1e3});
  ready.ops().fill({bias.rows(first, first + count), 1e3});
}

// What the rank has saved, slice by slice.
inline std::vector<NamedPart> parts_of(Engine& engine, Bytes& saved) {
  std::vector<NamedPart> parts;
  for (const StateTensor& tensor : engine.state_ring().tensors()) {
    const auto bytes = saved.find(tensor.name);
    if (bytes == saved.end()) continue;
    const Tensor flat(bytes->second.data(), tensor.dtype, {tensor.shape_here().num_elements()});
    int64_t first = 0;
    for (const auto& [offset, extent] : tensor.slices()) {
      parts.push_back({tensor.name, flat.rows(first, first + extent), tensor.shape(), offset});
      first += extent;
    }
  }
  return parts;
}

// Adds a part to the tensor that it is of.
inline void add_to(Bytes& whole, const NamedPart& part) {
  const size_t element = dtype_bytes(part.tensor.dtype());
  std::string& bytes = whole[part.name];
  bytes.resize(static_cast<size_t>(part.shape.num_elements()) * element, 'x');
  std::memcpy(bytes.data() + static_cast<size_t>(part.offset) * element, part.tensor.raw(),
              static_cast<size_t>(part.tensor.num_bytes()));
}

// Runs steps on an engine a rank, which `prepare` may change first, then calls `look`, one rank after the other, with
// each part of a checkpoint that the rank would write.
inline void look_at_written(const Config& config, int64_t steps, const std::function<void(const NamedPart&)>& look,
                            const std::function<void(ReadyEngine&)>& prepare = {}) {
  std::mutex mutex;
  run_engines(config, [&](ReadyEngine& ready) {
    if (prepare) prepare(ready);
    for (int64_t step = 1; step <= steps; ++step) {
      ASSERT_TRUE(random_step(ready.engine, config, step).finite);
      if (config.parallel.rebalance_every > 0 && step % config.parallel.rebalance_every == 0) ready.engine.rebalance();
    }
    Bytes saved = snapshot(ready.engine);
    const std::scoped_lock lock(mutex);
    for (const NamedPart& part : parts_of(ready.engine, saved)) look(part);
  });
}

// What a checkpoint would hold, put together from what each rank writes of it.
inline Bytes whole_state(const Config& config, int64_t steps, const std::function<void(ReadyEngine&)>& prepare = {}) {
  Bytes whole;
  look_at_written(
      config, steps, [&](const NamedPart& part) { add_to(whole, part); }, prepare);
  return whole;
}

}  // namespace nmoe::test
