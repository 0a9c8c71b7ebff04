#include "research/ladder/ladder_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/text.h"
#include "config/toml_depth.h"
#include "track/tags/losses.h"
#include "track/tags/validation.h"

namespace nmoe {
namespace {

constexpr auto kKeys = std::to_array<std::string_view>(
    {"targets", "tokens_per_parameter", "flops", "target_tokens_per_parameter", "laws"});
constexpr auto kLaws = std::to_array<std::string_view>({"batch", "rate", "decay"});

class LadderReader {
 public:
  explicit LadderReader(const fs::path& path) : name_(path.string()) {}

  void read(const toml::table& ladder, LadderFile& file) {
    check_keys(ladder, "ladder", kKeys);
    for (const double target : numbers(ladder, "targets")) file.targets.push_back(size_of(ladder, target, file));
    file.tokens_per_parameter = positive(ladder, "tokens_per_parameter");
    file.flops = positive(ladder, "flops");
    if (file.tokens_per_parameter.empty() == file.flops.empty()) {
      throw fault(ladder, "ladder needs either tokens_per_parameter or flops", "set one of them");
    }
    const std::vector<double> of_targets = positive(ladder, "target_tokens_per_parameter");
    if (of_targets.size() > 1) {
      throw fault(ladder, "ladder.target_tokens_per_parameter is a list", "give one number");
    }
    if (!of_targets.empty()) file.target_tokens_per_parameter = of_targets.front();
    if (of_targets.empty() && file.tokens_per_parameter.size() == 1) {
      file.target_tokens_per_parameter = file.tokens_per_parameter.front();
    }
    if (!file.targets.empty() && file.target_tokens_per_parameter == 0.0) {
      throw fault(ladder, "how many tokens the targets get is not said", "set ladder.target_tokens_per_parameter");
    }
    if (const toml::node* laws = ladder.get("laws")) read_laws(*laws, file);
  }

  Error fault(const toml::node& node, const std::string& what, const std::string& remedy) const {
    return usage_error(fmt::format("{}:{}: {}", name_, node.source().begin.line, what), remedy);
  }

 private:
  void check_keys(const toml::table& table, const std::string& what, std::span<const std::string_view> known) const {
    for (const auto& [key, node] : table) {
      if (std::ranges::find(known, key.str()) != known.end()) continue;
      const std::vector<std::string> names(known.begin(), known.end());
      const std::string near = nearest(key.str(), names);
      throw fault(node, fmt::format("{} has no key '{}'", what, key.str()),
                  near.empty() ? "choose one of " + join_or(names) : fmt::format("did you mean '{}'?", near));
    }
  }

  // A number or a list of them; empty where there is no such key.
  std::vector<double> numbers(const toml::table& ladder, std::string_view key) const {
    std::vector<double> values;
    const toml::node* node = ladder.get(key);
    if (node == nullptr) return values;
    const auto take = [&](const toml::node& one) {
      const auto value = one.is_number() ? one.value<double>() : std::nullopt;
      if (!value) throw fault(one, fmt::format("ladder.{} must be a number or a list of numbers", key), "correct it");
      if (std::ranges::find(values, *value) != values.end()) {
        throw fault(one, fmt::format("ladder.{} has {} twice", key, *value), "remove one");
      }
      values.push_back(*value);
    };
    if (const toml::array* list = node->as_array()) {
      for (const toml::node& one : *list) take(one);
    } else {
      take(*node);
    }
    return values;
  }
  std::vector<double> positive(const toml::table& ladder, std::string_view key) const {
    const std::vector<double> values = numbers(ladder, key);
    for (const double value : values) {
      if (!(value > 0.0 && value <= 1e40)) {
        throw fault(*ladder.get(key), fmt::format("ladder.{} must be above 0", key), "correct it");
      }
    }
    return values;
  }

  // As the dial's own values are kept.
  Value size_of(const toml::table& ladder, double target, const LadderFile& file) const {
    const Value& like = file.sizes().values.front().front();
    const bool is_whole = std::holds_alternative<int64_t>(like);
    const Value size = is_whole ? Value(static_cast<int64_t>(target)) : Value(target);
    if (is_whole && target != static_cast<double>(std::get<int64_t>(size))) {
      throw fault(*ladder.get("targets"), fmt::format("the target {} is no whole number", target), "correct it");
    }
    for (const std::vector<Value>& other : file.sizes().values) {
      if (other.front() == size) {
        throw fault(*ladder.get("targets"), fmt::format("{} is both a size and a target", target), "remove one");
      }
    }
    return size;
  }

  void read_laws(const toml::node& node, LadderFile& file) const {
    const toml::table* laws = node.as_table();
    if (laws == nullptr) throw fault(node, "ladder.laws must be a table", "write [ladder.laws]");
    check_keys(*laws, "ladder.laws", kLaws);
    for (const auto& [key, law] : *laws) {
      if (!law.is_string()) {
        throw fault(law, fmt::format("ladder.laws.{} must be an expression in quotes", key.str()),
                    "write a factor over the base, such as \"sqrt(batch)\"; \"1\" leaves the base's value");
      }
      const std::string text = law.as_string()->get();
      (key == "batch" ? file.batch_law : key == "rate" ? file.rate_law : file.decay_law) = text;
    }
  }

  std::string name_;
};

void check_sweep(const SweepFile& sweep, const fs::path& path) {
  const auto require = [&](bool holds, const std::string& what, const std::string& remedy) {
    if (!holds) throw usage_error(fmt::format("{}: {}", path.string(), what), remedy);
  };
  require(sweep.axes.size() == 1 && sweep.axes.front().keys.size() == 1 && sweep.draws.empty(),
          "a ladder has one dial: one key of [sweep.keys] with a list or range",
          "let the other keys follow from it, as in model.dim = \"= 64 * model.num_layers\"");
  require(std::ranges::none_of(sweep.axes.front().values,
                               [](const auto& value) { return std::holds_alternative<std::string>(value.front()); }),
          sweep.axes.front().keys.front() + ", the dial, has no numbers", "choose a key that has");
  require(sweep.halving.at.empty(), "sweep.halving would end sizes of the ladder early", "remove it");
  require(sweep.budget.steps == 0 && sweep.budget.flops == 0.0,
          "sweep.budget in steps or FLOPs would leave out sizes of the ladder",
          "set sweep.budget.hours, or fewer sizes");
  require(
      sweep.direction == GoalDirection::kLeast && (sweep.goal == tags::kValidLoss.tag || sweep.goal == tags::kLoss.tag),
      "laws are of a loss, and sweep.goal is " + sweep.goal, "set it to \"valid/loss\" or \"train/loss\"");
}

}  // namespace

bool is_ladder_file(const fs::path& path) { return read_sweep_file(path).is_ladder; }

LadderFile read_ladder_file(const fs::path& path) {
  read_sweep_file(path);  // says what is wrong with the file
  return parse_ladder(read_file_up_to(path, kMaxSettingsFile), path);
}

LadderFile parse_ladder(std::string_view toml, const fs::path& path) {
  LadderFile file{.sweep = parse_sweep(toml, path)};
  check_sweep(file.sweep, path);
  const toml::table document = toml::parse(toml, path.string());
  const toml::node* ladder = document.get("ladder");
  if (ladder == nullptr || !ladder->is_table()) {
    throw usage_error(fmt::format("{}: there is no [ladder]", path.string()),
                      "add [ladder] with targets and tokens_per_parameter, or run it with n research sweep");
  }
  LadderReader(path).read(*ladder->as_table(), file);
  return file;
}

}  // namespace nmoe
