#include "research/ladder/scaling_law.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/math/tools/minima.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "research/report/statistics.h"

namespace nmoe {
namespace {

constexpr int kGrid = 24;                   // exponents that are tried before the search between them
constexpr int kBits = 26;                   // of an exponent's logarithm
constexpr double kSingular = 1e-13;         // a pivot of a matrix with a diagonal of ones
constexpr double kLeastIndependent = 1e-3;  // of log parameters: their variance that tokens don't explain, relative

double quantity(LawOf law, size_t term, const ScalingRun& run) {
  switch (law) {
    case LawOf::kTokens:
      return run.tokens;
    case LawOf::kFlops:
      return run.flops;
    case LawOf::kParameters:
      return run.parameters;
    case LawOf::kParametersAndTokens:
      break;
  }
  return term == 0 ? run.parameters : run.tokens;
}

// The inverse of a symmetric positive matrix [n, n]; nothing where it is singular. Scaled to a diagonal of ones first.
std::optional<std::vector<double>> inverse(std::vector<double> matrix, size_t n) {
  std::vector<double> scale(n), result(n * n);
  for (size_t i = 0; i < n; ++i) {
    if (!(matrix[i * n + i] > 0.0)) return std::nullopt;
    scale[i] = 1.0 / std::sqrt(matrix[i * n + i]);
    result[i * n + i] = 1.0;
  }
  for (size_t i = 0; i < n * n; ++i) matrix[i] *= scale[i / n] * scale[i % n];
  for (size_t k = 0; k < n; ++k) {  // Gauss and Jordan; a positive matrix needs no other pivots than its diagonal's
    const double pivot = matrix[k * n + k];
    if (!(pivot > kSingular)) return std::nullopt;
    for (size_t j = 0; j < n; ++j) matrix[k * n + j] /= pivot, result[k * n + j] /= pivot;
    for (size_t i = 0; i < n; ++i) {
      const double factor = matrix[i * n + k];
      if (i == k || factor == 0.0) continue;
      for (size_t j = 0; j < n; ++j) {
        matrix[i * n + j] -= factor * matrix[k * n + j];
        result[i * n + j] -= factor * result[k * n + j];
      }
    }
  }
  for (size_t i = 0; i < n * n; ++i) result[i] *= scale[i / n] * scale[i % n];
  return result;
}

// The best E and c of given exponents, which the law is linear in (variable projection: Golub and Pereyra 1973).
class Projection {
 public:
  // logs[term][run] of x / x0.
  Projection(std::vector<std::vector<double>> logs, std::vector<double> losses)
      : logs_(std::move(logs)), losses_(std::move(losses)) {}

  struct Best {
    std::vector<double> linear;   // E, c of each term
    std::vector<double> weights;  // of each run, Huber's
    double cost = std::numeric_limits<double>::infinity();
  };

  Best at(std::span<const double> exponents) const {
    const size_t num_runs = losses_.size(), num_columns = logs_.size() + 1;
    std::vector<double> columns(num_columns * num_runs);  // over the losses: their sum is to be 1
    for (size_t i = 0; i < num_runs; ++i) {
      columns[i] = 1.0 / losses_[i];
      for (size_t j = 0; j < logs_.size(); ++j) {
        columns[(j + 1) * num_runs + i] = std::exp(-exponents[j] * logs_[j][i]) / losses_[i];
      }
    }
    constexpr int kMostRounds = 50;
    Best best{.linear = {}, .weights = std::vector<double>(num_runs, 1.0)};
    for (int round = 0; round < kMostRounds; ++round) {
      best.linear = non_negative(columns, best.weights);
      best.cost = 0.0;
      double change = 0.0;
      for (size_t i = 0; i < num_runs; ++i) {
        double deviation = -1.0;
        for (size_t j = 0; j < num_columns; ++j) deviation += best.linear[j] * columns[j * num_runs + i];
        const double size = std::abs(deviation), huber = ScalingLaw::kHuber;
        best.cost += size <= huber ? 0.5 * size * size : huber * (size - 0.5 * huber);
        const double weight = size <= huber ? 1.0 : huber / size;
        change = std::max(change, std::abs(weight - best.weights[i]));
        best.weights[i] = weight;
      }
      if (change < 1e-10) break;
    }
    return best;
  }

