#include "train/bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "model/cost.h"
#include "ops/factory.h"
#include "train/batch_stream.h"
#include "train/engine.h"
#include "train/training_data.h"

namespace nmoe {
namespace {

// Ids that mean nothing, where there is no corpus.
std::vector<int32_t> random_ids(size_t count, int64_t vocab_size, uint64_t seed) {
  const Philox random(seed, "bench");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random.bits(i) % static_cast<uint64_t>(vocab_size)));
  }
  return ids;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double worst_load(std::span<const RouterHealth> layers) {
  double worst = 0.0;
  for (const RouterHealth& layer : layers) {
    const double total = std::accumulate(layer.counts.begin(), layer.counts.end(), 0.0);
    const double largest = *std::max_element(layer.counts.begin(), layer.counts.end());
    worst = std::max(worst, largest * static_cast<double>(layer.counts.size()) / total);
  }
  return worst;
}

}  // namespace

TrainBench bench_train(const Config& unresolved, int64_t warmup, int64_t steps) {
  std::optional<TrainingData> data;
  if (has_training_data(unresolved)) data.emplace(open_training_data(unresolved));
  const Config config = data ? resolve_vocab_size(unresolved, *data->tokenizer) : unresolved;
  if (config.model.vocab_size == 0) {
    throw usage_error("model.vocab_size is 0 (the tokenizer's), and there is no corpus to take it from",
                      "prepare the corpus in data.path, or add --set model.vocab_size=N");
  }
  const EngineMemory memory = measure_memory(config);
  const auto ops = make_backend(config.run);
  Engine engine(config, *ops, &memory);
  engine.initialise();

  TrainBench bench{.device = ops->description(),
                   .tokens = data ? "the corpus" : "random ids",
                   .steps = steps,
                   .tokens_per_step = config.train.batch_seqs * config.data.seq_len,
                   .cost = model_cost(config.model, engine.model().parameters(), config.data.seq_len)};
  const double peak_before = ops->peak_flops();
  std::optional<BatchStream> batches;
  if (data) batches.emplace(config, *data, bench.cost.active_parameters);
  const std::vector<int32_t> random_tokens = random_ids(
      static_cast<size_t>(bench.tokens_per_step) + 1, config.model.vocab_size, static_cast<uint64_t>(config.run.seed));
  const size_t microbatch_tokens = static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len);
  std::vector<double> forward_backward, update, total;
  using Clock = std::chrono::steady_clock;
  const auto ms_between = [](Clock::time_point a, Clock::time_point b) {
    return std::chrono::duration<double, std::milli>(b - a).count();
  };
  // Loads a step's microbatches and returns its number of targets.
  const auto load = [&] {
    if (batches) {
      batches->next();
      for (int64_t i = 0; i < batches->num_microbatches(); ++i) {
        const Microbatch part = batches->microbatch(i);
        engine.load(i, part.inputs, part.targets, part.documents);
      }
      return batches->num_targets();
    }
    const std::span ids = random_tokens;
    Documents documents;  // made-up ids have none: each sequence is one
    for (int64_t i = 0; i < engine.num_microbatches(); ++i) {
      const size_t begin = static_cast<size_t>(i) * microbatch_tokens;
      const auto inputs = ids.subspan(begin, microbatch_tokens);
      if (engine.masks_documents()) {
        find_documents(inputs, config.train.microbatch_seqs, config.data.seq_len, /*eos_id=*/-1, documents);
      }
      engine.load(i, inputs, ids.subspan(begin + 1, microbatch_tokens), documents);
    }
    return bench.tokens_per_step;
  };
  constexpr int64_t kPhaseSteps =
      3;  // run apart, so that measuring phases does not slow the steps that are timed whole
  for (int64_t step = 0; step < warmup + steps + kPhaseSteps; ++step) {
    const Progress progress{.steps = step + 1, .tokens = (step + 1) * bench.tokens_per_step};
    auto begin = Clock::now();
    const int64_t num_targets = load();
    if (step >= warmup + steps) {
      engine.step_in_phases(progress, num_targets, [&](std::string_view phase) {
        const auto now = Clock::now();
        (phase == "update" ? update : forward_backward).push_back(ms_between(begin, now));
        begin = now;
      });
      continue;
    }
    engine.step(progress, num_targets);
    engine.result();
    if (step >= warmup) total.push_back(ms_between(begin, Clock::now()));
  }
  bench.ms_forward_backward = median(forward_backward);
  bench.ms_optimizer = median(update);
  bench.ms_per_step = median(total);
  bench.tokens_per_s = 1e3 * static_cast<double>(bench.tokens_per_step) / bench.ms_per_step;
  bench.flops = bench.cost.flops_per_token * bench.tokens_per_s;
  bench.peak_flops = std::max(peak_before, ops->peak_flops());
  bench.load_max_over_mean = worst_load(engine.router_health());
  return bench;
}

}  // namespace nmoe
