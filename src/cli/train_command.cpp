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
#include "train/loop/fit_choice.h"
#include "train/loop/run_config.h"
#include "train/loop/trainer.h"

namespace nmoe::cli {
void train_command(const TrainArguments& arguments) {
  const StopSignal stop;
  ignore_broken_pipes();  // nobody need read what is said for the weights to be kept
  Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  if (arguments.fit) config = choose_fit(config, arguments.resume);
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
