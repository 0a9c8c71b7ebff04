#include "train/loop/training_run.h"

#include <exception>
#include <utility>

#include "base/error.h"
#include "base/say.h"
#include "checkpoint/reader.h"
#include "track/runs.h"
#include "train/loop/batch_stream.h"
#include "train/loop/run_length.h"
#include "train/loop/validation.h"
#include "train/plan/fit_plan.h"
#include "train/plan/run_folder.h"
#include "train/plan/run_plan.h"
#include "train/proof/device_proof.h"

namespace nmoe {
namespace {

// Before training, so that nothing is learned that cannot be kept.
std::unique_ptr<CheckpointFolder> own_folder(const Config& config) {
  try {
    return std::make_unique<CheckpointFolder>(checkpoint_dir(config));
  } catch (const Error& error) {
    throw runtime_error(fmt::format("run \"{}\" cannot begin: {}", config.run.name, error.what()),
                        error.remedy() + "; or choose another run.name or run.dir");
  }
}

// Of a run that goes on. That the data's manifests and the sizes of its files are what they were is known by then.
void check_data(const Config& config, const TrainingData& data, bool tells) {
  if (config.data.verify == VerifyData::kOnResume) {
    verify_training_data(data);
    if (tells) say("data: every shard is what its manifest says\n");
  } else if (tells) {
    say("data: manifests and sizes of shards are what they were; data.verify = \"on resume\" hashes shards, too\n");
  }
}

// What texts begin with that are scored or go on, and answers end at, as n eval and n generate have it for this run's
// checkpoints.
TextIds text_ids(const Config& config, const TrainOptions& options, const Tokenizer& tokenizer) {
  if (config.eval.every == 0 && config.train.sample_prompts.empty()) return {};
  const std::optional<fs::path> latest =
      options.resume ? latest_checkpoint(checkpoint_dir(config)) : std::optional<fs::path>();
  const std::string& from = config.model.init.from;
  if (options.text_ids_of && (latest || !from.empty())) {
    const auto ids = options.text_ids_of(latest ? *latest : CheckpointReader::open(from).path(), tokenizer);
    if (ids) return *ids;
  }
  if (config.data.mask_documents) return {};
  return {.begin = {tokenizer.eos_id()}, .stop = {}};
}

}  // namespace

TrainingRun::TrainingRun(const Config& raw, const TrainOptions& chosen, const Launch& launch)
    : options(chosen),
      data(open_training_data(raw)),
      config(resolve_vocab_size(raw, *data.tokenizer)),
      seq_lens(data.sequence_lengths(config)),
      memory(plan_memory(config, data.host_bytes(config), ranks_of_process(launch, config.parallel.ranks),
                         /*part=*/{}, seq_lens)),
      stream(plan_training_data(config, data, memory.cost.active_parameters)),
      token_bytes(token_byte_counts(*data.tokenizer)),
      tokenizer_json(data.tokenizer->json()) {
  if (options.resume) config = keep_schedule_length(config, checkpoint_dir(config));
  config = resolve_length(std::move(config), &stream);
  config.optim.state_on_device = memory.state_on_device;
  alert_command = std::exchange(config.track.alert_command, {});
  if (launch.process == 0) {
    say("{}{}", print_plan(memory, config),
        print_run_plan(config, run_flops(config, memory.cost, &stream), run_epochs(config, stream),
                       memory.device_flops));
    if (data.mixture) say("{}", print_stream_plan(stream));
    say("{}", print_padding(stream));
    say("{}", note_on_validation(data));
  }
  check_memory(memory, config, [&] { return describe_savings(config, memory, /*part=*/{}, seq_lens); });
  const TextIds ids = text_ids(config, options, *data.tokenizer);
  evaluation = InLoopEvaluation::make(config, data.tokenizer, ids);
  samples.emplace(config, data.tokenizer, ids.begin);
  for (const DataSource& source : data.sources) {
    if (source.valid)
      valid_splits.push_back(
          {source.name, split_reader(*source.valid, config.data.seq_len, config.data.align_documents)});
  }
  if (config.train.target_loss > 0.0 && valid_splits.empty()) {
    throw usage_error("train.target_loss is a validation's, and no source has text for validation",
                      "prepare the data with --valid-fraction, or leave it out");
  }
  if (launch.process == 0) folder = own_folder(config);
  start.emplace(config, data, stream, checkpoint_dir(config), options.resume);
  if (start->resumes()) check_data(config, data, launch.process == 0);
  check_schedule(config, start->progress(), start->resumes());
  require_proof(device_options(config.run), fmt::format("{} {}", options.version, options.commit));
}

std::unique_ptr<BatchSource> TrainingRun::batches(int64_t rank) const {
  return std::make_unique<BatchStream>(config, data, stream, rank);
}

void RunPlace::set(fs::path database, const std::string& id) {
  const std::scoped_lock lock(mutex_);
  database_ = std::move(database);
  id_ = id;
}

void RunPlace::fail(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (id_.empty()) return;
  try {
    RunStore(database_).finish(id_, RunStatus::kFailed, reason);
  } catch (const std::exception& error) {
    say("warning: the run's row is not up to date: {}\n", error.what());
  }
}

}  // namespace nmoe
