#include "cli/eval_options.h"

#include "cli/command_options.h"
#include "cli/run_options.h"

namespace nmoe::cli {

void add_evaluation(CLI::App& app, EvalArguments& arguments, EvalCompareArguments& comparison,
                    std::function<void()>& run) {
  CLI::App* eval = app.add_subcommand("eval", "evaluate a model: CORE, MMLU, GSM8K, HumanEval, bits per byte");
  CLI::Option* model =
      eval->add_option("model", arguments.model,
                       "a checkpoint, a folder of them, for the latest, or a Hugging Face folder; or, to see how long "
                       "it takes, a configuration (.toml), for random weights");
  CLI::Option* tasks =
      eval->add_option(
              "--tasks", arguments.tasks,
              "core, mmlu, mmlu_pro, choices, gsm8k, humaneval, gpqa; a task, such as core/piqa; or a file of tasks "
              "(.toml)")
          ->type_name("NAME,NAME...")
          ->delimiter(',')
          ->allow_extra_args(false);
  CLI::Option* texts =
      add_repeatable(eval, "--text", arguments.texts, "documents to compute the bits per byte of (repeatable)", "FILE");
  eval->add_option("--data", arguments.data, "folder of the tasks' data (scripts/eval_data.sh)")
      ->type_name("DIR")
      ->capture_default_str();
  eval->add_option("--tokenizer", arguments.tokenizer, "tokenizer for a configuration")->type_name("FILE");
  eval->add_option("--limit", arguments.limit, "items per task, drawn at random; 0: all")
      ->check(number(0))
      ->capture_default_str();
  eval->add_option("-o,--out", arguments.out,
                   "folder for report and items; an unfinished evaluation there is continued")
      ->type_name("DIR");
  eval->add_option("--context", arguments.context,
                   "most tokens of a text, beyond which its beginning is cut off; 0: the model's")
      ->check(number(0))
      ->capture_default_str();
  add_device(eval, arguments.device);
  eval->add_flag("--fp32", arguments.fp32, "on cuda: fp32 instead of bf16");
  eval->add_option(
          "--batch", arguments.batch,
          "items (on cuda: generated answers) at a time, each with memory for a whole context; 0: 16, on cuda 256")
      ->check(number(0))
      ->capture_default_str();
  eval->add_flag_callback(
      "--no-shared-prefixes", [&arguments] { arguments.share_prefixes = false; },
      "compute every text from its first token: the same results, more slowly");
  add_threads(eval, arguments.threads);
  add_arithmetic(eval, arguments.arithmetic);
  add_draft(eval, arguments.draft);
  add_json(eval, arguments.json);

  CLI::App* compare = eval->add_subcommand("compare", "test whether two evaluations differ, item by item");
  compare->add_option("a", comparison.a, "a folder that n eval --out wrote")->required();
  compare->add_option("b", comparison.b, "the other one")->required();
  add_json(compare, comparison.json);
  compare->callback([&comparison, &run] { run = [&comparison] { eval_compare_command(comparison); }; });
  eval->callback([&arguments, &run, compare, model, tasks, texts] {
    if (compare->parsed()) return;
    if (model->empty()) throw CLI::RequiredError("a model");
    if (tasks->empty() && texts->empty()) throw CLI::RequiredError("--tasks or --text");
    run = [&arguments] { eval_command(arguments); };
  });
}

}  // namespace nmoe::cli
