#include "research/sweep/sweep_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "config/load.h"
#include "model/spec/cost.h"
#include "optim/schedule.h"
#include "track/tags/validation.h"
#include "train/loop/run_config.h"
#include "train/loop/run_length.h"
#include "train/loop/training_data.h"
#include "train/plan/memory_plan.h"
#include "train/plan/run_plan.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

constexpr size_t kShownRuns = 24;

// The lines of config_lines() that `wanted` takes.
std::string lines_of(const Config& config, const auto& wanted) {
  const std::string all = config_lines(config);
  std::string lines;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line = std::string_view(all).substr(begin, end - begin);
    if (wanted(line.substr(0, line.find('=')))) lines.append(line).append("\n");
    begin = end + 1;
  }
  return lines;
}

// What runs take, looked up once for all that differ in nothing that matters to it.
class Estimator {
 public:
  void fill(const Config& raw, SweepRun& run, SweepPlan& plan) {
    const TrainingData& data = data_of(raw);
    Config config = resolve_vocab_size(raw, *data.tokenizer);
    const ModelCost cost = model_cost(config.model);
    const StreamPlan stream = plan_training_data(config, data, cost.active_parameters);
    const bool had_length = config.optim.schedule.length > 0;
    config = resolve_length(std::move(config), &stream);
    check_schedule(config);
    run.steps = config.train.steps;
    run.tokens = run.steps * step_tokens(config);
    run.flops = run_flops(config, cost, &stream);
    if (config.optim.schedule.needs_length() && !had_length) run.schedule_length = config.optim.schedule.length;
    if (plan.file.goal == tags::kValidLoss.tag &&
        std::ranges::none_of(data.sources, [](const DataSource& source) { return source.valid.has_value(); })) {
      throw usage_error(
          fmt::format("the goal of the sweep, {}, is a validation's, and no source has text for one", plan.file.goal),
          "prepare the data with --valid-fraction, or set sweep.goal = \"train/loss\"");
    }
    if (config.run.device == "cpu") plan.run_bytes = std::max(plan.run_bytes, memory_of(config, data));
  }

 private:
  const TrainingData& data_of(const Config& config) {
    const std::string key = lines_of(config, [](std::string_view name) { return name.starts_with("data."); });
    std::unique_ptr<TrainingData>& data = data_[key];
    if (!data) data = std::make_unique<TrainingData>(open_training_data(config));
    return *data;
  }

  // Rates and lengths don't matter to it, nor does the number of threads to what is told here.
  int64_t memory_of(const Config& config, const TrainingData& data) {
    const std::string key = lines_of(config, [](std::string_view name) {
      return !name.starts_with("run.") && !name.starts_with("optim.schedule.") && !name.ends_with(".lr") &&
             name != "train.steps";
    });
    const auto [entry, is_new] = memory_.try_emplace(key, 0);
    if (is_new) {
      const MemoryPlan memory = plan_memory(config, data.host_bytes(config), config.parallel.ranks);
      check_memory(memory, config);
      entry->second = memory.total_bytes;
    }
    return entry->second;
  }

  std::map<std::string, std::unique_ptr<TrainingData>> data_;
  std::map<std::string, int64_t> memory_;
};

// CUDA_VISIBLE_DEVICES, or else the numbers of the machine's GPUs.
std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  if (const char* set = std::getenv("CUDA_VISIBLE_DEVICES"); set != nullptr) {
    const std::string_view list = set;
    for (size_t begin = 0; begin < list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      gpus.emplace_back(trimmed(list.substr(begin, end - begin)));
      begin = end + 1;
    }
    return gpus;
  }
  while (fs::exists(fmt::format("/dev/nvidia{}", gpus.size()))) gpus.push_back(std::to_string(gpus.size()));
  return gpus;
}

std::string value_text(const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : to_toml(value);
}

// The template with its names in braces replaced.
std::string run_name(const SweepFile& file, const SweepPoint& point, const std::string& number, int64_t seed) {
  std::string name;
  const std::string_view text = file.run_name;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t end = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    if (end == std::string_view::npos) {
      name += text[at];
      continue;
    }
    const std::string_view what = text.substr(at + 1, end - at - 1);
    const auto key = std::ranges::find(point, what, &SweepPoint::value_type::first);
    if (what == "sweep") {
      name += file.name;
    } else if (what == "point") {
      name += number;
    } else if (what == "seed") {
      name += std::to_string(seed);
    } else if (key != point.end()) {
      name += value_text(key->second);
    } else {
      throw usage_error(
          fmt::format("{}: sweep.run_name has {{{}}}, which is no key of the sweep", file.path.string(), what),
          "use {sweep}, {point}, {seed}, and swept keys such as {optim.rest.lr}");
    }
    at = end;
  }
  return name;
}

