#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/scaling_table.h"
#include "cli/standard_output.h"
#include "cli/text_table.h"
#include "train/loop/resume.h"
#include "train/loop/run_config.h"
#include "train/loop/run_length.h"
#include "train/loop/training_data.h"
#include "train/plan/fit_plan.h"
#include "train/plan/memory_plan.h"
#include "train/plan/run_folder.h"
#include "train/plan/run_plan.h"
#include "train/step/batch_shape.h"

namespace nmoe::cli {
namespace {

// To a plan without the corpus that the configuration names.
std::string note_on_absence(const Config& config) {
  const std::string& place = config.data.mixture.empty() ? config.data.path : config.data.mixture;
  if (place.empty()) return "";
  return fmt::format("note: there is no '{}' yet: n prep makes it, and training needs it\n", place);
}

double tokens_per_s(const FitChoice& choice) {
  return static_cast<double>(step_tokens(choice.config)) / choice.time.total();
}

nlohmann::ordered_json to_json(const FitChoice& choice, bool timed) {
  const StepTime& time = choice.time;
  nlohmann::ordered_json json = {
      {"recompute", fit_key(choice.config, "train.recompute")},
      {"microbatch_seqs", choice.config.train.microbatch_seqs},
      {"offload", fit_key(choice.config, "optim.offload")},
      {"device_bytes", choice.memory.device_bytes},
      {"host_bytes", choice.memory.total_bytes},
      {"reorders_sums", choice.reorders_sums},
      {"rounds", choice.rounds},
      {"predicted", nullptr},
  };
  if (!timed) return json;
  json["predicted"] = {{"step_ms", 1e3 * time.total()},      {"tokens_per_s", tokens_per_s(choice)},
                       {"products_ms", 1e3 * time.products}, {"attention_ms", 1e3 * time.attention},
                       {"memory_ms", 1e3 * time.memory},     {"repeated_ms", 1e3 * time.repeated},
                       {"update_ms", 1e3 * time.update},     {"exchange_ms", 1e3 * time.exchange}};
  return json;
}

std::string fit_table(const std::vector<FitChoice>& choices, bool timed) {
  using enum TextTable::Side;
  TextTable table({{"recompute"},
                   {"microbatch_seqs", kRight},
                   {"offload"},
                   {"device", kRight},
                   {"host", kRight},
                   {"step", kRight},
                   {"tokens/s", kRight},
                   {"beside the configuration"}});
  for (const FitChoice& choice : choices) {
    const int64_t device = choice.memory.device_bytes;
    const std::string changes = !choice.rounds.empty() ? fmt::format("{}", fmt::join(choice.rounds, ", "))
                                : choice.reorders_sums ? "sums in another order"
                                                       : "the same bits";
    table.add({fit_key(choice.config, "train.recompute"), fit_key(choice.config, "train.microbatch_seqs"),
               fit_key(choice.config, "optim.offload"), device > 0 ? human_bytes(device) : "-",
               human_bytes(choice.memory.total_bytes),
               timed ? fmt::format("{:.0f} ms", 1e3 * choice.time.total()) : "-",
               timed ? fmt::format("{:.0f}", tokens_per_s(choice)) : "-", changes});
  }
  return table.text();
}

// Error (usage) behind it where nothing fits that computes the same.
void print_fit(const FitPlan& plan, const Config& config, bool as_json) {
  const bool timed = !plan.timed_as.empty();
  if (as_json) {
    nlohmann::ordered_json json = {{"timed_as", timed ? nlohmann::ordered_json(plan.timed_as) : nullptr},
                                   {"tokens_per_step", step_tokens(config)},
                                   {"choices", nlohmann::ordered_json::array()},
                                   {"rounding", nlohmann::ordered_json::array()}};
    for (const FitChoice& choice : plan.choices) json["choices"].push_back(to_json(choice, timed));
    for (const FitChoice& choice : plan.rounding) json["rounding"].push_back(to_json(choice, timed));
    print("{}\n", printed_json(json));
  } else {
    if (!plan.choices.empty()) print("{}", fit_table(plan.choices, timed));
    if (!plan.rounding.empty()) {
      print("\nwith keys that round more, which n train --fit leaves alone:\n{}", fit_table(plan.rounding, timed));
    }
    if (timed) {
      print("\nsteps of {} tokens; times are predicted, within a tenth, by the rates of {}\n", step_tokens(config),
            plan.timed_as);
    } else {
      print("\nsteps of {} tokens; this device's rates are not known: only the order of times is\n",
            step_tokens(config));
    }
    if (!plan.choices.empty()) print("\nthe first:\n{}", fit_keys(plan.choices[0].config));
  }
  if (plan.choices.empty()) throw nothing_fits(plan, config);
}

}  // namespace

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
    seq_lens = data->sequence_lengths(config);
  }
  if (arguments.resume) config = keep_schedule_length(config, checkpoint_dir(config));
  config = resolve_length(config, stream ? &*stream : nullptr);
  if (!config.model.init.from.empty() && !latest_checkpoint(checkpoint_dir(config))) {
    check_starting_checkpoint(config, data ? data->tokenizer.get() : nullptr);
  }
  const MemoryPlanner planner(config, data ? data->host_bytes(config) : 0, config.parallel.ranks, part, seq_lens);
  if (arguments.fit) {
    print_fit(plan_fit(config, planner), config, arguments.json);
    return;
  }
  MemoryPlan plan = planner.plan(config);
  plan.worst_bytes = planner.worst_bytes(config, plan);
  const double flops = run_flops(config, plan.cost, stream ? &*stream : nullptr);
  print("{}{}{}{}", print_plan(plan, config),
        print_run_plan(config, flops, stream ? run_epochs(config, *stream) : std::nullopt, plan.device_flops),
        stream ? print_padding(*stream) : "", data ? note_on_validation(*data) : note_on_absence(config));
  print("{}", scaling_table(config));
  check_memory(plan, config, [&] { return describe_savings(config, plan, part, seq_lens); });
  check_schedule(config);
  if (!arguments.resume) check_name_is_free(config, checkpoint_dir(config));
}

}  // namespace nmoe::cli
