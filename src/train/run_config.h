// The configuration of a run, from its file.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/config.h"

namespace nmoe {

// load_config(), with [model] taken from the checkpoint model.init.from where that is set. Where that checkpoint is no
// longer there, a run that has checkpoints of its own takes it from those. Errors: load_config's; (usage) when
// model.init.from is no checkpoint; (runtime) when it is a damaged one.
Config load_run_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});

}  // namespace nmoe