void choose_parallel(SweepPlan& plan, const Config& base, int64_t wanted) {
  const int64_t asked = wanted > 0 ? wanted : plan.file.parallel;
  const auto most = std::max<int64_t>(1, std::ssize(plan.runs));
  if (plan.device != "cpu") {
    plan.gpus = visible_gpus();
    const int64_t places = std::ssize(plan.gpus) / plan.ranks;
    if (places == 0) {
      throw usage_error(fmt::format("a run takes {} GPUs, and {} are visible", plan.ranks, plan.gpus.size()),
                        "lower parallel.ranks, or set run.device = \"cpu\"");
    }
    plan.parallel = std::min(asked > 0 ? asked : places, most);
    plan.threads = base.run.threads;
    return;
  }
  const int64_t cpus = available_cpus(), own = base.run.threads;
  const int64_t fit = std::max<int64_t>(1, available_memory_bytes() / std::max<int64_t>(1, plan.run_bytes));
  if (asked > fit) {
    throw usage_error(fmt::format("{} runs at a time take {} of memory each, and {} are available", asked,
                                  human_bytes(plan.run_bytes), human_bytes(available_memory_bytes())),
                      fmt::format("set --parallel {} or fewer", fit));
  }
  const int64_t by_cpus = std::max<int64_t>(1, cpus / std::max<int64_t>(1, own));
  plan.parallel = std::min(asked > 0 ? asked : std::min(by_cpus, fit), most);
  plan.threads = own > 0 ? own : std::max<int64_t>(1, cpus / plan.parallel);
}

// Runs from the first that the budget of steps or FLOPs has no room for are left out.
void keep_to_budget(SweepPlan& plan) {
  const SweepBudget& budget = plan.file.budget;
  if (budget.steps == 0 && budget.flops == 0.0) return;
  if (!plan.file.halving.at.empty()) {
    throw usage_error(fmt::format("{}: sweep.budget in steps or FLOPs, and sweep.halving, which ends runs early",
                                  plan.file.path.string()),
                      "leave one of them out, or set sweep.budget.hours");
  }
  int64_t steps = 0;
  double flops = 0.0;
  const auto first_out = std::ranges::find_if(plan.runs, [&](const SweepRun& run) {
    steps += run.steps, flops += run.flops;
    return (budget.steps > 0 && steps > budget.steps) || (budget.flops > 0.0 && flops > budget.flops);
  });
  plan.left_out = plan.runs.end() - first_out;
  plan.runs.erase(first_out, plan.runs.end());
  if (plan.runs.empty()) {
    throw usage_error(fmt::format("{}: sweep.budget has no room for a single run", plan.file.path.string()),
                      "raise it, or shorten runs");
  }
}

}  // namespace

std::string describe_point(const SweepPoint& point) {
  std::string text;
  for (const auto& [key, value] : point)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value_text(value));
  return text.empty() ? "the base" : text;
}

SweepPlan plan_sweep(const SweepFile& file, int64_t parallel) {
  std::vector<std::string> of_all = file.overrides;
  of_all.push_back(fmt::format("run.experiment=\"{}\"", file.name));
  of_all.push_back(fmt::format("run.name=\"{}\"", file.name));  // which is to be a folder's
  const Config base = load_run_config(file.base, of_all);
  SweepPlan plan{.file = file,
                 .run_dir = base.run.dir,
                 .device = base.run.device,
                 .ranks = base.parallel.ranks,
                 .points = sweep_points(file, base),
                 .ends_early = base.train.target_loss > 0.0};
  if (plan.ends_early && !file.halving.at.empty()) {
    throw usage_error(fmt::format("{}: sweep.halving and train.target_loss both end runs", file.path.string()),
                      "leave one of them out");
  }
  std::vector<int64_t> seeds = file.seeds;
  for (int64_t i = 0; file.seeds.empty() && i < file.num_seeds; ++i) {
    seeds.push_back(static_cast<int64_t>(base.run.seed) + i);
  }
  of_all.pop_back();
  const size_t digits = std::max<size_t>(2, std::to_string(plan.points.size()).size());
  Estimator estimator;
  std::set<std::string> names;
  for (const int64_t seed : seeds) {
    for (size_t p = 0; p < plan.points.size(); ++p) {
      SweepRun run{.point = static_cast<int64_t>(p) + 1, .seed = seed, .overrides = of_all};
      run.name = run_name(file, plan.points[p], fmt::format("{:0{}}", run.point, digits), seed);
      for (const auto& [key, value] : plan.points[p]) run.overrides.push_back(key + "=" + to_toml(value));
      run.overrides.push_back(fmt::format("run.name=\"{}\"", run.name));
      run.overrides.push_back(fmt::format("run.seed={}", seed));
      if (!names.insert(run.name).second) {
        throw usage_error(fmt::format("{}: two runs are called {}", file.path.string(), run.name),
                          "let sweep.run_name have {point} and {seed}, or all swept keys");
      }
      try {
        const Config config = load_run_config(file.base, run.overrides);
        run.fingerprint = config_fingerprint(config);
        estimator.fill(config, run, plan);
      } catch (const Error& error) {
        throw Error(error.kind(),
                    fmt::format("run {} ({}): {}", run.name, describe_point(plan.points[p]), error.what()),
                    error.remedy());
      }
      plan.runs.push_back(std::move(run));
    }
  }
  keep_to_budget(plan);
  choose_parallel(plan, base, parallel);
  return plan;
}

