#include "train/rehearsal.h"

#include <algorithm>
#include <limits>

#include "base/files.h"
#include "base/process.h"
#include "base/thread_pool.h"
#include "config/load.h"
#include "model/spec.h"
#include "parallel/thread_group.h"
#include "track/metrics.h"
#include "track/runs.h"
#include "train/checkpoint_saver.h"
#include "train/engine.h"

namespace nmoe {
namespace {

// A model small enough not to matter, on so many ranks of the device of `run`.
Config tiny_run(const Config& config, const RunConfig& run, int64_t ranks) {
  Config tiny;
  tiny.model = {.vocab_size = 64, .dim = 64, .num_layers = 2, .num_heads = 2, .num_dense_layers = 1, .dense_dim = 64};
  tiny.model.mla = {
      .q_lora_rank = 0, .kv_lora_rank = 32, .qk_nope_head_dim = 16, .qk_rope_head_dim = 16, .v_head_dim = 32};
  tiny.model.moe = {.num_experts = 4 * ranks, .top_k = 2, .expert_dim = 64};
  tiny.data.seq_len = 64;
  tiny.train.microbatch_seqs = 8;
  tiny.train.batch_seqs = 8 * ranks;
  tiny.optim = config.optim;
  tiny.run = run;
  tiny.parallel = config.parallel;
  tiny.parallel.ranks = ranks;
  if (tiny.parallel.logical_shards > 0) tiny.parallel.logical_shards = ranks;
  return tiny;
}

// The databases of a run that nobody will see; a write has as many metrics as a step.
class Tracking {
 public:
  explicit Tracking(const fs::path& folder) : runs_(folder / "experiments.db"), metrics_(folder / "rehearsal.duckdb") {
    run_ = runs_.start({.name = "rehearsal", .experiment = "rehearsal"});
  }
  void write(int64_t step) {
    for (int i = 0; i < 100; ++i) metrics_.add(step, fmt::format("rehearsal/{}", i), 0.0);
    metrics_.flush();
    runs_.progress(run_, step, 0.0, 0.0);
  }
  void finish() { runs_.finish(run_, RunStatus::kCompleted, ""); }

