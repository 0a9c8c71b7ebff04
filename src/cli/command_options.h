// Options that several commands have.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

#include "cli/commands.h"

namespace nmoe::cli {

// The file is returned, which some command may do without.
CLI::Option* add_config_arguments(CLI::App* command, ConfigArguments& arguments);

// Behind add_config_arguments: --set is read first.
void add_ranks(CLI::App* command, ConfigArguments& arguments);

// A number from `min` to `max`. CLI11's own validators let NaN pass and name their limits with all digits.
CLI::Validator number(double min, double max = std::numeric_limits<double>::infinity());

// How tokens are chosen, in the order in which it is applied.
void add_sampling(CLI::App* command, SamplingOptions& sampling);

void add_device(CLI::App* command, std::string& device);

}  // namespace nmoe::cli