SweepPlan confirming_plan(SweepPlan plan, int64_t point, int64_t num_seeds) {
  const SweepRun like = *std::ranges::find(plan.runs, point, &SweepRun::point);
  const int64_t last = std::ranges::max_element(plan.runs, {}, &SweepRun::seed)->seed;
  for (int64_t seed = last + 1; seed <= last + num_seeds; ++seed) {
    SweepRun run = like;
    run.seed = seed;
    run.name = fmt::format("{}-confirm{}-s{}", plan.file.name, point, seed);
    run.confirms = true;
    run.overrides.push_back(fmt::format("run.name=\"{}\"", run.name));  // the last counts
    run.overrides.push_back(fmt::format("run.seed={}", seed));
    run.fingerprint = config_fingerprint(load_run_config(plan.file.base, run.overrides));
    plan.runs.push_back(std::move(run));
  }
  plan.file.halving = {};
  return plan;
}

std::string print_sweep_plan(const SweepPlan& plan, double seconds_per_flop) {
  int64_t least = plan.runs.front().steps, most = least, steps = 0, tokens = 0;
  double flops = 0.0;
  for (const SweepRun& run : plan.runs) {
    least = std::min(least, run.steps), most = std::max(most, run.steps);
    steps += run.steps, tokens += run.tokens, flops += run.flops;
  }
  const SweepFile& file = plan.file;
  std::string text = fmt::format("sweep {}: {} runs of {} points, base {}, goal {} {}\n", file.name, plan.runs.size(),
                                 plan.points.size(), file.base.string(),
                                 file.direction == GoalDirection::kLeast ? "least" : "largest", file.goal);
  text += fmt::format("  {} steps in all ({} a run), {} tokens, {}\n", steps,
                      least == most ? std::to_string(least) : fmt::format("{} to {}", least, most),
                      human_count(static_cast<double>(tokens)), human_quantity(flops, "FLOP"));
  text += fmt::format("  {} at a time", plan.parallel);
  if (plan.threads > 0) text += fmt::format(", {} threads each", plan.threads);
  if (plan.run_bytes > 0) {
    text += fmt::format("; memory {} each, {} of {} available", human_bytes(plan.run_bytes),
                        human_bytes(plan.run_bytes * plan.parallel), human_bytes(available_memory_bytes()));
  }
  text += seconds_per_flop > 0.0
              ? fmt::format("\n  about {} in all, as the runs so far\n",
                            human_seconds(seconds_per_flop * flops / static_cast<double>(plan.parallel)))
              : "\n  how long it takes is not known before a run has ended\n";
  if (!file.halving.at.empty()) {
    text += "  halving: at";
    for (const double share : file.halving.at) text += fmt::format(" {:.3g} %", 100.0 * share);
    text += fmt::format(" of the steps the best {:.3g} % of the points go on\n", 100.0 * file.halving.keep);
  }
  if (plan.left_out > 0) text += fmt::format("  {} further runs are beyond sweep.budget and left out\n", plan.left_out);
  text += fmt::format("  kept in {}\n", plan.folder().string());
  for (size_t i = 0; i < std::min(kShownRuns, plan.runs.size()); ++i) {
    const SweepRun& run = plan.runs[i];
    text += fmt::format("    {}  {}  seed {}\n", run.name,
                        describe_point(plan.points[static_cast<size_t>(run.point) - 1]), run.seed);
  }
  if (plan.runs.size() > kShownRuns) text += fmt::format("    ... and {} more\n", plan.runs.size() - kShownRuns);
  return text;
}

}  // namespace nmoe
