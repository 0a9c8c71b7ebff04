// The configuration that a checkpoint was written with.
#pragma once

#include "checkpoint/reader.h"
#include "config/config.h"

namespace nmoe {

// Errors: those of parse_config, with the place in config.toml.
Config saved_config(const CheckpointReader& reader);

}  // namespace nmoe
