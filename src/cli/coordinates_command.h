// n research coordinates: a coordinate check (research/coordinates.h).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/commands.h"
#include "research/coordinates.h"

namespace nmoe::cli {

struct CoordinatesArguments {
  ConfigArguments config;
  CoordinateOptions options;
  bool json = false;
};

// Parsing fills the arguments, which stay with the caller, and sets `run` to what is to be done.
void add_coordinates(CLI::App& research, CoordinatesArguments& arguments, std::function<void()>& run);

}  // namespace nmoe::cli
