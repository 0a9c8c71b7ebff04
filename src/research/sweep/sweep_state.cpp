#include "research/sweep/sweep_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "research/report/json_number.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;

constexpr auto kStateNames = std::to_array<std::pair<SweepRunState, std::string_view>>({
    {SweepRunState::kWaiting, "waiting"},
    {SweepRunState::kBegun, "begun"},
    {SweepRunState::kDone, "done"},
    {SweepRunState::kDiverged, "diverged"},
    {SweepRunState::kFailed, "failed"},
    {SweepRunState::kHalted, "halted"},
});

SweepRunState state_of(const std::string& name) {
  const auto* found = std::ranges::find(kStateNames, name, &decltype(kStateNames)::value_type::second);
  if (found == kStateNames.end()) throw JsonError(fmt::format("a run is '{}'", name));
  return found->first;
}

std::optional<double> number_of(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

Json to_json(const SweepEntry& run) {
  Json json = {{"name", run.name},
               {"point", run.point},
               {"seed", run.seed},
               {"values", run.values},
               {"fingerprint", run.fingerprint},
               {"steps", run.steps},
               {"flops", run.flops},
               {"confirms", run.confirms},
               {"state", sweep_run_state_name(run.state)},
               {"rung", run.rung},
               {"crashes", run.crashes},
               {"seconds", run.seconds},
               {"goal", number_json(run.goal)},
               {"curve", Json::array()},
               {"largest_grad_norm", number_json(run.curve.largest_grad_norm)},
               {"largest_load", number_json(run.curve.largest_load)},
               {"reason", run.reason}};
  for (const GoalPoint& point : run.curve.points) json["curve"].push_back({point.tokens, point.flops, point.goal});
  return json;
}

SweepEntry entry_of(const Json& json) {
  SweepEntry run{.name = json.at("name").get<std::string>(),
                 .point = integer_of<int64_t>(json.at("point")),
                 .seed = integer_of<int64_t>(json.at("seed")),
                 .values = json.at("values").get<std::string>(),
                 .fingerprint = json.at("fingerprint").get<std::string>(),
                 .steps = integer_of<int64_t>(json.at("steps")),
                 .flops = json.at("flops").get<double>(),
                 .confirms = json.at("confirms").get<bool>(),
                 .state = state_of(json.at("state").get<std::string>()),
                 .rung = integer_of<int64_t>(json.at("rung")),
                 .crashes = integer_of<int64_t>(json.at("crashes")),
                 .seconds = json.at("seconds").get<double>(),
                 .goal = number_of(json.at("goal")),
                 .curve = {.points = {},
                           .largest_grad_norm = number_of(json.at("largest_grad_norm")),
                           .largest_load = number_of(json.at("largest_load"))},
                 .reason = json.at("reason").get<std::string>()};
  for (const Json& point : json.at("curve")) {
    run.curve.points.push_back({point.at(0).get<double>(), point.at(1).get<double>(), point.at(2).get<double>()});
  }
  if (run.state == SweepRunState::kDone && run.curve.points.empty()) throw JsonError("a run is done without a goal");
  return run;
}

Error other_sweep(const SweepEntry& run, const std::string& what) {
  return usage_error(fmt::format("run {} of the sweep {}", run.name, what),
                     "undo the change to go on with the sweep, or give the changed one another sweep.name");
}

}  // namespace

std::string_view sweep_run_state_name(SweepRunState state) {
  return std::ranges::find(kStateNames, state, &decltype(kStateNames)::value_type::first)->second;
}

fs::path sweep_state_path(const fs::path& folder) { return folder / "state.json"; }

void write_sweep_state(const fs::path& folder, const SweepState& state) {
  Json json = {{"version", kVersion},
               {"name", state.name},
               {"file", state.file},
               {"goal", state.goal},
               {"goal_is_largest", state.goal_is_largest},
               {"seconds", state.seconds},
               {"rungs_decided", state.rungs_decided},
               {"runs", Json::array()}};
  for (const SweepEntry& run : state.runs) json["runs"].push_back(to_json(run));
  write_file_atomically(sweep_state_path(folder), json_text(json, 1) + "\n");
}

std::optional<SweepState> read_sweep_state(const fs::path& folder) {
  const fs::path path = sweep_state_path(folder);
  if (!fs::exists(path)) return std::nullopt;
  try {
    const Json json = parse_json<Json>(read_file(path));
    if (integer_of<int64_t>(json.at("version")) != kVersion) throw JsonError("it is of another version");
    SweepState state{.name = json.at("name").get<std::string>(),
                     .file = json.at("file").get<std::string>(),
                     .goal = json.at("goal").get<std::string>(),
                     .goal_is_largest = json.at("goal_is_largest").get<bool>(),
                     .seconds = json.at("seconds").get<double>(),
                     .rungs_decided = integer_of<int64_t>(json.at("rungs_decided"))};
    for (const Json& run : json.at("runs")) state.runs.push_back(entry_of(run));
    return state;
  } catch (const JsonError& error) {
    throw runtime_error(fmt::format("'{}' is no sweep's state: {}", path.string(), error.what()), "move it away");
  } catch (const nlohmann::json::exception& error) {
    throw runtime_error(fmt::format("'{}' is no sweep's state: {}", path.string(), error.what()), "move it away");
  }
}

SweepState begin_state(const SweepPlan& plan, std::optional<SweepState> before) {
  SweepState state{.name = plan.file.name,
                   .file = plan.file.path.string(),
                   .goal = plan.file.goal,
                   .goal_is_largest = plan.file.direction == GoalDirection::kLargest};
  std::vector<SweepEntry> earlier;
  if (before) {
    state.seconds = before->seconds;
    state.rungs_decided = before->rungs_decided;
    earlier = std::move(before->runs);
    if (before->goal != state.goal && !earlier.empty()) {
      throw other_sweep(earlier.front(), fmt::format("was for the goal {}, now it is {}", before->goal, state.goal));
    }
  }
  for (const SweepRun& run : plan.runs) {
    const auto found = std::ranges::find(earlier, run.name, &SweepEntry::name);
    if (found == earlier.end()) {
      if (state.rungs_decided > 0 && !run.confirms) {
        throw usage_error(fmt::format("run {} is new to the sweep, of which halving has ended runs already", run.name),
                          "give the larger sweep another sweep.name");
      }
      state.runs.push_back({.name = run.name,
                            .point = run.point,
                            .seed = run.seed,
                            .values = describe_point(plan.points[static_cast<size_t>(run.point) - 1]),
                            .fingerprint = run.fingerprint,
                            .steps = run.steps,
                            .flops = run.flops,
                            .confirms = run.confirms});
      continue;
    }
    if (found->fingerprint != run.fingerprint || found->steps != run.steps) {
      throw other_sweep(*found, "has another configuration now than when it was begun");
    }
    state.runs.push_back(std::move(*found));
    earlier.erase(found);
  }
  for (const SweepEntry& run : earlier) {
    if (run.confirms) state.runs.push_back(run);
  }
  std::erase_if(earlier, [](const SweepEntry& run) { return run.confirms; });
  const auto begun =
      std::ranges::find_if(earlier, [](const SweepEntry& run) { return run.state != SweepRunState::kWaiting; });
  if (begun != earlier.end()) throw other_sweep(*begun, "is no part of it any more");
  return state;
}

}  // namespace nmoe
