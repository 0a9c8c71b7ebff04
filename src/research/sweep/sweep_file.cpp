#include "research/sweep/sweep_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/text.h"
#include "config/entries.h"
#include "config/toml_depth.h"

namespace nmoe {
namespace {

constexpr int64_t kMostValues = 10'000;
constexpr std::string_view kDefaultRunName = "{sweep}-{point}-s{seed}";

// Keys that the sweep sets itself, and what is to be set instead.
constexpr auto kOwnKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"run.name", "set sweep.run_name"},
    {"run.experiment", "set sweep.name, which it becomes"},
    {"run.seed", "set sweep.seeds"},
    {"run.threads", "set sweep.parallel: runs share the CPUs"},
    {"run.dir", "set it in the base or with [run] dir: all runs of a sweep are in one folder"},
    {"run.device", "set it in the base or with [run] device: all runs of a sweep are on one kind"},
});

class Reader {
 public:
  explicit Reader(const fs::path& path) : name_(path.string()) { file_.path = path; }

  SweepFile read(const toml::table& document) {
    const toml::node* sweep = document.get("sweep");
    if (sweep == nullptr || !sweep->is_table()) {
      throw usage_error(fmt::format("{}: there is no [sweep]", name_),
                        "add [sweep] with base = \"CONFIG.toml\", and [sweep.keys]");
    }
    read_sweep(*sweep->as_table());
    toml::table others = document;
    others.erase("sweep");
    file_.is_ladder = others.contains("ladder");
    others.erase("ladder");
    for (const auto& [key, node] : others) add_overrides(std::string(key.str()), node);
    take_in_order(axes_, file_.axes);
    take_in_order(draws_, file_.draws);
    take_in_order(expressions_, file_.expressions);
    if (file_.base.empty()) throw fault(*sweep, "sweep.base is missing", "set it to a configuration's file");
    if (!file_.draws.empty() && file_.num_draws == 0) {
      throw usage_error(fmt::format("{}: {} is drawn, but sweep.draws is not set", file_.draws.front().place,
                                    file_.draws.front().key),
                        "set sweep.draws to the number of draws");
    }
    if (file_.draws.empty() && file_.num_draws > 0) {
      throw fault(*sweep, "sweep.draws has no effect: no key is drawn", "remove it, or draw a key's value");
    }
    return std::move(file_);
  }

 private:
  using Action = std::function<void(const toml::node&)>;

  // As they are written: a table of toml++ has its keys in the alphabet's order.
  template <class Swept>
  struct Placed {
    toml::source_position position;
    Swept swept;
  };
  template <class Swept>
  static void take_in_order(std::vector<Placed<Swept>>& placed, std::vector<Swept>& swept) {
    std::ranges::stable_sort(placed, [](const auto& a, const auto& b) { return a.position < b.position; });
    for (Placed<Swept>& one : placed) swept.push_back(std::move(one.swept));
  }

  std::string place(const toml::node& node) const { return fmt::format("{}:{}", name_, node.source().begin.line); }
  Error fault(const toml::node& node, const std::string& what, const std::string& remedy) const {
    return usage_error(fmt::format("{}: {}", place(node), what), remedy);
  }