 private:
  RunStore runs_;
  MetricsWriter metrics_;
  std::string run_;
};

// Two steps of a tiny model, of which the second is the first of a recording, and a validation; then, when what loads
// lazily is loaded, a checkpoint and a write of metrics. Returns what these two take at most, beside the rest: in a run
// they meet by chance, here one follows the other and both are added.
int64_t rehearse_run(const Config& tiny, int64_t ranks, const fs::path& folder) {
  const StoragePlan plan = plan_engine_storage(tiny);
  Tracking tracking(folder);
  int64_t taken = 0;
  run_ranks(ranks, std::chrono::seconds(tiny.parallel.timeout_s), [&](Communicator& communicator) {
    const auto memory =
        RankMemory::make(device_options(tiny.run, communicator.count(), communicator.index()), plan, communicator);
    const Rank rank{*memory->device, communicator};
    Engine engine(tiny, rank, memory->storage);
    engine.initialise();
    const std::vector<int32_t> ids(static_cast<size_t>(tiny.train.microbatch_seqs * tiny.data.seq_len), 1);
    for (int64_t step = 1; step <= 2; ++step) {
      engine.load(0, ids, ids);
      engine.step({.steps = step, .tokens = step}, 1);
    }
    engine.result();
    std::vector<float> losses(ids.size());
    engine.evaluate(ids, ids, losses);
    if (rank.is_first()) tracking.write(1);

    const auto measure = [&](const auto& work) {
      communicator.barrier();
      if (rank.is_first()) {
        release_free_memory();
        reset_peak_resident_bytes();
      }
      communicator.barrier();
      const int64_t before = resident_bytes();
      work();
      communicator.barrier();
      if (rank.is_first()) taken += peak_resident_bytes() - before;
    };
    CheckpointSaver saver(folder / "checkpoints", /*keep_last=*/1, rank);
    measure([&] {
      saver.begin(engine, {.info = {.step = 2}, .config_toml = print_config(tiny)});
      if (const auto error = saver.finish()) throw *error;
    });
    measure([&] {
      if (rank.is_first()) tracking.write(2);
    });
  });
  tracking.finish();
  return taken;
}

// Products of `weight` with activations of `tokens` tokens, forward and backward, no larger than matters for what is
// packed: rows, and columns of what is not stacked, are cut (ops/cpu/linear.cpp), and so is the depth by oneDNN 2.6.
void multiply(Storage& storage, const WeightSpec& weight, int64_t tokens) {
  constexpr int64_t kMostRows = 2048, kMostDepth = 768;
  Ops& ops = storage.device().ops();
  const bool stacked = weight.group == WeightGroup::kExperts;
  const int64_t rows = std::min(tokens, kMostRows);
  const auto product = [&](int64_t out, int64_t in, bool forward) {
    ArenaScope scope(storage[ArenaKind::kActivations]);
    const DType act = ops.compute_dtype();
    const Tensor x = scope.allocate(act, {rows, in}), w = scope.allocate(act, {out, in}),
                 y = scope.allocate(act, {rows, out});
    if (!stacked) {
      if (forward) ops.linear_forward({.x = x, .w = w, .y = y});
      if (!forward) ops.linear_backward_input({.dy = y, .w = w, .dx = x});
      return;
    }
    const Tensor stack = w.reshape({1, out, in}), offsets = scope.allocate(DType::kI32, {2});
    if (!ops.counting()) offsets.data<int32_t>()[1] = static_cast<int32_t>(rows);
    if (forward) ops.grouped_linear_forward({.x = x, .w = stack, .offsets = offsets, .y = y});
    if (!forward) ops.grouped_linear_backward_input({.dy = y, .w = stack, .offsets = offsets, .dx = x});
  };
  const int last = static_cast<int>(weight.shape.rank()) - 1;
  const int64_t most_columns = stacked ? std::numeric_limits<int64_t>::max() : kMostRows;
  const int64_t out = weight.shape[last - 1], in = weight.shape[last];
  product(std::min(out, most_columns), std::min(in, kMostDepth), /*forward=*/true);
  product(std::min(out, kMostDepth), std::min(in, most_columns), /*forward=*/false);
}

// What oneDNN allocates on each thread for the products of `config`'s weights: it packs operands, the more of them the
// wider they are.
int64_t packing_bytes(const Config& config) {
  std::vector<WeightSpec> widest;  // each shape of stacks; of the other matrices the largest
  for (const WeightSpec& weight : describe_model(config.model).weights) {
    if (weight.shape.rank() < 2 || weight.is_looked_up) continue;
    const bool stacked = weight.group == WeightGroup::kExperts;
    const auto like = std::ranges::find_if(widest, [&](const WeightSpec& other) {
      return other.group == WeightGroup::kExperts ? other.shape == weight.shape : !stacked;
    });
    if (like == widest.end()) {
      widest.push_back(weight);
    } else if (like->shape.num_elements() < weight.shape.num_elements()) {
      *like = weight;
    }
  }
  DeviceOptions options = device_options(config.run);
  options.num_threads = 1;
  const auto run = [&](Storage& storage) {
    for (const WeightSpec& weight : widest) {
      multiply(storage, weight, config.train.microbatch_seqs * config.data.seq_len);
    }
  };
  const StoragePlan plan = plan_storage(options, run);
  const auto device = make_device(options);
  Storage storage(*device, plan);
  release_free_memory();
  reset_peak_resident_bytes();
  const int64_t before = resident_bytes();
  run(storage);
  return peak_resident_bytes() - before;
}

}  // namespace

int64_t rehearsed_process_bytes(const Config& config, const RunConfig& run, int64_t ranks) {
  const bool computes = config.run.device == "cpu";
  if (computes) use_one_heap();
  const fs::path place = fs::temp_directory_path() / "nmoe-rehearsal";
  remove_unfinished_folders(place);
  const TemporaryFolder folder(place);
  const int64_t writes = rehearse_run(tiny_run(config, run, ranks), ranks, folder.path());
  release_free_memory();
  if (computes) {
    const int64_t threads = run.threads > 0 ? run.threads : available_cpus();
    const int64_t idle = resident_bytes();
    // One heap: what products have packed into is free when a step is done and files are written.
    return idle + std::max(writes, std::max(ranks, threads) * packing_bytes(config));
  }
  // What the arenas of a GPU's steps take in the host differs; what they leave there is there by now.
  reset_peak_resident_bytes();
  Tracking tracking(folder.path());
  tracking.write(3);
  tracking.finish();
  return peak_resident_bytes();
}

}  // namespace nmoe
