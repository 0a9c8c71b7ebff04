#include "train/bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "base/files.h"
#include "base/rng.h"
#include "data/stream/loader.h"
#include "model/cost.h"
#include "ops/factory.h"
#include "train/engine.h"
#include "train/training_data.h"

namespace nmoe {
namespace {

// A step's microbatches, from the corpus or made up.
class TokenSource {
 public:
  explicit TokenSource(const Config& config)
      : seq_len_(config.data.seq_len), seed_(static_cast<uint64_t>(config.run.seed)) {
    if (!config.data.path.empty() && fs::exists(config.data.path)) {
      data_.emplace(open_training_data(config));
      loader_.emplace(data_->train, seq_len_, seed_, /*shuffle=*/true);
    }
  }

  Config resolve(const Config& config) {
    Config resolved = data_ ? resolve_vocab_size(config, *data_->tokenizer) : config;
    if (resolved.model.vocab_size == 0) {
      throw usage_error("model.vocab_size is 0 (the tokenizer's), and there is no corpus to take it from",
                        "prepare the corpus in data.path, or add --set model.vocab_size=N");
    }
    vocab_size_ = resolved.model.vocab_size;
    return resolved;
  }

  // Made-up ids have no documents.
  int32_t eos_id() const { return loader_ ? loader_->eos_id() : -1; }
  std::string description() const { return data_ ? data_->train.dir().string() : "random ids"; }

  void read(int64_t first, int64_t count, std::span<int32_t> inputs, std::span<int32_t> targets) const {
    if (loader_) return loader_->read(first, count, inputs, targets);
    const Philox random(seed_, "bench");
    const auto id = [&](uint64_t i) {
      return static_cast<int32_t>(random.bits(i) % static_cast<uint64_t>(vocab_size_));
    };
    const uint64_t begin = static_cast<uint64_t>(first * seq_len_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = id(begin + i);
      targets[i] = id(begin + i + 1);
    }
  }

 private:
  int64_t seq_len_;
  uint64_t seed_;
  int64_t vocab_size_ = 0;
  std::optional<TrainingData> data_;
  std::optional<SequenceLoader> loader_;
};

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
  TokenSource source(unresolved);
  const Config config = source.resolve(unresolved);
  const int num_threads = static_cast<int>(config.run.threads);
  const EngineMemory memory = measure_memory(config, num_threads);
  const auto ops = make_backend({.device = config.run.device, .num_threads = num_threads});
  Engine engine(config, *ops, &memory);
  engine.initialise();

  TrainBench bench{.device = ops->description(),
                   .tokens = source.description(),
                   .steps = steps,
                   .tokens_per_step = config.train.batch_seqs * config.data.seq_len,
                   .cost = model_cost(config.model, engine.model().parameters(), config.data.seq_len)};
  const double peak_before = ops->peak_flops();
  std::vector<int32_t> inputs(static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len));
  std::vector<int32_t> targets(inputs.size());
  Documents documents;
  std::vector<double> forward_backward, optimizer, total;
  using Clock = std::chrono::steady_clock;
  const auto ms_between = [](Clock::time_point a, Clock::time_point b) {
    return std::chrono::duration<double, std::milli>(b - a).count();
  };
  for (int64_t step = 0; step < warmup + steps; ++step) {
    const auto begin = Clock::now();
    engine.begin_step();
    for (int64_t done = 0; done < config.train.batch_seqs; done += config.train.microbatch_seqs) {
      source.read(step * config.train.batch_seqs + done, config.train.microbatch_seqs, inputs, targets);
      if (engine.masks_documents()) {
        find_documents(inputs, config.train.microbatch_seqs, config.data.seq_len, source.eos_id(), documents);
      }
      engine.accumulate(inputs, targets, documents);
    }
    const auto middle = Clock::now();
    engine.finish_step({.steps = step + 1, .tokens = (step + 1) * bench.tokens_per_step});
    const auto end = Clock::now();
    if (step < warmup) continue;
    forward_backward.push_back(ms_between(begin, middle));
    optimizer.push_back(ms_between(middle, end));
    total.push_back(ms_between(begin, end));
  }
  bench.ms_forward_backward = median(forward_backward);
  bench.ms_optimizer = median(optimizer);
  bench.ms_per_step = median(total);
  bench.tokens_per_s = 1e3 * static_cast<double>(bench.tokens_per_step) / bench.ms_per_step;
  bench.flops = bench.cost.flops_per_token * bench.tokens_per_s;
  bench.peak_flops = std::max(peak_before, ops->peak_flops());
  bench.load_max_over_mean = worst_load(engine.router_health());
  return bench;
}

}  // namespace nmoe
