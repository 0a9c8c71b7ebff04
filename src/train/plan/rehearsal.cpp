#include "train/plan/rehearsal.h"

#include "base/files.h"
#include "base/process.h"
#include "config/load.h"
#include "model/spec/spec.h"
#include "parallel/thread_group.h"
#include "track/metrics.h"
#include "track/runs.h"
#include "train/loop/checkpoint_saver.h"
#include "train/plan/engine_plan.h"
#include "train/step/engine.h"
#include "train/step/live_generation.h"

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
  if (live_generation_needs(config)) tiny.train.sample_prompts = {"a"};
  tiny.optim = config.optim;
  tiny.optim.schedule = {};        // whose length may not be known yet
  tiny.optim.state_on_device = 0;  // with "fit", as if all moved
  tiny.run = run;
  tiny.precision = {.fallback = config.precision.fallback, .check_every = 2};
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
    MetricRecord record{.step = step, .ts_ms = now_ms()};
    for (int i = 0; i < 100; ++i) record.scalars.emplace_back(fmt::format("rehearsal/{}", i), 0.0);
    record.arrays.emplace_back("rehearsal/array", std::vector<float>(100));
    metrics_.append(record);
    metrics_.flush();
    runs_.progress(run_, {.step = step});
  }
  void finish() { runs_.finish(run_, RunStatus::kCompleted, ""); }

 private:
  RunStore runs_;
  MetricsWriter metrics_;
  std::string run_;
};

// Steps of a tiny model, a validation and, if the run generates, a token: of steps that are checked (even numbers) and
// of those that are not, the first of each kind, one from a recording, and one from that which is timed. Then, when
// what loads lazily is loaded, a checkpoint and a write of metrics. Returns what these two take at most, beside the
// rest: in a run they meet by chance, here one follows the other and both are added.
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
    for (int64_t step = 1; step <= 6; ++step) {
      engine.load(0, microbatch_of(ids, ids, {}));
      engine.step({.steps = step, .tokens = step}, 1, /*in_detail=*/false, /*with_phases=*/step > 4);
      engine.result();
    }
    std::vector<float> losses(ids.size());
    engine.evaluate(ids, ids, losses);
    if (const LiveGenerationNeeds needs = live_generation_needs(tiny); needs && LiveGeneration::is_possible(engine)) {
      LiveGeneration generation(tiny, engine, /*tokenizer=*/nullptr, needs);
      const CacheRow row{.token = 1};
      const int32_t wanted = 0;
      for (int pass = 0; pass < 2; ++pass) {  // the second from a recording, where there are any
        generation.model().run(std::span(&row, 1), std::span(&wanted, 1), /*with_sums=*/false);
      }
    }
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
      saver.begin(engine, {.info = {.step = 6}, .config_toml = print_config(tiny)});
      if (const auto error = saver.finish()) throw *error;
    });
    measure([&] {
      if (rank.is_first()) tracking.write(2);
    });
  });
  tracking.finish();
  return taken;
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
  if (computes) return resident_bytes() + writes;
  // What the arenas of a GPU's steps take in the host differs; what they leave there is there by now.
  reset_peak_resident_bytes();
  const fs::path again = folder.path() / "again";  // where no run has the name that $NMOE_RUN may give
  fs::create_directories(again);
  Tracking tracking(again);
  tracking.write(3);
  tracking.finish();
  return peak_resident_bytes();
}

}  // namespace nmoe
