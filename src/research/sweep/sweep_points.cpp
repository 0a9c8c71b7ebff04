#include "research/sweep/sweep_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "config/schema.h"
#include "config/unknown_key.h"
#include "research/sweep/expression.h"

namespace nmoe {
namespace {

constexpr auto kPrimes = std::to_array<int64_t>({2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53});
constexpr size_t kMostPoints = 100'000;

// The digits of `index` in `base`, mirrored at the point.
double radical_inverse(int64_t index, int64_t base) {
  double value = 0.0, digit = 1.0;
  for (; index > 0; index /= base) {
    digit /= static_cast<double>(base);
    value += digit * static_cast<double>(index % base);
  }
  return value;
}

std::string shown(const SweepPoint& point) {
  std::string text;
  for (const auto& [key, value] : point)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, to_toml(value));
  return text;
}

class Expander {
 public:
  Expander(const SweepFile& file, Config base) : file_(file), base_(std::move(base)), fields_(describe(base_)) {
    for (const SweepAxis& axis : file.axes) {
      for (const std::string& key : axis.keys) field(key, axis.place);
    }
    for (const SweepDraw& draw : file.draws) field(draw.key, draw.place);
    for (const SweepExpression& expression : file.expressions) field(expression.key, expression.place);
    if (file.draws.size() > kPrimes.size()) {
      throw usage_error(fmt::format("{}: {} is one of more than {} keys that are drawn", file.draws.back().place,
                                    file.draws.back().key, kPrimes.size()),
                        "let some follow from others");
    }
  }

  std::vector<SweepPoint> points() {
    size_t count = std::max<size_t>(1, static_cast<size_t>(file_.num_draws));
    for (const SweepAxis& axis : file_.axes) {
      count *= axis.values.size();
      if (count > kMostPoints) {
        throw usage_error(fmt::format("{}: the sweep has more than {} points", axis.place, kMostPoints),
                          "leave out values, or draw some keys");
      }
    }
    std::vector<SweepPoint> points;
    std::set<std::string> seen;
    for (size_t i = 0; i < count; ++i) {
      points.push_back(point(i));
      if (!seen.insert(shown(points.back())).second) {
        throw usage_error(
            fmt::format("{}: two points of the sweep are the same: {}", file_.path.string(), shown(points.back())),
            "remove values that are there twice, or are when they are rounded to whole numbers");
      }
    }
    return points;
  }

 private:
  const Field& field(std::string_view key, const std::string& place) const {
    const auto found = std::ranges::find(fields_, key, &Field::key);
    if (found == fields_.end()) {
      throw unknown_key(fields_, {.key = std::string(key), .value = {}, .written = "", .place = place});
    }
    return *found;
  }
  bool is_whole(const Field& field) const { return std::holds_alternative<int64_t>(field.get()); }

  Value rounded(const std::string& key, double value, const std::string& place) const {
    return is_whole(field(key, place)) ? Value(static_cast<int64_t>(std::llround(value))) : Value(value);
  }

  SweepPoint point(size_t index) {
    const auto num_draws = std::max<size_t>(1, static_cast<size_t>(file_.num_draws));
    const auto draw_idx = static_cast<int64_t>(index % num_draws);
    size_t rest = index / num_draws;
    std::vector<size_t> chosen(file_.axes.size());
    for (size_t a = file_.axes.size(); a-- > 0; rest /= file_.axes[a].values.size()) {
      chosen[a] = rest % file_.axes[a].values.size();
    }
    SweepPoint point;
    for (size_t a = 0; a < file_.axes.size(); ++a) {
      const SweepAxis& axis = file_.axes[a];
      for (size_t k = 0; k < axis.keys.size(); ++k) {
        const Value& value = axis.values[chosen[a]][k];
        point.emplace_back(axis.keys[k],
                           axis.rounds ? rounded(axis.keys[k], std::get<double>(value), axis.place) : value);
      }
    }
    for (size_t j = 0; j < file_.draws.size(); ++j) point.emplace_back(file_.draws[j].key, drawn(j, draw_idx));
    add_expressions(point);
    return point;
  }

  Value drawn(size_t place, int64_t draw_idx) const {
    const SweepDraw& draw = file_.draws[place];
    const double moved = radical_inverse(draw_idx + 1, kPrimes[place]) +
                         Philox(file_.draw_seed, "draws of a sweep").uniform(static_cast<uint64_t>(place));
    const double u = moved - std::floor(moved);
    if (!draw.choices.empty()) {
      const auto count = draw.choices.size();
      return draw.choices[std::min(count - 1, static_cast<size_t>(u * static_cast<double>(count)))];
    }
    const double value = draw.scale == SweepDraw::Scale::kLog ? draw.from * std::pow(draw.to / draw.from, u)
                                                              : draw.from + u * (draw.to - draw.from);
    return rounded(draw.key, value, draw.place);
  }

  // One after the other, each once what it names is known.
  void add_expressions(SweepPoint& point) {
    std::map<std::string, Value, std::less<>> known(point.begin(), point.end());
    std::set<std::string_view> at_work;
    const std::function<const Value&(const SweepExpression&)> value_of =
        [&](const SweepExpression& one) -> const Value& {
      if (const auto found = known.find(one.key); found != known.end()) return found->second;
      if (!at_work.insert(one.key).second) {
        throw usage_error(fmt::format("{}: {} follows from itself", one.place, one.key), "break the circle");
      }
      const double number = evaluated(one, [&](std::string_view key) {
        const auto other = std::ranges::find(file_.expressions, key, &SweepExpression::key);
        if (other != file_.expressions.end()) return number_of(value_of(*other), key, one);
        const auto found = known.find(key);
        return number_of(found != known.end() ? found->second : field(key, one.place).get(), key, one);
      });
      return known[one.key] = typed(one, number);
    };
    for (const SweepExpression& one : file_.expressions) point.emplace_back(one.key, value_of(one));
  }

  static double evaluated(const SweepExpression& one, const std::function<double(std::string_view)>& value_of) {
    try {
      return evaluate(one.text, value_of);
    } catch (const Error& error) {
      if (std::string_view(error.what()).starts_with(one.place)) throw;
      throw usage_error(fmt::format("{}: {} = {}", one.place, one.key, error.what()), error.remedy());
    }
  }
  static double number_of(const Value& value, std::string_view key, const SweepExpression& one) {
    if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&value)) return *real;
    throw usage_error(fmt::format("{}: {} = \"{}\", but {} is no number", one.place, one.key, one.text, key),
                      "name keys that have numbers");
  }
  Value typed(const SweepExpression& one, double number) const {
    if (!is_whole(field(one.key, one.place))) return number;
    if (number != std::floor(number) || std::abs(number) > 9e15) {
      throw usage_error(
          fmt::format("{}: {} = \"{}\" is {}, but must be a whole number", one.place, one.key, one.text, number),
          "round it: round(...), floor(...) or ceil(...)");
    }
    return static_cast<int64_t>(number);
  }

  const SweepFile& file_;
  Config base_;
  std::vector<Field> fields_;
};

}  // namespace

std::vector<SweepPoint> sweep_points(const SweepFile& file, const Config& base) {
  return Expander(file, base).points();
}

}  // namespace nmoe
