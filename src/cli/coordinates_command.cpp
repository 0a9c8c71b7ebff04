#include "cli/coordinates_command.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/say.h"
#include "cli/command_options.h"
#include "cli/standard_output.h"
#include "cli/text_table.h"
#include "train/loop/run_config.h"

namespace nmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const std::vector<CoordinateModel>& models, int64_t steps) {
  Json json = {{"steps", steps}, {"models", Json::array()}, {"slopes", Json::array()}};
  for (const CoordinateModel& model : models) {
    Json one = {{"width", model.width},   {"depth", model.depth}, {"dim", model.dim},
                {"layers", model.layers}, {"loss", model.loss},   {"coordinates", Json::array()}};
    for (const Coordinate& coordinate : model.coordinates) {
      one["coordinates"].push_back(
          {{"what", coordinate.what}, {"size", finite(coordinate.size)}, {"change", finite(coordinate.change)}});
    }
    json["models"].push_back(one);
  }
  for (const CoordinateSlopes& slopes : coordinate_slopes(models)) {
    json["slopes"].push_back({{"what", slopes.what},
                              {"size_by_width", finite(slopes.size_by_width)},
                              {"change_by_width", finite(slopes.change_by_width)},
                              {"size_by_depth", finite(slopes.size_by_depth)},
                              {"change_by_depth", finite(slopes.change_by_depth)}});
  }
  return json;
}

std::string sizes_table(const std::vector<CoordinateModel>& models) {
  using enum TextTable::Side;
  std::vector<TextTable::Column> columns = {{"dim", kRight}, {"layers", kRight}, {"loss", kRight}};
  for (const Coordinate& coordinate : models.front().coordinates) columns.push_back({coordinate.what, kRight});
  TextTable table(columns);
  for (const CoordinateModel& model : models) {
    std::vector<std::string> cells = {fmt::format("{}", model.dim), fmt::format("{}", model.layers),
                                      fmt::format("{:.3f}", model.loss)};
    for (const Coordinate& coordinate : model.coordinates) {
      cells.push_back(fmt::format("{:.3g} +- {:.2g}", coordinate.size, coordinate.change));
    }
    table.add(cells);
  }
  return table.text();
}

std::string slopes_table(const std::vector<CoordinateModel>& models) {
  using enum TextTable::Side;
  const auto exponent = [](double value) { return std::isfinite(value) ? fmt::format("{:+.2f}", value) : "-"; };
  TextTable table({{"grows as"},
                   {"size: width^", kRight},
                   {"change: width^", kRight},
                   {"size: depth^", kRight},
                   {"change: depth^", kRight}});
  for (const CoordinateSlopes& slopes : coordinate_slopes(models)) {
    table.add({slopes.what, exponent(slopes.size_by_width), exponent(slopes.change_by_width),
               exponent(slopes.size_by_depth), exponent(slopes.change_by_depth)});
  }
  return table.text();
}

void coordinates_command(const CoordinatesArguments& arguments) {
  const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  const auto tell = [](std::string_view line) { say("{}", line); };
  const std::vector<CoordinateModel> models = check_coordinates(config, arguments.options, tell);
  if (arguments.json) return print("{}\n", printed_json(to_json(models, arguments.options.steps)));
  print("root mean squares after {} steps, +- what these changed\n{}\n{}", arguments.options.steps, sizes_table(models),
        slopes_table(models));
}

}  // namespace

void add_coordinates(CLI::App& research, CoordinatesArguments& arguments, std::function<void()>& run) {
  CLI::App* command = research.add_subcommand(
      "coordinates", "check that activations and updates keep their size over widths and depths");
  add_config_arguments(command, arguments.config);
  CoordinateOptions& options = arguments.options;
  const auto multiples = number(1.0 / 64, 64.0);
  command->add_option("--widths", options.widths, "multiples of the configuration's widths")
      ->delimiter(',')
      ->check(multiples)
      ->capture_default_str();
  command->add_option("--depths", options.depths, "multiples of its number of layers")
      ->delimiter(',')
      ->check(multiples)
      ->capture_default_str();
  command->add_option("--steps", options.steps, "steps of each model")->check(number(1, 1000))->capture_default_str();
  command->add_option("--seqs", options.seqs, "sequences of a step")->check(number(1, 4096))->capture_default_str();
  command->add_flag("--json", arguments.json, "print JSON instead, which scripts/plot_coordinates.py draws");
  command->callback([&arguments, &run] { run = [&arguments] { coordinates_command(arguments); }; });
}

}  // namespace nmoe::cli
