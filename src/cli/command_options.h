// Options that several commands have.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "research/report/ranking.h"

namespace nmoe::cli {

// What an option or argument that names a tokenizer takes.
inline constexpr const char* kTokenizerSource =
    "\"bytes\", a tokenizer.json (or its folder, or a checkpoint), or ranks: [NAME:]FILE.tiktoken";

// The file is returned, which some command may do without.
CLI::Option* add_config_arguments(CLI::App* command, ConfigArguments& arguments);

// Behind add_config_arguments: --set is read first.
void add_ranks(CLI::App* command, ConfigArguments& arguments);

// A number from `min` to `max`. CLI11's own validators let NaN pass and name their limits with all digits.
CLI::Validator number(double min, double max = std::numeric_limits<double>::infinity());

// How tokens are chosen, in the order in which it is applied.
void add_sampling(CLI::App* command, SamplingOptions& sampling);

// --device, "cpu" or "cuda".
void add_device(CLI::App* command, std::string& device, const char* meaning = "cpu, or cuda: a GPU");

// --threads, of any kind of integer.
template <class Integer>
void add_threads(CLI::App* command, Integer& threads,
                 const char* meaning = "threads to use; 0: one per available CPU") {
  command->add_option("--threads", threads, meaning)->check(number(0))->capture_default_str();
}

// --arithmetic, "latent" or "training".
CLI::Option* add_arithmetic(CLI::App* command, std::optional<GenerationArithmetic>& arithmetic);

// --draft and --draft-tokens (infer/draft/drafter.h).
void add_draft(CLI::App* command, DraftOptions& draft);

// --json, for commands that print JSON instead of text.
void add_json(CLI::App* command, bool& json);

// --by and --markdown, for commands that rank configurations.
void add_ranking(CLI::App* command, std::string& by, bool& markdown);
TrainingAmount training_amount(const std::string& by);
// Error (usage) where both are asked for.
void check_format(bool json, bool markdown);

// An option that may be given several times, with one value each.
CLI::Option* add_repeatable(CLI::App* command, const char* name, std::vector<std::string>& values, const char* meaning,
                            const char* type_name);

}  // namespace nmoe::cli
