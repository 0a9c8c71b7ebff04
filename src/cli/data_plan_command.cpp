#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/standard_output.h"
#include "model/spec/cost.h"
#include "train/loop/run_config.h"
#include "train/loop/run_length.h"
#include "train/loop/training_data.h"
#include "train/step/batch_shape.h"

namespace nmoe::cli {

void data_plan_command(const ConfigArguments& arguments) {
  Config config = load_run_config(arguments.file, arguments.overrides);
  const TrainingData data = open_training_data(config);
  config = resolve_vocab_size(config, *data.tokenizer);
  const StreamPlan plan = plan_training_data(config, data, model_cost(config.model).active_parameters);
  config = resolve_length(config, &plan);
  if (is_endless(plan)) {
    const PlannedSource& corpus = plan.sources[0];
    print("one corpus, for as many epochs as it takes: {} tokens, {} sequences of {} an epoch\n", corpus.num_tokens,
          corpus.num_windows(plan.seq_len), plan.seq_len);
    print("train.steps = {}: {:.3f} epochs\n", config.train.steps, *run_epochs(config, plan));
    print("{}", print_padding(plan));
    return;
  }
  print("{}", print_stream_plan(plan));
  print("train.steps = {} of {} tokens; the plan has {} steps\n", config.train.steps, step_tokens(config),
        plan_steps(config, plan));
  print("{}", print_padding(plan));
}

}  // namespace nmoe::cli