 private:
  // Least squares with no number below 0: of all choices of numbers that are 0, the best that is feasible.
  std::vector<double> non_negative(const std::vector<double>& columns, const std::vector<double>& weights) const {
    const size_t num_runs = losses_.size(), num_columns = logs_.size() + 1;
    std::vector<double> best(num_columns);
    double best_squares = std::numeric_limits<double>::infinity();
    for (size_t chosen = 1; chosen < size_t{1} << num_columns; ++chosen) {
      std::vector<size_t> used;
      for (size_t j = 0; j < num_columns; ++j) {
        if ((chosen >> j & 1) != 0) used.push_back(j);
      }
      const size_t n = used.size();
      std::vector<double> normal(n * n), right(n);
      for (size_t a = 0; a < n; ++a) {
        for (size_t i = 0; i < num_runs; ++i) {
          const double weighted = weights[i] * columns[used[a] * num_runs + i];
          right[a] += weighted;
          for (size_t b = 0; b < n; ++b) normal[a * n + b] += weighted * columns[used[b] * num_runs + i];
        }
      }
      const auto inverted = inverse(normal, n);
      if (!inverted) continue;
      std::vector<double> candidate(num_columns);
      for (size_t a = 0; a < n; ++a) {
        for (size_t b = 0; b < n; ++b) candidate[used[a]] += (*inverted)[a * n + b] * right[b];
      }
      if (std::ranges::any_of(candidate, [](double number) { return number < 0.0; })) continue;
      double squares = 0.0;
      for (size_t i = 0; i < num_runs; ++i) {
        double deviation = -1.0;
        for (size_t j = 0; j < num_columns; ++j) deviation += candidate[j] * columns[j * num_runs + i];
        squares += weights[i] * deviation * deviation;
      }
      if (squares < best_squares) best_squares = squares, best = candidate;
    }
    return best;
  }

