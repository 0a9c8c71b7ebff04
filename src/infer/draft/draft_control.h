// How many guesses of each text a step runs, so that texts get the most tokens a second.
//
// A step of R rows takes t(R), as steps of so many rows have taken lately. A text whose guesses have been right at a
// rate r is given r^i tokens more by its i-th guess. Those that are likeliest to be right are run, as many as make
//
//   (texts + sum of r^i) / t(texts + guesses)
//
// largest: none, where that is no more than without. What is not run costs nothing, but is still compared with what
// the text then says. At times more are run than that, so that t is known of more rows, and lately; by what is known
// that takes at most kProbeShare of the time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace nmoe {

// How often a text's guesses have been right, later ones counting more; a little of what others' are before anything
// is known.
class DraftRate {
 public:
  void judge(bool right);
  double rate() const { return (right_ + kPriorRate * kPriorWeight) / (judged_ + kPriorWeight); }

 private:
  static constexpr double kForget = 0.95, kPriorRate = 0.5, kPriorWeight = 2.0;
  double right_ = 0.0, judged_ = 0.0;
};

// The time of steps by their number of rows.
class StepTimes {
 public:
  void record(int64_t rows, double seconds);
  bool knows(int64_t rows) const { return seconds_.contains(rows); }
  // Interpolated between those that are known. Beyond them the largest that is known, or, with two of them, as many
  // seconds a row more as they say. 0: none is known.
  double seconds(int64_t rows) const;

 private:
  // What a new time counts beside those before: what disturbs a step makes it longer.
  static constexpr double kShorter = 0.5, kLonger = 0.25;
  std::map<int64_t, double> seconds_;
};

class DraftControl {
 public:
  static constexpr double kProbeShare = 0.02;

  // `tokens`: DraftOptions'.
  explicit DraftControl(std::optional<int64_t> tokens) : tokens_(tokens) {}

  struct Offer {
    int64_t num_drafts = 0;  // that there are
    double rate = 0.0;       // DraftRate's of the text
    int64_t chosen = 0;      // = of these, the first so many are run
  };
  // For a step in which `num_texts` write, those of the offers among them, that has room for `max_drafts` in all.
  void choose(int64_t num_texts, int64_t max_drafts, std::span<Offer> offers);
  // A step of so many rows, all of texts that write, has taken so long.
  void record(int64_t rows, double seconds);

 private:
  void choose_all(int64_t max_drafts, std::span<Offer> offers) const;
  void choose_best(int64_t num_texts, int64_t max_drafts, std::span<Offer> offers);

  std::optional<int64_t> tokens_;
  StepTimes times_;
  double probe_seconds_ = 0.0;  // that may be spent
};

}  // namespace nmoe