  double number(const toml::node& node, const std::string& what, double least, double most) const {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !(*value >= least && *value <= most)) {
      throw fault(node, fmt::format("{} must be a number from {} to {}", what, least, most), "correct " + what);
    }
    return *value;
  }
  int64_t integer(const toml::node& node, const std::string& what, int64_t least, int64_t most) const {
    if (!node.is_integer()) throw fault(node, what + " must be a whole number", "correct " + what);
    return static_cast<int64_t>(number(node, what, static_cast<double>(least), static_cast<double>(most)));
  }
  std::string text(const toml::node& node, const std::string& what) const {
    if (!node.is_string() || node.as_string()->get().empty()) {
      throw fault(node, what + " must be a text that is not empty", "correct " + what);
    }
    return node.as_string()->get();
  }
  const toml::array& list(const toml::node& node, const std::string& what) const {
    const toml::array* array = node.as_array();
    if (array == nullptr || array->empty() || std::ssize(*array) > kMostValues) {
      throw fault(node, fmt::format("{} must be a list of 1 to {} values", what, kMostValues), "correct " + what);
    }
    return *array;
  }
  // Each member by its action. Error for a member without one.
  void members(const toml::node& node, const std::string& what,
               const std::vector<std::pair<std::string, Action>>& known) const {
    const toml::table* table = node.as_table();
    if (table == nullptr) throw fault(node, what + " must be a table", "write { key = value, ... }");
    for (const auto& [key, member] : *table) {
      const auto found = std::ranges::find(known, key.str(), &std::pair<std::string, Action>::first);
      if (found == known.end()) {
        std::vector<std::string> names;
        for (const auto& [name, action] : known) names.push_back(name);
        const std::string near = nearest(key.str(), names);
        throw fault(member, fmt::format("{} has no key '{}'", what, key.str()),
                    near.empty() ? "choose one of " + join_or(names) : fmt::format("did you mean '{}'?", near));
      }
      found->second(member);
    }
  }

  void read_sweep(const toml::table& table) {
    file_.name = file_.path.stem().string();
    file_.run_name = kDefaultRunName;
    file_.goal = "valid/loss";
    members(
        table, "sweep",
        {{"base", [&](const toml::node& node) { file_.base = file_.path.parent_path() / text(node, "sweep.base"); }},
         {"name", [&](const toml::node& node) { file_.name = text(node, "sweep.name"); }},
         {"seeds", [&](const toml::node& node) { read_seeds(node); }},
         {"goal", [&](const toml::node& node) { file_.goal = text(node, "sweep.goal"); }},
         {"direction", [&](const toml::node& node) { read_direction(node); }},
         {"run_name", [&](const toml::node& node) { file_.run_name = text(node, "sweep.run_name"); }},
         {"draws", [&](const toml::node& node) { file_.num_draws = integer(node, "sweep.draws", 1, kMostValues); }},
         {"draw_seed",
          [&](const toml::node& node) {
            file_.draw_seed = static_cast<uint64_t>(integer(node, "sweep.draw_seed", 0, int64_t{1} << 53));
          }},
         {"parallel", [&](const toml::node& node) { file_.parallel = integer(node, "sweep.parallel", 1, 4096); }},
         {"retries", [&](const toml::node& node) { file_.retries = integer(node, "sweep.retries", 0, 100); }},
         {"budget", [&](const toml::node& node) { read_budget(node); }},
         {"halving", [&](const toml::node& node) { read_halving(node); }},
         {"keys", [&](const toml::node& node) { read_keys(node, "", "sweep.keys"); }},
         {"together", [&](const toml::node& node) { read_together(node); }}});
  }

  void read_seeds(const toml::node& node) {
    if (node.is_integer()) {
      file_.num_seeds = integer(node, "sweep.seeds", 1, kMostValues);
      return;
    }
    for (const toml::node& seed : list(node, "sweep.seeds")) {
      file_.seeds.push_back(integer(seed, "a seed", 0, int64_t{1} << 53));
      if (std::ranges::count(file_.seeds, file_.seeds.back()) > 1) {
        throw fault(seed, fmt::format("the seed {} is there twice", file_.seeds.back()), "remove one");
      }
    }
  }

  void read_direction(const toml::node& node) {
    const std::string direction = text(node, "sweep.direction");
    if (direction != "min" && direction != "max") {
      throw fault(node, "sweep.direction must be \"min\" or \"max\"", "correct sweep.direction");
    }
    file_.direction = direction == "min" ? GoalDirection::kLeast : GoalDirection::kLargest;
  }

  void read_budget(const toml::node& node) {
    SweepBudget& budget = file_.budget;
    members(
        node, "sweep.budget",
        {{"hours", [&](const toml::node& v) { budget.hours = number(v, "sweep.budget.hours", 1e-6, 1e6); }},
         {"steps", [&](const toml::node& v) { budget.steps = integer(v, "sweep.budget.steps", 1, int64_t{1} << 53); }},
         {"flops", [&](const toml::node& v) { budget.flops = number(v, "sweep.budget.flops", 1.0, 1e40); }}});
  }

  void read_halving(const toml::node& node) {
    SweepHalving& halving = file_.halving;
    members(node, "sweep.halving",
            {{"at",
              [&](const toml::node& at) {
                for (const toml::node& share : list(at, "sweep.halving.at")) {
                  halving.at.push_back(number(share, "a share of sweep.halving.at", 1e-6, 1.0 - 1e-6));
                  const auto count = halving.at.size();
                  if (count > 1 && halving.at[count - 1] <= halving.at[count - 2]) {
                    throw fault(share, "sweep.halving.at does not rise", "sort it");
                  }
                }
              }},
             {"keep", [&](const toml::node& v) { halving.keep = number(v, "sweep.halving.keep", 1e-3, 0.999); }}});
    if (halving.at.empty()) throw fault(node, "sweep.halving has no 'at'", "list the shares of a run to halve at");
  }

  Value value(const toml::node& node, const std::string& key) const {
    if (const auto* flag = node.as_boolean()) return flag->get();
    if (const auto* whole = node.as_integer()) return whole->get();
    if (const auto* real = node.as_floating_point()) return real->get();
    if (const auto* words = node.as_string()) return words->get();
    throw fault(node, fmt::format("a value of {} is no number, text or flag", key), "correct it");
  }

  // A key that is to be swept. Error where it was there before, or is the sweep's.
  void claim(const toml::node& node, const std::string& key) {
    const auto* own = std::ranges::find(kOwnKeys, key, &decltype(kOwnKeys)::value_type::first);
    if (own != kOwnKeys.end()) throw fault(node, fmt::format("{} cannot be swept", key), std::string(own->second));
    if (!claimed_.insert(key).second) throw fault(node, fmt::format("{} is swept twice", key), "remove one");
  }

  // Tables name sections, unless they describe values.
  void read_keys(const toml::node& node, const std::string& prefix, const std::string& what) {
    const toml::table* table = node.as_table();
    if (table == nullptr) throw fault(node, what + " must be a table", "write [" + what + "]");
    for (const auto& [name, member] : *table) {
      const std::string key = prefix + std::string(name.str());
      const toml::table* inner = member.as_table();
      if (inner == nullptr || (inner->contains("from") && inner->contains("to")) || inner->contains("choose")) {
        claim(member, key);
        read_key(member, key);
      } else {
        read_keys(member, key + ".", what);
      }
    }
  }

  void read_key(const toml::node& node, const std::string& key) {
    if (node.is_table()) return read_range(node, key);
    if (const auto* written = node.as_string(); written != nullptr && written->get().starts_with('=')) {
      expressions_.push_back(
          {node.source().begin, {key, std::string(trimmed(std::string_view(written->get()).substr(1))), place(node)}});
      return;
    }
    if (!node.is_array()) {
      throw fault(node, fmt::format("{} has neither a list, a range, an expression nor a choice", key),
                  "write [a, b], { from = a, to = b, num = 5, scale = \"log\" } or \"= other.key * 2\"; one value for "
                  "all runs belongs into the tables beside [sweep]");
    }
    SweepAxis axis{.keys = {key}, .place = place(node)};
    for (const toml::node& element : list(node, key)) axis.values.push_back({value(element, key)});
    axes_.push_back({node.source().begin, std::move(axis)});
  }

  void read_range(const toml::node& node, const std::string& key) {
    std::optional<double> from, to, step, factor;
    std::optional<int64_t> num;
    std::string scale, draw;
    SweepDraw drawn{.key = key, .place = place(node)};
    const auto real = [&](std::optional<double>& member) {
      return [this, &member, key](const toml::node& v) { member = number(v, "a bound of " + key, -1e300, 1e300); };
    };
    members(node, key,
            {{"from", real(from)},
             {"to", real(to)},
             {"step", real(step)},
             {"factor", real(factor)},
             {"num", [&](const toml::node& v) { num = integer(v, key + ".num", 1, kMostValues); }},
             {"scale", [&](const toml::node& v) { scale = text(v, key + ".scale"); }},
             {"draw", [&](const toml::node& v) { draw = text(v, key + ".draw"); }},
             {"choose", [&](const toml::node& v) {
                for (const toml::node& one : list(v, key + ".choose")) drawn.choices.push_back(value(one, key));
              }}});
    if (!drawn.choices.empty()) {
      if (node.as_table()->size() > 1) throw fault(node, key + " has more than 'choose'", "leave the rest out");
      draws_.push_back({node.source().begin, std::move(drawn)});
      return;
    }
    if (num.has_value() + step.has_value() + factor.has_value() + !draw.empty() != 1) {
      throw fault(node, fmt::format("{} needs one of num, step, factor and draw", key), "leave one of them");
    }
    const std::string& kind = draw.empty() ? scale : draw;
    if ((!scale.empty() && !num) || (!kind.empty() && kind != "log" && kind != "linear")) {
      throw fault(node, fmt::format("the scale of {} is \"log\" or \"linear\", of num alone", key), "correct it");
    }
    const bool is_log = kind == "log" || factor.has_value();
    if (*from > *to || (is_log && *from <= 0.0)) {
      throw fault(node, fmt::format("{} goes from {} to {}", key, *from, *to),
                  "let it rise, on a scale of logarithms from above 0");
    }
    if (!draw.empty()) {
      drawn.from = *from, drawn.to = *to;
      drawn.scale = is_log ? SweepDraw::Scale::kLog : SweepDraw::Scale::kLinear;
      draws_.push_back({node.source().begin, std::move(drawn)});
      return;
    }
    if ((step && *step <= 0.0) || (factor && *factor <= 1.0)) {
      throw fault(node, fmt::format("{} never gets to its end", key), "choose a step above 0, or a factor above 1");
    }
    add_range(node, key, range_values(*from, *to, num, step, factor, is_log));
  }

  // Ends that rounding misses by less than a millionth of a step belong to it.
  static std::vector<double> range_values(double from, double to, std::optional<int64_t> num,
                                          std::optional<double> step, std::optional<double> factor, bool is_log) {
    constexpr double kSlack = 1e-6;
    double count = num ? static_cast<double>(*num) : 1.0;
    if (step) count = std::floor((to - from) / *step + kSlack) + 1.0;
    if (factor) count = std::floor(std::log(to / from) / std::log(*factor) + kSlack) + 1.0;
    std::vector<double> values;
    for (double i = 0; i < std::min(count, double{kMostValues + 1}); ++i) {
      const double share = count > 1.0 ? i / (count - 1.0) : 0.0;
      if (step) {
        values.push_back(from + i * *step);
      } else if (factor) {
        values.push_back(from * std::pow(*factor, i));
      } else if (i > 0.0 && i == count - 1.0) {
        values.push_back(to);  // as it is written
      } else {
        values.push_back(is_log ? from * std::pow(to / from, share) : from + share * (to - from));
      }
    }
    return values;
  }

  void add_range(const toml::node& node, const std::string& key, const std::vector<double>& values) {
    if (std::ssize(values) > kMostValues) {
      throw fault(node, fmt::format("{} has more than {} values", key, kMostValues), "take larger steps");
    }
    SweepAxis axis{.keys = {key}, .rounds = true, .place = place(node)};
    for (const double one : values) axis.values.push_back({one});
    axes_.push_back({node.source().begin, std::move(axis)});
  }

  void read_together(const toml::node& node) {
    for (const toml::node& group : list(node, "sweep.together")) {
      SweepAxis axis{.place = place(group)};
      const toml::table* table = group.as_table();
      if (table == nullptr || table->empty()) throw fault(group, "no table of keys", "write [[sweep.together]]");
      add_lists(*table, "", axis);
      axes_.push_back({group.source().begin, std::move(axis)});
    }
  }
  void add_lists(const toml::table& table, const std::string& prefix, SweepAxis& axis) {
    for (const auto& [name, member] : table) {
      const std::string key = prefix + std::string(name.str());
      if (const toml::table* inner = member.as_table()) {
        add_lists(*inner, key + ".", axis);
        continue;
      }
      claim(member, key);
      const toml::array& values = list(member, key);
      if (axis.keys.empty()) axis.values.resize(values.size());
      if (values.size() != axis.values.size()) {
        throw fault(
            member,
            fmt::format("{} has {} values, {} beside it {}", key, values.size(), axis.keys.front(), axis.values.size()),
            "give keys that change together as many values");
      }
      axis.keys.push_back(key);
      for (size_t i = 0; i < values.size(); ++i) axis.values[i].push_back(value(values[i], key));
    }
  }

  // Of every run. Lists of texts are values of keys, too.
  void add_overrides(const std::string& key, const toml::node& node) {
    if (const toml::table* table = node.as_table()) {
      for (const auto& [name, member] : *table) add_overrides(key + "." + std::string(name.str()), member);
      return;
    }
    if (key == "run.name" || key == "run.experiment" || key == "run.threads") {
      throw fault(node, key + " is set by the sweep",
                  std::string(std::ranges::find(kOwnKeys, key, &decltype(kOwnKeys)::value_type::first)->second));
    }
    if (claimed_.contains(key)) throw fault(node, key + " is both swept and set", "remove one");
    if (!node.is_array()) return file_.overrides.push_back(key + "=" + to_toml(value(node, key)));
    std::vector<std::string> words;
    for (const toml::node& one : *node.as_array()) words.push_back(text(one, "a value of " + key));
    file_.overrides.push_back(key + "=" + to_toml(words));
  }

  std::string name_;
  SweepFile file_;
  std::vector<Placed<SweepAxis>> axes_;
  std::vector<Placed<SweepDraw>> draws_;
  std::vector<Placed<SweepExpression>> expressions_;
  std::set<std::string> claimed_;
};

}  // namespace

SweepFile read_sweep_file(const fs::path& path) {
  if (!fs::exists(path)) {
    throw usage_error(fmt::format("there is no file {} of a sweep", path.string()), "check the path");
  }
  return parse_sweep(read_file_up_to(path, kMaxSettingsFile), path);
}

SweepFile parse_sweep(std::string_view toml, const fs::path& path) {
  read_entries(toml, path.string());  // says what is wrong with it as TOML
  return Reader(path).read(toml::parse(toml, path.string()));
}

}  // namespace nmoe
