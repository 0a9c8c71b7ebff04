#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "bench/speculate_bench.h"
#include "cli/bench_model.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "cli/text_table.h"

namespace nmoe::cli {
namespace {

using nlohmann::ordered_json;

std::string draft_name(const DraftOptions& draft) {
  switch (draft.kind) {
    case DraftKind::kNone:
      return "none";
    case DraftKind::kNgram:
      return "ngram";
    case DraftKind::kMtp:
      return "mtp";
    case DraftKind::kModel:
      return draft.checkpoint;
  }
  NMOE_CHECK(false, "draft kind {}", static_cast<int>(draft.kind));
}

std::string tokens_name(const DraftOptions& draft) { return draft.tokens ? fmt::format("{}", *draft.tokens) : "auto"; }

void put(ordered_json& json, const SpeculationMeasures& measures) {
  json["turns"] = measures.turns;
  json["tokens"] = measures.tokens;
  json["acceptance_length"] = measures.acceptance_length;
  json["acceptance_length_histogram"] = measures.histogram;
  json["conditional_acceptance_rates"] = measures.conditional_rates;
  json["joint_acceptance_rates"] = measures.joint_rates;
  json["drafted_tokens"] = measures.drafted;
  json["accepted_tokens"] = measures.accepted;
}

ordered_json to_json(const SpeculateBench::Pace& pace) {
  return {{"output_tokens_per_s", pace.output_tokens_per_s},
          {"user_tokens_per_s", pace.user_tokens_per_s},
          {"first_token_s", pace.first_token_s}};
}

ordered_json to_json(const SpeculateBench::Case& one) {
  ordered_json json = {{"name", one.name},
                       {"is_text", !one.is_random()},
                       {"batch", one.batch},
                       {"input_tokens", one.input_tokens > 0 ? ordered_json(one.input_tokens) : ordered_json(nullptr)},
                       {"prompts", one.prompts}};
  put(json, one.measures);
  json["plain"] = to_json(one.plain);
  json["drafted"] = to_json(one.drafted);
  json["gain"] = one.gain;
  json["gain_range"] = {one.least_gain, one.most_gain};
  json["categories"] = ordered_json::array();
  for (const SpeculateBench::Category& category : one.categories) {
    ordered_json of_category = {{"name", category.name}};
    put(of_category, category.measures);
    of_category["user_tokens_per_s"] = category.measures.user_tokens_per_s;
    of_category["plain_user_tokens_per_s"] = category.plain_user_tokens_per_s;
    json["categories"].push_back(std::move(of_category));
  }
  return json;
}

ordered_json to_json(const SpeculateBench& bench, const BenchSpeculateArguments& arguments) {
  const SpeculateBenchOptions& options = arguments.options;
  ordered_json json = bench_origin(bench.device, bench.software);
  json.update(ordered_json{{"model", arguments.model},
                           {"draft", draft_name(options.draft)},
                           {"draft_tokens", tokens_name(options.draft)},
                           {"prompts", options.prompts},
                           {"chat_template", bench.by_chat_template},
                           {"max_tokens", options.tokens},
                           {"temperature", options.sampling.temperature},
                           {"runs", options.runs},
                           {"same_tokens", true},
                           {"cases", ordered_json::array()}});
  for (const SpeculateBench::Case& one : bench.cases) json["cases"].push_back(to_json(one));
  return json;
}

// The first of them.
std::string rates_of(const SpeculationMeasures& measures) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, measures.conditional_rates.size()); ++i) {
    text += fmt::format("{}{:.2f}", i == 0 ? "" : " ", measures.conditional_rates[i]);
  }
  return text.empty() ? "-" : text;
}

void print_cases(const SpeculateBench& bench) {
  using enum TextTable::Side;
  TextTable table({{"prompts"},
                   {"at a time", kRight},
                   {"their tokens", kRight},
                   {"acceptance length", kRight},
                   {"rates by place"},
                   {"output tokens/s", kRight},
                   {"without", kRight},
                   {"gain", kRight},
                   {"range", kRight},
                   {"user tokens/s", kRight},
                   {"without", kRight}});
  for (const SpeculateBench::Case& one : bench.cases) {
    table.add(
        {one.is_random() ? "random tokens*" : one.name, fmt::format("{}", one.batch),
         one.input_tokens > 0 ? fmt::format("{}", one.input_tokens) : "-",
         fmt::format("{:.2f}", one.measures.acceptance_length), rates_of(one.measures),
         fmt::format("{:.0f}", one.drafted.output_tokens_per_s), fmt::format("{:.0f}", one.plain.output_tokens_per_s),
         fmt::format("{:.2f}", one.gain), fmt::format("{:.2f}-{:.2f}", one.least_gain, one.most_gain),
         fmt::format("{:.1f}", one.drafted.user_tokens_per_s), fmt::format("{:.1f}", one.plain.user_tokens_per_s)});
  }
  print("\n{}", table.text());
  if (std::ranges::any_of(bench.cases, &SpeculateBench::Case::is_random)) {
    print("* no text: what comes of guesses there is not what users get\n");
  }
}

void print_categories(const SpeculateBench::Case& one) {
  using enum TextTable::Side;
  if (one.categories.empty()) return;
  TextTable table({{fmt::format("category, {} at a time", one.batch)},
                   {"turns", kRight},
                   {"acceptance length", kRight},
                   {"rates by place"},
                   {"user tokens/s", kRight},
                   {"without", kRight}});
  for (const SpeculateBench::Category& category : one.categories) {
    const SpeculationMeasures& measures = category.measures;
    table.add({category.name, fmt::format("{}", measures.turns), fmt::format("{:.2f}", measures.acceptance_length),
               rates_of(measures), fmt::format("{:.1f}", measures.user_tokens_per_s),
               fmt::format("{:.1f}", category.plain_user_tokens_per_s)});
  }
  print("\n{}", table.text());
}

}  // namespace

void bench_speculate_command(const BenchSpeculateArguments& arguments) {
  const BenchModel model = read_bench_model(arguments.model, arguments.overrides, arguments.device);
  SpeculateBenchOptions options = arguments.options;
  options.device = model.device;
  options.batches = !arguments.batches.empty() ? arguments.batches
                    : model.device == "cpu"    ? std::vector<int64_t>{1}
                                               : std::vector<int64_t>{1, 32};
  const SpeculateBench bench = bench_speculate(model.checkpoint, model.config, model.tokenizer, options);
  if (arguments.json) {
    print("{}\n", printed_json(to_json(bench, arguments)));
    return;
  }
  constexpr int kNameWidth = 16;
  print_bench_origin(bench.device, bench.software, kNameWidth);
  const auto line = [&](const char* name, const std::string& text) { print("{:<{}}{}\n", name, kNameWidth, text); };
  line("model", arguments.model);
  line("guesses", fmt::format("{}, {} at a time", draft_name(options.draft), tokens_name(options.draft)));
  line("answers", fmt::format("up to {} tokens, temperature {}{}", options.tokens, options.sampling.temperature,
                              bench.by_chat_template ? ", by the checkpoint's chat template" : ""));
  line("runs", fmt::format("{} with guesses and without, in turns: the same tokens in all", options.runs));
  print_cases(bench);
  for (const SpeculateBench::Case& one : bench.cases) print_categories(one);
}

}  // namespace nmoe::cli
