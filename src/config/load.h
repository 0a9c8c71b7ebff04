// TOML to a validated Config and back.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "config/config.h"

namespace nmoe {

// The configuration of the model whose weights training starts from, and its name in messages.
struct ModelText {
  std::string toml;
  std::string name;
};
// Finds it for a configuration of which [run] and model.init.from have been read.
using ModelSource = std::function<ModelText(const Config&)>;

// Reads `path`, applies overrides of the form "section.key=value" in order (the value is TOML; text needs no
// quotes), expands ${NMOE_NAME:-default} in the strings of both (config/environment.h) and validates.
// An override of train.steps, train.tokens or train.epochs takes the place of any of these in the file: they are one
// length in three units, and two of them, both in the file or both overrides, are an error.
// train.microbatch_seqs, unless set, becomes a divisor of a rank's share of a batch; optim.lr sets the learning
// rates of groups for which neither the file nor an override sets one.
//
// The Error (usage) lists the faults (the first 20, and that there are more), each with file and line or the override,
// the key, the remedy and, for an unknown key, the known one that was probably meant. A key that has no effect under
// the rest of the configuration, say model.mla.* with attention = "gqa", is an error even if it is set to its default;
// so is optim.lr where every group has a rate of its own.
//
// `model_source`, unless empty, is called if model.init.from is set. [model] is then taken from its result, except for
// keys that are also set here; [model.init] may repeat what that text has there.
Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {},
                   const ModelSource& model_source = {});

// The same from TOML text; `name` stands for the file in messages.
Config parse_config(std::string_view toml, std::string_view name, std::span<const std::string> overrides = {},
                    const ModelSource& model_source = {});

// The resolved configuration as TOML: every key that has an effect, with its meaning as a comment.
// For a `c` that was loaded, parse_config(print_config(c)) equals it.
std::string print_config(const Config& config);

// The same keys as one flat JSON object, {"model.dim": 160, ...}: what a run's row in experiments.db holds.
std::string config_json(const Config& config);

// The same keys as lines "section.key=value", with values as print_config writes them.
std::string config_lines(const Config& config);

// SHA-256 over the keys that define the run's arithmetic and have an effect: not names, paths,
// cadences, device, threads or train.steps. What is hashed: the sorted lines "section.key=value\n",
// with values as print_config writes them.
std::string config_fingerprint(const Config& config);

// The keys that make two fingerprints differ, "section.key: a != b", one a line; "unused" stands for
// the value of a key without effect. Empty when the fingerprints are equal.
std::string explain_difference(const Config& a, const Config& b);
// The same of keys of [model] alone.
std::string explain_difference(const ModelConfig& a, const ModelConfig& b);

}  // namespace nmoe
