// An engine that is ready for steps, and microbatches for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "config/load.h"
#include "support/tiny_run.h"
#include "train/plan/engine_plan.h"
#include "train/step/engine.h"

namespace nmoe::test {

// kTinyToml on that device in that precision, in sizes that its products take, with weights that are far from even.
inline Config config_on(std::string_view device, const std::string& precision,
                        const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"run.device=" + std::string(device), "run.precision=" + precision,
                                        "model.vocab_size=257", "model.init.std=0.3", "model.init.embedding_std=1"};
  if (device != "cpu") {
    overrides.insert(overrides.end(),
                     {"model.dim=144", "model.dense_dim=272", "model.moe.expert_dim=128", "model.mla.kv_lora_rank=32",
                      "model.mla.qk_nope_head_dim=16", "model.mla.qk_rope_head_dim=16", "model.mla.v_head_dim=16"});
  }
  overrides.insert(overrides.end(), more.begin(), more.end());
  return parse_config(kTinyToml, "tiny.toml", overrides);
}

struct ReadyEngine {
  // One of config.parallel.ranks, which `communicator` is of.
  explicit ReadyEngine(Config config, int num_threads = 1, Communicator& communicator = single_rank(),
                       std::span<const int64_t> seq_lens = {})
      : plan(plan_engine_storage(with_threads(config, num_threads), communicator.process().count(), {}, seq_lens)),
        memory(RankMemory::make(device_options(config.run), plan, communicator)),
        engine(config, {*memory->device, communicator}, memory->storage, seq_lens) {
    engine.initialise();
  }

  static Config& with_threads(Config& config, int num_threads) {
    config.run.threads = num_threads;
    return config;
  }

  Ops& ops() { return memory->device->ops(); }

  StoragePlan plan;  // as measured beforehand
  std::shared_ptr<RankMemory> memory;
  Engine engine;
};

// `count` ids below `vocab_size`.
inline std::vector<int32_t> random_ids(int64_t count, int64_t vocab_size, uint64_t seed) {
  const Philox rng(seed, "ids");
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(rng.bits(i) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

// Every id 0 ends a document; none are given where the configuration masks none.
inline Documents documents_of(std::span<const int32_t> inputs, const Config& config) {
  Documents documents;
  const int64_t seq_len = config.data.seq_len, num_seqs = static_cast<int64_t>(inputs.size()) / seq_len;
  if (!config.data.mask_documents) return documents;
  std::vector<uint8_t> ends;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ends.push_back(inputs[i] == 0 ? 1 : 0);
    if ((i + 1) % static_cast<size_t>(seq_len) == 0) ends.push_back(0);  // the look-ahead
  }
  find_documents(ends, num_seqs, seq_len, documents);
  return documents;
}

// Loads the rank's part of random ids, the same for the same step however it is cut into ranks and microbatches.
// Returns where the step ends.
inline Progress load_random(Engine& engine, const Config& config, int64_t step) {
  const int64_t tokens = config.train.batch_seqs * config.data.seq_len;
  const auto seed = static_cast<uint64_t>(2 * step);
  const auto inputs = random_ids(tokens, config.model.vocab_size, seed);
  const auto targets = random_ids(tokens, config.model.vocab_size, seed + 1);
  const auto size = static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len);
  for (int64_t i = 0; i < engine.num_microbatches(); ++i) {
    const size_t first = static_cast<size_t>(i * engine.rank().count() + engine.rank().index()) * size;
    const auto microbatch = std::span(inputs).subspan(first, size);
    const Documents documents = documents_of(microbatch, config);
    engine.load(i, microbatch_of(microbatch, std::span(targets).subspan(first, size), documents));
  }
  return {.steps = step, .tokens = step * tokens};
}

// Enqueues a step on random ids.
inline void enqueue_random(Engine& engine, const Config& config, int64_t step, bool in_detail = false) {
  const Progress progress = load_random(engine, config, step);
  const int64_t tokens = progress.tokens / step;
  StepTargets targets(tokens);
  for (int64_t k = 1; k <= config.model.mtp.depth; ++k) targets.ahead.push_back(tokens - k * config.train.batch_seqs);
  engine.step(progress, targets, in_detail);
}

inline StepResult random_step(Engine& engine, const Config& config, int64_t step) {
  enqueue_random(engine, config, step);
  return engine.result();
}

using Bytes = std::map<std::string, std::string>;

// The bytes of what was begun to be saved: of each tensor those that the rank writes. They can be read once.
inline Bytes saved_bytes(Engine& engine) {
  constexpr size_t kBlock = 4096;
  StateRing& ring = engine.state_ring();
  Bytes bytes;
  for (const StateTensor& tensor : ring.tensors()) {
    if (!tensor.is_written) continue;
    std::string& all = bytes[tensor.name];
    all.resize(static_cast<size_t>(tensor.num_bytes()));
    const auto out = std::as_writable_bytes(std::span(all));
    for (size_t begin = 0; begin < out.size(); begin += kBlock) {
      ring.fill();
      ring.read(tensor, begin, out.subspan(begin, std::min(kBlock, out.size() - begin)));
    }
  }
  EXPECT_TRUE(ring.is_read());
  return bytes;
}

// The bytes of everything a checkpoint would hold of the rank.
inline Bytes snapshot(Engine& engine) {
  engine.state_ring().begin();
  return saved_bytes(engine);
}

// Sets the engine's state to that of these tensors, each of them whole.
inline void restore_from(Engine& engine, const Bytes& whole) {
  engine.restore([&](std::span<const NamedPart> parts) {
    for (const NamedPart& part : parts) {
      const size_t begin = static_cast<size_t>(part.offset) * dtype_bytes(part.tensor.dtype());
      std::memcpy(part.tensor.raw(), std::string_view(whole.at(part.name)).substr(begin).data(),
                  static_cast<size_t>(part.tensor.num_bytes()));
    }
  });
}

// Names of tensors that differ between two snapshots.
inline std::vector<std::string> differences(const std::map<std::string, std::string>& a,
                                            const std::map<std::string, std::string>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<std::string> names;
  for (const auto& [name, bytes] : a) {
    if (b.at(name) != bytes) names.push_back(name);
  }
  return names;
}

}  // namespace nmoe::test