  std::vector<std::vector<double>> logs_;
  std::vector<double> losses_;
};

// The exponent with the least cost, searched by its logarithm: among kGrid values, then between the neighbours of the
// best by Brent's method. Its cost, too.
std::pair<double, double> least(const auto& cost) {
  const double from = std::log(ScalingLaw::kLeastExponent), to = std::log(ScalingLaw::kLargestExponent);
  const double step = (to - from) / (kGrid - 1);
  std::pair<double, double> best{0.0, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kGrid; ++i) {
    const double at = from + i * step, of = cost(std::exp(at));
    if (of < best.second) best = {at, of};
  }
  const auto [at, of] =
      boost::math::tools::brent_find_minima([&](double log) { return cost(std::exp(log)); },
                                            std::max(from, best.first - step), std::min(to, best.first + step), kBits);
  if (of < best.second) best = {at, of};
  return {std::exp(best.first), best.second};
}

std::vector<double> best_exponents(const Projection& projection, size_t num_terms) {
  if (num_terms == 1) return {least([&](double a) { return projection.at(std::array{a}).cost; }).first};
  const auto second = [&](double a) { return least([&](double b) { return projection.at(std::array{a, b}).cost; }); };
  const double first = least([&](double a) { return second(a).second; }).first;
  return {first, second(first).first};
}

// The share of the variance of log parameters that log tokens leave.
double independence(std::span<const ScalingRun> runs) {
  const auto count = static_cast<double>(runs.size());
  double mean_n = 0.0, mean_d = 0.0, nn = 0.0, nd = 0.0, dd = 0.0;
  for (const ScalingRun& run : runs) mean_n += std::log(run.parameters) / count, mean_d += std::log(run.tokens) / count;
  for (const ScalingRun& run : runs) {
    const double n = std::log(run.parameters) - mean_n, d = std::log(run.tokens) - mean_d;
    nn += n * n, nd += n * d, dd += d * d;
  }
  return nn * dd > 0.0 ? 1.0 - nd * nd / (nn * dd) : 0.0;
}

void check_sizes(LawOf law, std::span<const ScalingRun> runs) {
  const bool is_pair = law == LawOf::kParametersAndTokens;
  std::set<std::pair<double, double>> sizes;
  for (const ScalingRun& run : runs) {
    NMOE_CHECK(run.parameters > 0.0 && run.tokens > 0.0 && run.flops > 0.0 && run.loss > 0.0,
               "a run of {} parameters, {} tokens, {} FLOP, loss {}", run.parameters, run.tokens, run.flops, run.loss);
    sizes.emplace(quantity(law, 0, run), is_pair ? run.tokens : 0.0);
  }
  const size_t needed = is_pair ? 5 : 3;
  if (sizes.size() < needed) {
    throw usage_error(
        fmt::format("a law of {} needs runs of {} sizes, and {} have a loss", law_name(law), needed, sizes.size()),
        "add sizes");
  }
  if (is_pair && independence(runs) < kLeastIndependent) {
    throw usage_error("parameters and tokens of the runs grow together: a law of both is not determined",
                      "give several ladder.tokens_per_parameter, or ladder.flops");
  }
}

}  // namespace

std::string_view law_name(LawOf law) {
  switch (law) {
    case LawOf::kParameters:
      return "parameters";
    case LawOf::kTokens:
      return "tokens";
    case LawOf::kFlops:
      return "FLOPs";
    case LawOf::kParametersAndTokens:
      break;
  }
  return "parameters and tokens";
}

// In the order that free_ counts in.
struct ScalingLaw::Numbers {
  std::vector<double> all;
  double floor() const { return all[0]; }
  double coefficient(size_t term) const { return all[1 + 2 * term]; }
  double exponent(size_t term) const { return all[2 + 2 * term]; }
};

ScalingLaw::Numbers ScalingLaw::numbers() const {
  Numbers numbers{{floor_.value}};
  for (const Term& term : terms_) numbers.all.insert(numbers.all.end(), {term.coefficient.value, term.exponent.value});
  return numbers;
}

std::vector<double> ScalingLaw::logs_of(const ScalingRun& run) const {
  std::vector<double> logs;
  for (size_t j = 0; j < terms_.size(); ++j) logs.push_back(std::log(quantity(of_, j, run) / terms_[j].unit));
  return logs;
}

double ScalingLaw::value(const Numbers& numbers, std::span<const double> logs) const {
  double loss = numbers.floor();
  for (size_t j = 0; j < logs.size(); ++j) loss += numbers.coefficient(j) * std::exp(-numbers.exponent(j) * logs[j]);
  return loss;
}

ScalingLaw::ScalingLaw(LawOf law, std::span<const ScalingRun> runs) : of_(law) {
  check_sizes(law, runs);
  terms_.resize(law == LawOf::kParametersAndTokens ? 2 : 1);
  const auto count = static_cast<double>(runs.size());
  for (size_t j = 0; j < terms_.size(); ++j) {
    double log = 0.0;
    for (const ScalingRun& run : runs) log += std::log(quantity(law, j, run)) / count;
    terms_[j].unit = std::exp(log);
  }
  std::vector<std::vector<double>> logs(terms_.size());
  std::vector<double> losses;
  double log_cost = 0.0;
  for (const ScalingRun& run : runs) {
    const std::vector<double> of_run = logs_of(run);
    for (size_t j = 0; j < terms_.size(); ++j) logs[j].push_back(of_run[j]);
    losses.push_back(run.loss);
    log_cost += std::log(run.flops / run.parameters / run.tokens) / count;
  }
  flops_per_parameter_token_ = std::exp(log_cost);
  const Projection projection(std::move(logs), std::move(losses));
  const std::vector<double> exponents = best_exponents(projection, terms_.size());
  const Projection::Best best = projection.at(exponents);
  floor_.value = best.linear[0];
  for (size_t j = 0; j < terms_.size(); ++j) {
    terms_[j].coefficient.value = best.linear[j + 1];
    terms_[j].exponent.value = best.linear[j + 1] > 0.0 ? exponents[j] : 0.0;
  }
  add_intervals(runs);
}

void ScalingLaw::add_intervals(std::span<const ScalingRun> runs) {
  const Numbers numbers = this->numbers();
  if (numbers.floor() > 0.0) free_.push_back(0);
  bool at_bound = false;
  for (size_t j = 0; j < terms_.size(); ++j) {
    const double exponent = numbers.exponent(j);
    if (numbers.coefficient(j) <= 0.0) continue;
    free_.insert(free_.end(), {1 + 2 * j, 2 + 2 * j});
    at_bound = at_bound || exponent < 1.001 * kLeastExponent || exponent > 0.999 * kLargestExponent;
  }
  const size_t n = free_.size();
  degrees_ = std::ssize(runs) - std::ssize(free_);
  if (degrees_ <= 0) return;
  double squares = 0.0;
  std::vector<double> normal(n * n);
  for (const ScalingRun& run : runs) {
    const std::vector<double> logs = logs_of(run);
    const double deviation = value(numbers, logs) / run.loss - 1.0;
    const double weight = std::min(1.0, kHuber / std::max(kHuber, std::abs(deviation)));
    squares += weight * deviation * deviation;
    const std::vector<double> slope = gradient(numbers, logs);
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) normal[a * n + b] += weight * slope[a] * slope[b] / (run.loss * run.loss);
    }
  }
  scatter_ = std::sqrt(squares / static_cast<double>(degrees_));
  t_ = t_quantile(static_cast<double>(degrees_), 0.95);
  const auto inverted = at_bound ? std::nullopt : inverse(normal, n);
  if (!inverted) return;
  covariance_ = *inverted;
  for (double& entry : covariance_) entry *= scatter_ * scatter_;
  for (size_t a = 0; a < n; ++a) {
    const size_t number = free_[a];
    Estimate& of = number == 0       ? floor_
                   : number % 2 == 1 ? terms_[(number - 1) / 2].coefficient
                                     : terms_[(number - 2) / 2].exponent;
    of.half_width = t_ * std::sqrt(covariance_[a * n + a]);
  }
}

