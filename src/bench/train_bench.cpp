#include "bench/train_bench.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/process.h"
#include "base/rng.h"
#include "bench/timing.h"
#include "config/load.h"
#include "model/experts_exchange.h"
#include "parallel/thread_group.h"
#include "train/loop/batch_stream.h"
#include "train/loop/training_data.h"
#include "train/plan/memory_plan.h"
#include "train/report/exchange_report.h"
#include "train/report/router_report.h"
#include "train/step/engine.h"

namespace nmoe {
namespace {

double mean(const std::vector<double>& values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

// What a step is made of, on all ranks.
struct StepWork {
  int64_t num_targets = 0;
  double flops = 0.0;
  std::array<int64_t, MtpConfig::kMostDepths> ahead{};  // targets of further depths

  StepTargets targets(const Config& config) const {
    return {num_targets, {ahead.begin(), ahead.begin() + config.model.mtp.depth}};
  }
};

// Fills an engine's microbatches: from the corpus, or with ids that mean nothing where there is none.
class Batches {
 public:
  Batches(const Config& config, const TrainingData* data, const ModelCost& cost, const Rank& rank)
      : config_(config), cost_(cost), rank_(rank) {
    if (data != nullptr) {
      plan_ = plan_training_data(config, *data, cost.active_parameters);
      stream_.emplace(config, *data, plan_, rank.index());
      return;
    }
    const Philox random(static_cast<uint64_t>(config.run.seed), "bench");
    const int64_t count = config.train.batch_seqs * config.data.seq_len + 1;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t id = random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(config.model.vocab_size);
      random_ids_.push_back(static_cast<int32_t>(id));
    }
  }

  // The rank's microbatches of the next step.
  StepWork load(Engine& engine) {
    if (!stream_) return load_random_ids(engine);
    stream_->next();
    engine.use_seq_len(stream_->shape().seq_len);
    for (int64_t i = 0; i < stream_->num_microbatches(); ++i) {
      engine.load(i, stream_->microbatch(i));
    }
    StepWork mine{stream_->num_targets(), stream_->flops(cost_)}, all;
    std::ranges::copy(stream_->num_targets_ahead(config_.model.mtp.depth), mine.ahead.begin());
    for (const StepWork& of_rank : rank_.mesh().data().all_gather_values(mine)) {
      all.num_targets += of_rank.num_targets;
      all.flops += of_rank.flops;
      for (size_t k = 0; k < all.ahead.size(); ++k) all.ahead[k] += of_rank.ahead[k];
    }
    return all;
  }

 private:
  StepWork load_random_ids(Engine& engine) {
    const std::span ids = random_ids_;
    const auto size = static_cast<size_t>(config_.train.microbatch_seqs * config_.data.seq_len);
    Documents documents;  // made-up ids have none: each sequence is one
    for (int64_t i = 0; i < engine.num_microbatches(); ++i) {
      const size_t begin = static_cast<size_t>(rank_.index() * engine.num_microbatches() + i) * size;
      const auto inputs = ids.subspan(begin, size);
      if (engine.masks_documents()) {
        find_documents({}, config_.train.microbatch_seqs, config_.data.seq_len, documents);
      }
      engine.load(i, microbatch_of(inputs, ids.subspan(begin + 1, size), documents));
    }
    const int64_t num_targets = static_cast<int64_t>(ids.size()) - 1;
    StepWork work{num_targets, static_cast<double>(num_targets) * cost_.flops_per_token(config_.data.seq_len)};
    for (int64_t k = 0; k < config_.model.mtp.depth; ++k) {
      work.ahead[static_cast<size_t>(k)] = config_.train.batch_seqs * (config_.data.seq_len - 1 - k);
    }
    return work;
  }

  const Config& config_;
  const ModelCost& cost_;
  Rank rank_;
  StreamPlan plan_;
  std::optional<BatchStream> stream_;
  std::vector<int32_t> random_ids_;
};

// The configuration with its vocabulary resolved. Rates change no time: shares of a run go, which has no length here.
Config resolve(Config config, const TrainingData* data) {
  if (config.optim.schedule.needs_length()) config.optim.schedule = {.unit = config.optim.schedule.unit};
  if (data != nullptr) return resolve_vocab_size(config, *data->tokenizer);
  if (config.model.vocab_size > 0) return config;
  throw unknown_vocab_size(config);
}

// The steps of a bench, one behind the other.
class Steps {
 public:
  Steps(const Config& config, Engine& engine, Batches& batches)
      : config_(config),
        tokens_per_step_(config.train.batch_seqs * config.data.seq_len),
        engine_(engine),
        batches_(batches) {}

