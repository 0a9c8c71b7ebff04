#include "cli/command_options.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace nmoe::cli {

CLI::Option* add_config_arguments(CLI::App* command, ConfigArguments& arguments) {
  add_repeatable(command, "--set", arguments.overrides, "change one key of the configuration (repeatable)",
                 "SECTION.KEY=VALUE");
  return command->add_option("config", arguments.file, "configuration file (TOML)")->required()->type_name("FILE");
}

void add_ranks(CLI::App* command, ConfigArguments& arguments) {
  command
      ->add_option_function<int64_t>(
          "--ranks",
          [&arguments](int64_t ranks) { arguments.overrides.push_back(fmt::format("parallel.ranks={}", ranks)); },
          "the same as --set parallel.ranks=N")
      ->type_name("N");
}

CLI::Validator number(double min, double max) {
  const bool open = max == std::numeric_limits<double>::infinity();
  const std::string range = open ? fmt::format("of at least {}", min) : fmt::format("from {} to {}", min, max);
  const auto fault = [=](const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = error == std::errc() && end == text.data() + text.size() && value >= min && value <= max;
    return good ? std::string() : fmt::format("{} is not a number {}", text, range);
  };
  return {fault, /*description=*/"", "number"};
}

void add_sampling(CLI::App* command, SamplingOptions& sampling) {
  constexpr const char* kSampling = "Sampling (applied in this order)";
  const auto add = [command](const char* name, auto& value, const char* what, const CLI::Validator& range) {
    command->add_option(name, value, what)->check(range)->capture_default_str()->group(kSampling);
  };
  add("--repetition-penalty", sampling.repetition_penalty, "divides the logits of tokens that already occur; 1: off",
      number(0));
  add("--temperature", sampling.temperature, "0: always the likeliest token", number(0));
  add("--top-k", sampling.top_k, "sample from this many of the likeliest tokens; 0: all", number(0));
  add("--top-p", sampling.top_p, "sample from the likeliest tokens of this much probability", number(0, 1));
  add("--min-p", sampling.min_p, "leave out tokens less probable than this share of the likeliest one's probability",
      number(0, 1));
  command->add_option("--seed", sampling.seed)->capture_default_str()->group(kSampling);
}

void add_device(CLI::App* command, std::string& device, const char* meaning) {
  command->add_option("--device", device, meaning)->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
}

CLI::Option* add_arithmetic(CLI::App* command, std::optional<GenerationArithmetic>& arithmetic) {
  const auto set = [&arithmetic](const std::string& name) {
    arithmetic = name == "training" ? GenerationArithmetic::kTraining : GenerationArithmetic::kLatent;
  };
  return command
      ->add_option_function<std::string>("--arithmetic", set,
                                         "how MLA attends to its cache, in place of the checkpoint's "
                                         "generation.arithmetic; training: the bits of training, a larger cache")
      ->check(CLI::IsMember({"latent", "training"}))
      ->type_name("latent|training");
}

void add_draft(CLI::App* command, DraftOptions& draft) {
  const auto set_kind = [&draft](const std::string& name) {
    draft.kind = name == "none"    ? DraftKind::kNone
                 : name == "ngram" ? DraftKind::kNgram
                 : name == "mtp"   ? DraftKind::kMtp
                                   : DraftKind::kModel;
    draft.checkpoint = draft.kind == DraftKind::kModel ? name : "";
  };
  CLI::Option* const kind =
      command
          ->add_option_function<std::string>(
              "--draft", set_kind,
              "guess what texts go on with, and read guesses in one pass: the same texts, sooner; ngram: by what "
              "followed the last tokens where they came before; mtp: by the model's module of multi-token prediction; "
              "CHECKPOINT: by a smaller model's")
          ->check(CLI::Validator(
              [](const std::string& name) {
                const bool is_known =
                    name == "none" || name == "ngram" || name == "mtp" || std::filesystem::exists(name);
                return is_known ? std::string() : name + " is not none, ngram or mtp, and no folder of a checkpoint";
              },
              /*description=*/"", "drafter"))
          ->type_name("none|ngram|mtp|CHECKPOINT");
  const auto set_tokens = [&draft](const std::string& tokens) {
    draft.tokens = tokens == "auto" ? std::nullopt : std::optional(std::stoll(tokens));
  };
  command
      ->add_option_function<std::string>("--draft-tokens", set_tokens,
                                         "guesses of a text at a time; auto: as many as pay, by measured times")
      ->check(number(1, kMostDrafts) | CLI::IsMember({"auto"}))
      ->type_name("N|auto")
      ->needs(kind);
}

void add_json(CLI::App* command, bool& json) { command->add_flag("--json", json, "print JSON"); }

void add_ranking(CLI::App* command, std::string& by, bool& markdown) {
  command->add_option("--by", by, "amount of training to compare at: tokens or flops")
      ->check(CLI::IsMember({"tokens", "flops"}))
      ->capture_default_str();
  command->add_flag("--markdown", markdown, "print Markdown");
}
void check_format(bool json, bool markdown) {
  if (json && markdown) throw usage_error("both --json and --markdown", "leave one of them out");
}
TrainingAmount training_amount(const std::string& by) {
  return by == "flops" ? TrainingAmount::kFlops : TrainingAmount::kTokens;
}

CLI::Option* add_repeatable(CLI::App* command, const char* name, std::vector<std::string>& values, const char* meaning,
                            const char* type_name) {
  return command->add_option(name, values, meaning)->type_name(type_name)->take_all()->allow_extra_args(false);
}

}  // namespace nmoe::cli