std::vector<double> ScalingLaw::gradient(const Numbers& numbers, std::span<const double> logs) const {
  std::vector<double> gradient;
  for (const size_t number : free_) {
    const size_t term = number == 0 ? 0 : (number - 1) / 2;
    const double power = number == 0 ? 1.0 : std::exp(-numbers.exponent(term) * logs[term]);
    const bool is_exponent = number > 0 && number % 2 == 0;
    gradient.push_back(is_exponent ? -numbers.coefficient(term) * power * logs[term] : power);
  }
  return gradient;
}

std::optional<double> ScalingLaw::deviation(std::span<const double> gradient) const {
  if (covariance_.empty()) return std::nullopt;
  const size_t n = free_.size();
  double variance = 0.0;
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) variance += gradient[a] * covariance_[a * n + b] * gradient[b];
  }
  return std::sqrt(std::max(0.0, variance));
}

Estimate ScalingLaw::predict(const ScalingRun& size, int64_t seeds) const {
  const Numbers numbers = this->numbers();
  const std::vector<double> logs = logs_of(size);
  Estimate loss{.value = value(numbers, logs)};
  if (const std::optional<double> of_law = deviation(gradient(numbers, logs))) {
    const double of_runs = scatter_ * loss.value / std::sqrt(static_cast<double>(seeds));
    loss.half_width = t_ * std::hypot(*of_law, of_runs);
  }
  return loss;
}

std::optional<Estimate> ScalingLaw::optimal_parameters(double flops) const {
  NMOE_CHECK(of_ == LawOf::kParametersAndTokens, "a law of {} alone", law_name(of_));
  // With D = flops / (k N), the slopes of both terms over log N cancel: linear in log N.
  const auto log_optimum = [&](const Numbers& numbers) {
    const double alpha = numbers.exponent(0), beta = numbers.exponent(1);
    const double products = std::log(flops / flops_per_parameter_token_);
    return (std::log(alpha * numbers.coefficient(0)) - std::log(beta * numbers.coefficient(1)) +
            alpha * std::log(terms_[0].unit) + beta * (products - std::log(terms_[1].unit))) /
           (alpha + beta);
  };
  const Numbers numbers = this->numbers();
  for (size_t j = 0; j < 2; ++j) {
    if (numbers.coefficient(j) <= 0.0) return std::nullopt;
  }
  const double log = log_optimum(numbers);
  Estimate optimum{.value = std::exp(log)};
  std::vector<double> gradient;
  for (const size_t number : free_) {
    Numbers moved = numbers;
    const double step = 1e-6 * moved.all[number];
    moved.all[number] += step;
    gradient.push_back((log_optimum(moved) - log) / step);
  }
  if (const auto of_log = deviation(gradient)) optimum.half_width = std::expm1(t_ * *of_log);
  return optimum;
}

double naive_prediction(std::span<const ScalingRun> runs, double flops) {
  const auto count = static_cast<double>(runs.size());
  double mean_x = 0.0, mean_y = 0.0, xx = 0.0, xy = 0.0;
  for (const ScalingRun& run : runs) mean_x += std::log(run.flops) / count, mean_y += std::log(run.loss) / count;
  for (const ScalingRun& run : runs) {
    const double x = std::log(run.flops) - mean_x;
    xx += x * x, xy += x * (std::log(run.loss) - mean_y);
  }
  NMOE_CHECK(xx > 0.0, "{} runs of one size", runs.size());
  return std::exp(mean_y + xy / xx * (std::log(flops) - mean_x));
}

}  // namespace nmoe
