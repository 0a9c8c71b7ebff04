#include "train/rehearsal.h"

#include <algorithm>
#include <optional>

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

// A model small enough not to matter, on so many ranks.
Config tiny_run(const Config& config, int64_t ranks) {
  Config tiny;
  tiny.model = {.vocab_size = 64, .dim = 64, .num_layers = 2, .num_heads = 2, .num_dense_layers = 1, .dense_dim = 64};
  tiny.model.mla = {
      .q_lora_rank = 0, .kv_lora_rank = 32, .qk_nope_head_dim = 16, .qk_rope_head_dim = 16, .v_head_dim = 32};
  tiny.model.moe = {.num_experts = 4 * ranks, .top_k = 2, .expert_dim = 64};
  tiny.data.seq_len = 64;
  tiny.train.microbatch_seqs = 8;
  tiny.train.batch_seqs = 8 * ranks;
  tiny.optim = config.optim;
  tiny.run = config.run;
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
// lazily is loaded, a checkpoint and a write of metrics at the same time. Returns the peak of that beside the arenas.
int64_t rehearse_run(const Config& config, int64_t ranks, const fs::path& folder) {
  const Config tiny = tiny_run(config, ranks);
  const StoragePlan plan = plan_engine_storage(tiny);
  Tracking tracking(folder);
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
    communicator.barrier();
    if (rank.is_first()) {
      release_free_memory();
      reset_peak_resident_bytes();
    }
    communicator.barrier();
    CheckpointSaver saver(folder / "checkpoints", /*keep_last=*/1, rank);
    saver.begin(engine, {.info = {.step = 2}, .config_toml = print_config(tiny)});
    if (rank.is_first()) tracking.write(2);
    if (const auto error = saver.finish()) throw *error;
  });
  tracking.finish();
  return peak_resident_bytes() - ranks * plan.total();
}

// What the library under the products of `config`'s largest weights allocates for itself, on each thread that computes
// one: it packs operands, the more of them the wider they are.
int64_t packing_bytes(const Config& config) {
  // Beyond these an operand is packed piece by piece (oneDNN 2.6).
  constexpr int64_t kMostRows = 2048, kMostDepth = 768;
  constexpr int64_t kExpertRows = 512;  // of an expert that are multiplied at once (ops/cpu/linear.cpp)
  const int64_t tokens = config.train.microbatch_seqs * config.data.seq_len;
  const auto num_products = [](const WeightSpec& weight) { return weight.shape.num_elements(); };
  std::optional<WeightSpec> dense, first, second;  // the largest [out, in]; the experts' two
  for (const WeightSpec& weight : describe_model(config.model).weights) {
    if (weight.shape.rank() == 2 && !weight.is_looked_up && (!dense || num_products(weight) > num_products(*dense))) {
      dense = weight;
    }
    if (weight.group != WeightGroup::kExperts) continue;
    std::optional<WeightSpec>& place = weight.shape[1] == config.model.dim ? second : first;
    place = weight;
  }
  DeviceOptions options = device_options(config.run);
  options.num_threads = 1;
  const auto run = [&](Storage& storage) {
    Arena& arena = storage[ArenaKind::kActivations];
    Ops& ops = storage.device().ops();
    const auto pair = [&](const WeightSpec& weight, bool stacked) {
      const int64_t rows = std::min(tokens, stacked ? kExpertRows : kMostRows);
      const ArenaScope scope(arena);
      const DType act = ops.compute_dtype();
      const int64_t rank = weight.shape.rank(), out = weight.shape[static_cast<int>(rank) - 2],
                    in = weight.shape[static_cast<int>(rank) - 1];
      const auto multiply = [&](int64_t outer, int64_t inner, bool forward) {
        const ArenaScope operands(arena);
        const Tensor a = arena.allocate(act, {rows, inner}), c = arena.allocate(act, {rows, outer});
        const Shape shape = forward ? Shape({outer, inner}) : Shape({inner, outer});
        const Tensor w = arena.allocate(act, shape);
        const Tensor offsets = arena.allocate(DType::kI32, {2});
        if (!ops.counting()) offsets.data<int32_t>()[1] = static_cast<int32_t>(rows);
        const Tensor stack = stacked ? w.reshape({1, shape[0], shape[1]}) : w;
        if (stacked && forward) ops.grouped_linear_forward({.x = a, .w = stack, .offsets = offsets, .y = c});
        if (stacked && !forward) ops.grouped_linear_backward_input({.dy = a, .w = stack, .offsets = offsets, .dx = c});
        if (!stacked && forward) ops.linear_forward({.x = a, .w = w, .y = c});
        if (!stacked && !forward) ops.linear_backward_input({.dy = a, .w = w, .dx = c});
      };
      multiply(stacked ? out : std::min(out, kMostRows), std::min(in, kMostDepth), /*forward=*/true);
      multiply(stacked ? in : std::min(in, kMostRows), std::min(out, kMostDepth), /*forward=*/false);
    };
    if (dense) pair(*dense, /*stacked=*/false);
    if (first) pair(*first, /*stacked=*/true);
    if (second) pair(*second, /*stacked=*/true);
  };
  const StoragePlan plan = plan_storage(options, run);
  const auto device = make_device(options);
  Storage storage(*device, plan);
  release_free_memory();
  reset_peak_resident_bytes();
  const int64_t before = resident_bytes();
  run(storage);
  return std::max<int64_t>(0, peak_resident_bytes() - before);
}

}  // namespace

int64_t rehearsed_process_bytes(const Config& config, int64_t ranks) {
  if (config.run.device == "cpu") use_one_heap();
  const fs::path place = fs::temp_directory_path() / "nmoe-rehearsal";
  remove_unfinished_folders(place);
  const TemporaryFolder folder(place);
  const int64_t process = rehearse_run(config, ranks, folder.path());
  if (config.run.device == "cpu") {
    const int64_t threads = config.run.threads > 0 ? config.run.threads : available_cpus();
    return process + std::max(ranks, threads) * packing_bytes(config);
  }
  // What the arenas of a GPU's steps take in the host differs; what they leave there is there by now.
  release_free_memory();
  reset_peak_resident_bytes();
  Tracking tracking(folder.path());
  tracking.write(3);
  tracking.finish();
  return peak_resident_bytes();
}

}  // namespace nmoe
