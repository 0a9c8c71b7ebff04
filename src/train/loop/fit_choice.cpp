#include "train/loop/fit_choice.h"

#include <optional>
#include <vector>

#include "base/error.h"
#include "base/say.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "config/validate.h"
#include "parallel/launch.h"
#include "train/loop/training_data.h"
#include "train/plan/fit_plan.h"
#include "train/plan/run_folder.h"

namespace nmoe {
namespace {

Config with_keys_of(Config config, const Config& from) {
  config.train.recompute = from.train.recompute;
  config.train.microbatch_seqs = from.train.microbatch_seqs;
  config.optim.offload = from.optim.offload;
  return config;
}

}  // namespace

Config choose_fit(const Config& config, bool resume) {
  if (const Launch launch = read_launch(); !launch.is_alone()) {
    throw usage_error(fmt::format("--fit in one of {} processes, which might choose differently", launch.num_processes),
                      "choose with n plan --fit, and set the keys that it prints");
  }
  if (const std::optional<fs::path> latest = latest_checkpoint(checkpoint_dir(config)); resume && latest) {
    const CheckpointReader reader = CheckpointReader::open(*latest);
    const Config before = saved_config(reader);
    const Config kept = with_keys_of(config, before);
    const std::vector<Issue> issues = find_issues(kept);
    if (issues.empty()) {
      say("--fit: keys as before, from {}\n{}", reader.path().string(), fit_keys(before));
      return kept;
    }
    say("--fit: the keys of {} do not go with this configuration, and are chosen anew: {}\n", reader.path().string(),
        issues.front().what);
  }
  const TrainingData data = open_training_data(config);
  const Config resolved = resolve_vocab_size(config, *data.tokenizer);
  const std::vector<int64_t> seq_lens = data.sequence_lengths(resolved);
  const MemoryPlanner planner(resolved, data.host_bytes(resolved), resolved.parallel.ranks, /*part=*/{}, seq_lens);
  const FitPlan plan = plan_fit(resolved, planner);
  if (plan.choices.empty()) throw nothing_fits(plan, resolved);
  const Config& first = plan.choices[0].config;
  say("--fit: the first of what fits\n{}", fit_keys(first));
  return with_keys_of(config, first);
}

}  // namespace nmoe
