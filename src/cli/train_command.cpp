#include <fmt/format.h>

#include "base/signals.h"
#include "base/text.h"
#include "base/version.h"
#include "chat/checkpoint_settings.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "config/load.h"
#include "config/reference.h"
#include "config/templates.h"
#include "hf/binding.h"
#include "hf/import.h"
#include "train/loop/resume.h"
#include "train/loop/run_config.h"
#include "train/loop/trainer.h"
#include "train/loop/training_data.h"
#include "train/plan/memory_plan.h"
#include "train/plan/run_folder.h"
#include "train/plan/run_plan.h"

namespace nmoe::cli {
namespace {

// To a plan without the corpus that the configuration names.
std::string note_on_absence(const Config& config) {
  const std::string& place = config.data.mixture.empty() ? config.data.path : config.data.mixture;
  if (place.empty()) return "";
  return fmt::format("note: there is no '{}' yet: n prep makes it, and training needs it\n", place);
}

}  // namespace

void train_command(const TrainArguments& arguments) {
  const StopSignal stop;
  ignore_broken_pipes();  // nobody need read what is said for the weights to be kept
  const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  const TrainSummary summary = train(config, {.resume = arguments.resume,
                                              .version = std::string(version()),
                                              .commit = std::string(commit()),
                                              .stop = &stop,
                                              .text_ids_of = imported_text_ids});
  if (!summary.reports) return;
  if (summary.steps_now > 0) {
    print("{} steps in {:.1f} s, {:.0f} tokens/s\n", summary.steps_now, summary.seconds, summary.tokens_per_s);
  } else {
    print("nothing to do: {} steps are done\n", summary.steps);
  }
  if (summary.valid) {
    const ValidationResult& valid = *summary.valid;
    const std::string bits = valid.bytes == 0 ? "" : fmt::format(", {:.4f} bits per byte", valid.bits_per_byte());
    print("validation loss {:.4f} nats per token{} ({} tokens, {} bytes)\n", valid.loss(), bits, valid.tokens,
          valid.bytes);
    if (valid.special > 0) {
      print("special targets {:.2f} % of these tokens, {:.4f} nats each\n", 100.0 * valid.special_share(),
            valid.special_loss());
    }
    if (valid.answers > 0) {
      print("answers right {:.1f} % (of {})\n", 100.0 * valid.answers_correct_share(), valid.answers);
    }
  }
  if (summary.target_reached) print("the target, {}, is reached at step {}\n", config.train.target_loss, summary.steps);
  if (summary.device_bytes_planned > 0) {
    print("device memory {} of {} planned\n", human_bytes(summary.device_bytes_used),
          human_bytes(summary.device_bytes_planned));
  }
  print("checkpoint {}\n", summary.checkpoint.string());
  if (summary.interrupted) {
    print("stopped after step {}; go on with the same command and --resume\n", summary.steps);
  }
}

// Refuses what training would refuse, once the plan is printed.
void plan_command(const PlanArguments& arguments) {
  Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  std::optional<GpuPart> part;
  if (!arguments.device_memory.empty()) {
    part = parse_gpu_part(arguments.device_memory, "--device-memory");
    if (config.run.device != "cuda") {
      throw usage_error("--device-memory is that of a GPU, but run.device = \"cpu\"",
                        "add --set run.device=cuda, or leave it out: train.memory_limit limits the CPU's");
    }
  }
  std::optional<TrainingData> data;
  if (has_training_data(config)) {
    data.emplace(open_training_data(config));
    config = resolve_vocab_size(config, *data->tokenizer);
  }
  if (config.model.vocab_size == 0) throw unknown_vocab_size(config);
  std::optional<StreamPlan> stream;
  std::vector<int64_t> seq_lens;
  if (data) {
    stream = plan_training_data(config, *data, model_cost(config.model).active_parameters);
    config = resolve_steps(config, *stream);
    seq_lens = data->sequence_lengths(config);
  }
  if (!config.model.init.from.empty() && !latest_checkpoint(checkpoint_dir(config))) {
    check_starting_checkpoint(config, data ? data->tokenizer.get() : nullptr);
  }
  const MemoryPlan plan =
      plan_memory(config, data ? data->host_bytes(config) : 0, config.parallel.ranks, part, seq_lens);
  const double flops = run_flops(config, plan.cost, stream ? &*stream : nullptr);
  print("{}{}{}{}", print_plan(plan, config), print_run_plan(config, flops, plan.device_flops),
        stream ? print_padding(*stream) : "", data ? note_on_validation(*data) : note_on_absence(config));
  check_memory(plan, config);
  check_schedule(config);
  if (!arguments.resume) check_name_is_free(config, checkpoint_dir(config));
}

void config_command(const ConfigCommandArguments& arguments) {
  if (arguments.all) {
    print("{}", config_reference());
  } else if (!arguments.config_template.empty()) {
    print("{}", config_template(arguments.config_template));
  } else if (!arguments.hf_model.empty()) {
    print("{}", print_config(imported_config(read_hf_model(arguments.hf_model), arguments.hf_model)));
  } else {
    const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
    print("{}\n# fingerprint {}\n", print_config(config), config_fingerprint(config));
  }
}

}  // namespace nmoe::cli
