// TOML to a validated Config and back.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "config/config.h"

namespace nmoe {

// Reads `path`, expands ${NMOE_NAME:-default} in strings (any other ${...} is an error), applies overrides of the
// form "section.key=value" in order (the value is TOML; a bare word is taken as a string), validates. Errors
// (usage) name file, line, key and, for an unknown key, the nearest known one. A key that would have no effect
// under the rest of the configuration (say model.mla.* with attention = "gqa") is an error too.
Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});

// The same from TOML text; `name` stands for the file in messages.
Config parse_config(std::string_view toml, std::string_view name, std::span<const std::string> overrides = {});

// The resolved configuration as TOML, each key with its meaning as a comment. parse_config(print_config(c)) == c.
std::string print_config(const Config& config);

// SHA-256 over what defines the run's arithmetic: not names, paths, cadences, device, threads or train.steps.
std::string config_fingerprint(const Config& config);

// The keys whose values make two fingerprints differ, as "key: a != b" lines.
std::string explain_difference(const Config& a, const Config& b);

}  // namespace nmoe