  void enqueue(bool in_detail = false) {
    rebalance();
    if (engine_.num_pending() == Engine::kMaxPending) take_result();
    const StepWork work = batches_.load(engine_);
    flops_ += work.flops;
    engine_.step(next(), work.targets(config_), in_detail);
  }
  // Moves experts where that is due behind the steps enqueued so far, as a trainer does in front of the next.
  void rebalance() {
    if (num_steps_ == rebalanced_step_ || !engine_.rebalance_is_due(num_steps_)) return;
    rebalanced_step_ = num_steps_;
    wait();
    const auto begin = BenchClock::now();
    rebalancing_ = engine_.rebalance();
    rebalancing_ms_ = ms_since(begin);
    expert_moves_ += rebalancing_.moves();
  }
  int64_t expert_moves() const { return expert_moves_; }
  const Rebalancing& last_rebalancing() const { return rebalancing_; }
  double rebalancing_ms() const { return rebalancing_ms_; }
  // Of all steps that were enqueued.
  double flops() const { return flops_; }
  // Until all that are enqueued are over.
  void wait() {
    while (engine_.num_pending() > 0) take_result();
  }
  // Of all steps but those run in phases; loads of those with routers alone.
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<double>& loads() const { return loads_; }
  // Of one more step.
  std::vector<PhaseTime> run_in_phases() {
    wait();
    const StepWork work = batches_.load(engine_);
    engine_.step(next(), work.targets(config_), /*in_detail=*/false, /*with_phases=*/true);
    return engine_.take_result().phases;
  }
  // Of the last step with routers.
  const std::vector<LayerTraffic>& traffic() const { return traffic_; }

 private:
  void take_result() {
    const StepResult result = engine_.take_result();
    if (!result.finite) throw runtime_error("a step's loss or gradient is not finite", "lower the learning rates");
    losses_.push_back(result.loss(kNextToken));
    if (result.routers.empty()) return;
    loads_.push_back(fullest_expert(result.routers).over_mean);
    traffic_ = result.traffic;
  }
  Progress next() {
    ++num_steps_;
    return {.steps = num_steps_, .tokens = num_steps_ * tokens_per_step_};
  }

