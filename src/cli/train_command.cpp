#include <fmt/format.h>

#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "config/load.h"
#include "train/memory_plan.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace nmoe::cli {

void train_command(const TrainArguments& arguments) {
  const Config config = load_config(arguments.config.file, arguments.config.overrides);
  const TrainSummary summary =
      train(config, {.resume = arguments.resume, .version = std::string(version()), .commit = std::string(commit())});
  if (summary.steps_now > 0) {
    fmt::print("{} steps in {:.1f} s, {:.0f} tokens/s\n", summary.steps_now, summary.seconds, summary.tokens_per_s);
  } else {
    fmt::print("nothing to do: {} steps are done\n", summary.steps);
  }
  if (summary.valid) {
    fmt::print("validation loss {:.4f} nats per token, {:.4f} bits per byte ({} tokens, {} bytes)\n",
               summary.valid->loss(), summary.valid->bits_per_byte(), summary.valid->tokens, summary.valid->bytes);
    if (summary.valid->answers > 0) {
      fmt::print("answers right {:.1f} % (of {})\n", 100.0 * summary.valid->answers_correct_share(),
                 summary.valid->answers);
    }
  }
  if (summary.device_bytes_planned > 0) {
    fmt::print("device memory {} of {} planned\n", human_bytes(summary.device_bytes_used),
               human_bytes(summary.device_bytes_planned));
  }
  fmt::print("checkpoint {}\n", summary.checkpoint.string());
  if (summary.interrupted) {
    fmt::print("stopped after step {}; go on with the same command and --resume\n", summary.steps);
  }
}

void plan_command(const ConfigArguments& arguments) {
  Config config = load_config(arguments.file, arguments.overrides);
  int64_t data_bytes = 0;
  std::string note;
  if (has_training_data(config)) {
    const TrainingData data = open_training_data(config);
    config = resolve_vocab_size(config, *data.tokenizer);
    data_bytes = data.host_bytes(config);
    note = note_on_validation(data);
  }
  if (config.model.vocab_size == 0) {
    throw usage_error("model.vocab_size is 0 (the tokenizer's), and there is no corpus to take it from",
                      "prepare the corpus in data.path, or add --set model.vocab_size=N");
  }
  const MemoryPlan plan = plan_memory(config, data_bytes);
  fmt::print("{}{}", print_plan(plan, config), note);
  check_memory(plan, config);
}

void config_command(const ConfigArguments& arguments) {
  const Config config = load_config(arguments.file, arguments.overrides);
  fmt::print("{}\n# fingerprint {}\n", print_config(config), config_fingerprint(config));
}

}  // namespace nmoe::cli
