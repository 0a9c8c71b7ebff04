// Laws of loss over size, fitted to runs: what a larger model's loss will be, and how sure that is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace nmoe {

// What a run took and came to.
struct ScalingRun {
  double parameters = 0.0;  // active ones
  double tokens = 0.0;
  double flops = 0.0;
  double loss = 0.0;
};

// A number with half the width of its 95 % interval, if that is known.
struct Estimate {
  double value = 0.0;
  std::optional<double> half_width;
};

// What the loss is a law of.
enum class LawOf { kParameters, kTokens, kFlops, kParametersAndTokens };
std::string_view law_name(LawOf law);  // "parameters", ...

// loss = E + sum over terms of c (x / x0)^-a, with x0 the geometric mean of the runs' x: for parameters and tokens that
// is E + A / N^alpha + B / D^beta (Hoffmann et al., arXiv 2203.15556, eq. 2), for one quantity its special case
// (Henighan et al., arXiv 2010.14701, eq. 1.1).
//
// Fitted by least squares of relative deviations, (law - loss) / loss, which are those of logarithms while they are
// small; beyond kHuber they count linearly (Huber's loss), so that a run that went wrong does not bend the law. E and c
// are at least 0; exponents are searched from kLeastExponent to kLargestExponent.
//
// Intervals are by the delta method: the scatter s of the runs about the law, with as many degrees of freedom as there
// are more runs than numbers in the law, Student's t. They take the law's form for granted. There are none where there
// are no more runs than numbers, where these do not determine an exponent, or where it is at a bound.
class ScalingLaw {
 public:
  static constexpr double kHuber = 0.01;
  static constexpr double kLeastExponent = 0.02, kLargestExponent = 2.5;

  struct Term {
    double unit = 0.0;     // x0
    Estimate coefficient;  // c: how much loss there is to it at x0
    Estimate exponent;     // a; 0 where c is
  };

  // Error (usage): fewer than three sizes, of two quantities fewer than five pairs or one that hardly differs but with
  // the other.
  ScalingLaw(LawOf law, std::span<const ScalingRun> runs);

  LawOf of() const { return of_; }
  const Estimate& floor() const { return floor_; }  // E
  const std::vector<Term>& terms() const { return terms_; }
  double scatter() const { return scatter_; }  // standard deviation of relative deviations; 0 without degrees
  int64_t degrees() const { return degrees_; }

  // The mean loss of `seeds` runs like `size`, whose loss does not matter: their own scatter is in the interval.
  Estimate predict(const ScalingRun& size, int64_t seeds) const;

  // Of parameters and tokens: how many parameters a model should have for so many FLOPs, with as many per parameter and
  // token as the runs had in their geometric mean (eq. 4 of arXiv 2203.15556). The interval is a factor: value / (1 +
  // half_width) to value * (1 + half_width). Nothing where a term has no part in the law.
  std::optional<Estimate> optimal_parameters(double flops) const;
  double flops_per_parameter_token() const { return flops_per_parameter_token_; }

 private:
  struct Numbers;  // the law's
  Numbers numbers() const;
  double value(const Numbers& numbers, std::span<const double> logs) const;
  std::vector<double> logs_of(const ScalingRun& run) const;  // of x / x0, term by term
  void add_intervals(std::span<const ScalingRun> runs);
  // By the numbers that are free.
  std::vector<double> gradient(const Numbers& numbers, std::span<const double> logs) const;
  std::optional<double> deviation(std::span<const double> gradient) const;

  LawOf of_;
  Estimate floor_;
  std::vector<Term> terms_;
  double scatter_ = 0.0, t_ = 0.0;
  int64_t degrees_ = 0;
  double flops_per_parameter_token_ = 0.0;
  std::vector<size_t> free_;        // numbers that are not at a bound: 0 E, 1 + 2 j c of term j, 2 + 2 j its exponent
  std::vector<double> covariance_;  // [free, free]; empty: unknown
};

// A straight line through logarithms of loss and FLOPs, by least squares: what one would say without a law.
double naive_prediction(std::span<const ScalingRun> runs, double flops);

}  // namespace nmoe
