// The configuration of a run, from its file.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/config.h"

namespace nmoe {

// load_config(), with [model] taken from the checkpoint model.init.from if that is set. If that checkpoint no longer
// exists, a run that has its own checkpoints takes [model] from those. Errors: load_config's; (usage) if
// model.init.from is not a checkpoint; (runtime) if it is damaged.
Config load_run_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});

}  // namespace nmoe