  const Config& config_;
  int64_t tokens_per_step_;
  Engine& engine_;
  Batches& batches_;
  int64_t num_steps_ = 0;
  double flops_ = 0.0;
  std::vector<double> losses_;
  std::vector<double> loads_;
  std::vector<LayerTraffic> traffic_;
  int64_t rebalanced_step_ = 0;
  int64_t expert_moves_ = 0;
  Rebalancing rebalancing_;
  double rebalancing_ms_ = 0.0;
};

// Medians over some steps, all layers together and each by itself.
void time_phases(Steps& steps, TrainBench& bench) {
  constexpr int kSteps = 3;
  std::map<StepPhase, std::vector<double>> ms;
  std::map<int64_t, std::map<StepPhase, std::vector<double>>> ms_of_layers;
  for (int i = 0; i < kSteps; ++i) {
    std::map<StepPhase, double> sums;
    for (const auto& [phase, layer, phase_ms] : steps.run_in_phases()) {
      sums[phase] += phase_ms;
      if (layer != kNoLayer) ms_of_layers[layer][phase].push_back(phase_ms);
    }
    for (const auto& [phase, phase_ms] : sums) ms[phase].push_back(phase_ms);
  }
  for (const StepPhase phase : step_phases()) {
    // A model without layers of one kind lacks their phases.
    if (ms.contains(phase)) bench.phases.push_back({step_phase_name(phase), median(ms.at(phase))});
  }
  for (const auto& [layer, by_phase] : ms_of_layers) {
    TrainBench::Layer& of_layer = bench.layers.emplace_back(TrainBench::Layer{.layer = layer});
    for (const auto& [phase, phase_ms] : by_phase)
      of_layer.phases.push_back({step_phase_name(phase), median(phase_ms)});
  }
}

// bench.layers are there.
void add_traffic(std::span<const LayerTraffic> traffic, std::span<const ExchangeCost> costs, TrainBench& bench) {
  for (const LayerTraffic& from : traffic) {
    TrainBench::Layer& layer = *std::ranges::find(bench.layers, from.layer, &TrainBench::Layer::layer);
    layer.rank_load_max_over_mean = rank_load_max_over_mean(from);
    bench.rank_load_max_over_mean = std::max(bench.rank_load_max_over_mean, layer.rank_load_max_over_mean);
    for (const RankTraffic& rank : from.ranks) {
      layer.sent_bytes.push_back(sent_bytes(rank, costs[static_cast<size_t>(from.layer)]));
      layer.waited_ms.push_back(rank.waited_ms);
      layer.lasted_ms.push_back(rank.lasted_ms);
      layer.exposed_ms.push_back(rank.exposed_ms);
    }
  }
}

TrainBench::Memory memory_of(const MemoryPlan& plan, const Device& device) {
  if (const auto use = device.memory_use()) return {plan.device_bytes, use->used_bytes};
  return {plan.total_bytes - plan.storage[ArenaKind::kCheckpointStaging], peak_resident_bytes()};
}

}  // namespace

namespace {

// What is to be run, alike on all ranks.
struct Task {
  const Config& config;  // resolved
  const TrainingData* data;
  const std::vector<int64_t>& seq_lens;
  const MemoryPlan& plan;
  int64_t warmup, num_steps;
};

// One rank's part; the times of the bench are those of the first.
TrainBench bench_rank(const Task& task, Communicator& communicator) {
  const Config& config = task.config;
  const auto memory = RankMemory::make(device_options(config.run, communicator.count(), communicator.index()),
                                       task.plan.storage, communicator);
  Device& device = *memory->device;
  const std::vector<ProductUse> products_before = products_of(device);  // of the rehearsal
  Engine engine(config, {device, communicator}, memory->storage, task.seq_lens);
  engine.initialise();
  Batches batches(config, task.data, task.plan.cost, engine.rank());
  Steps steps(config, engine, batches);

  TrainBench bench;
  bench.device = device.description();
  bench.software = device.software();
  bench.num_ranks = communicator.count();
  bench.fingerprint = config_fingerprint(config);
  bench.tokens = task.data != nullptr ? "the corpus" : "random ids";
  bench.warmup = task.warmup;
  bench.steps = task.num_steps;
  bench.tokens_per_step = config.train.batch_seqs * config.data.seq_len;
  bench.num_microbatches = engine.num_microbatches();
  bench.cost = task.plan.cost;

  for (int64_t i = 0; i < task.warmup; ++i) {
    steps.enqueue();
    if (i > 0) continue;
    steps.wait();
    bench.first_step_s = seconds_since_start();
  }
  steps.wait();
  steps.rebalance();
  const double peak_before = device.peak_flops();
  const double flops_before = steps.flops();
  communicator.barrier();
  const auto begin = BenchClock::now();
  for (int64_t i = 0; i < task.num_steps; ++i) steps.enqueue(/*in_detail=*/true);
  steps.wait();
  communicator.barrier();
  bench.ms_per_step = ms_since(begin) / static_cast<double>(task.num_steps);
  bench.flops_per_token = (steps.flops() - flops_before) / static_cast<double>(task.num_steps * bench.tokens_per_step);
  bench.losses.assign(steps.losses().end() - task.num_steps, steps.losses().end());
  bench.loads = steps.loads();
  bench.loss = mean(bench.losses);
  bench.load_max_over_mean = bench.loads.empty() ? 0.0 : mean(bench.loads);
  bench.expert_moves = steps.expert_moves();
  bench.last_rebalancing = steps.last_rebalancing();
  bench.rebalancing_ms = steps.rebalancing_ms();
  bench.product_identity = product_identity(device);
  bench.products = products_since(products_before, products_of(device));
  bench.memory = memory_of(task.plan, device);
  bench.peak_flops = static_cast<double>(communicator.count()) * std::max(peak_before, device.peak_flops());
  bench.peak_source = device.peak_source();
  const std::vector<LayerTraffic> traffic = steps.traffic();
  time_phases(steps, bench);
  add_traffic(traffic, exchange_costs(config, device.ops().compute_dtype(), Mesh(communicator).experts().count()),
              bench);
  bench.tokens_per_s = 1e3 * static_cast<double>(bench.tokens_per_step) / bench.ms_per_step;
  bench.flops = bench.flops_per_token * bench.tokens_per_s;
  return bench;
}

}  // namespace

TrainBench bench_train(const Config& unresolved, int64_t warmup, int64_t num_steps) {
  std::optional<TrainingData> data;
  if (has_training_data(unresolved)) data.emplace(open_training_data(unresolved));
  const TrainingData* corpus = data ? &*data : nullptr;
  Config config = resolve(unresolved, corpus);
  const std::vector<int64_t> seq_lens = data ? data->sequence_lengths(config) : std::vector{config.data.seq_len};
  const MemoryPlan plan =
      plan_memory(config, data ? data->host_bytes(config) : 0, config.parallel.ranks, /*part=*/{}, seq_lens);
  config.optim.state_on_device = plan.state_on_device;
  const Task task{
      .config = config, .data = corpus, .seq_lens = seq_lens, .plan = plan, .warmup = warmup, .num_steps = num_steps};
  TrainBench bench;
  run_ranks(config.parallel.ranks, std::chrono::seconds(config.parallel.timeout_s), [&](Communicator& communicator) {
    TrainBench mine = bench_rank(task, communicator);
    if (communicator.index() == 0) bench = std::move(mine);
  });
  return bench;
}

}  // namespace nmoe
