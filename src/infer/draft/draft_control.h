// How many guesses of each text a step runs, so that texts get the most tokens a second.
//
// A step of R rows takes t(R), as steps of so many rows have taken lately, and a drafter's pass of R rows d(R); 0 of a
// drafter whose guesses take no time. A text whose guesses have been right at a rate r is given r^i tokens more by its
// i-th guess, which is made in a pass with the i-th guesses of others. Those that are likeliest to be right are run, as
// many as make
//
//   (texts + sum of r^i) / (t(texts + guesses) + sum over i of d(texts that have an i-th guess))
//
// largest: none, where that is no more than without. What is not run costs nothing, but is still compared with what
// the text then says, where it was guessed for nothing. At times more are run than that, so that t, d and r are known
// of more rows, and lately; by what is known that takes at most kProbeShare of the time. Where drafting takes time and
// does not pay, that is a single guess of the text of which the drafter has least to read before it, and nothing is
// read otherwise: of any 1,000 steps that takes at most 3 %.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "infer/draft/drafter.h"

namespace nmoe {

// How often a text's guesses have been right, later ones counting more; a little of `prior`, which is what others' are,
// before anything is known.
class DraftRate {
 public:
  static constexpr double kPriorRate = 0.5;

  void judge(bool right);
  double rate(double prior = kPriorRate) const { return (right_ + prior * kPriorWeight) / (judged_ + kPriorWeight); }

 private:
  static constexpr double kForget = 0.95, kPriorWeight = 2.0;
  double right_ = 0.0, judged_ = 0.0;
};

// The time of passes by their number of rows.
class StepTimes {
 public:
  void record(int64_t rows, double seconds);
  // The largest number of rows of which one is known; 0: none is.
  int64_t most_rows() const { return seconds_.empty() ? 0 : seconds_.rbegin()->first; }
  // Interpolated between those that are known. Beyond them the largest that is known, or, with two of them, as many
  // seconds a row more as they say. 0: none is known.
  double seconds(int64_t rows) const;

 private:
  // What a new time counts beside those before, and as how many times the known one at most: what disturbs a step makes
  // it longer.
  static constexpr double kShorter = 0.5, kLonger = 0.25, kMostTimes = 2.0;
  std::map<int64_t, double> seconds_;
};

class DraftControl {
 public:
  static constexpr double kProbeShare = 0.02;
  // After so many steps in a row with guesses one has none: whether they pay depends on how long that takes.
  static constexpr int64_t kStepsWithGuesses = 64;
  // Where drafting takes time, a probe may take what so many steps have saved up for it.
  static constexpr double kSavedSteps = 500.0;

  // `tokens`: DraftOptions'; `drafts_take_time`: Drafter's.
  explicit DraftControl(std::optional<int64_t> tokens, bool drafts_take_time = false)
      : tokens_(tokens), drafts_take_time_(drafts_take_time) {}

  struct Offer {
    int64_t num_drafts = 0;  // that there are or, where drafting takes time, that there may be
    double rate = 0.0;       // DraftRate's of the text
    int64_t num_unread = 0;  // Drafter's
    int64_t chosen = 0;      // = of these, the first so many are run
  };
  // For a step in which `num_texts` write, those of the offers among them, that has room for `max_drafts` in all.
  void choose(int64_t num_texts, int64_t max_drafts, std::span<Offer> offers);
  // A step of so many rows, all of texts that write, has taken so long.
  void record(int64_t rows, double seconds);
  // The same for one that reads prompts, too.
  void record_reading(int64_t rows, double seconds) { passes_.record(rows, seconds); }
  void record_drafts(std::span<const DraftPass> passes);

 private:
  void choose_all(int64_t max_drafts, std::span<Offer> offers) const;
  void choose_best(int64_t num_texts, int64_t max_drafts, std::span<Offer> offers);
  // One guess of the text of which least is to be read, if what is saved up is enough for it.
  void probe_one(int64_t num_texts, std::span<Offer> offers);
  // d(rows); where it is not known of so many, it is taken to be no less than the model's own pass.
  double draft_seconds(int64_t rows) const;

  std::optional<int64_t> tokens_;
  bool drafts_take_time_;
  StepTimes times_, draft_times_;
  StepTimes passes_;            // all of the model's
  double probe_seconds_ = 0.0;  // that may be spent
  int64_t num_guessing_ = 0;    // steps in a row with guesses
};

}  // namespace nmoe
