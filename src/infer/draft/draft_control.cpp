#include "infer/draft/draft_control.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace nmoe {

void DraftRate::judge(bool right) {
  right_ = kForget * right_ + (right ? 1.0 : 0.0);
  judged_ = kForget * judged_ + 1.0;
}

void StepTimes::record(int64_t rows, double seconds) {
  const auto [time, is_new] = seconds_.try_emplace(rows, seconds);
  if (is_new) return;
  const double counted = std::min(seconds, kMostTimes * time->second);
  time->second += (counted < time->second ? kShorter : kLonger) * (counted - time->second);
}

double StepTimes::seconds(int64_t rows) const {
  if (seconds_.empty()) return 0.0;
  const auto above = seconds_.lower_bound(rows);
  if (above != seconds_.end() && above->first == rows) return above->second;
  if (above == seconds_.begin()) return above->second;
  const auto [first_rows, first] = *std::prev(above);
  if (above != seconds_.end()) {
    const double part = static_cast<double>(rows - first_rows) / static_cast<double>(above->first - first_rows);
    return first + part * (above->second - first);
  }
  if (seconds_.size() == 1) return first;
  const auto [least_rows, least] = *seconds_.begin();
  const double slope = std::max(0.0, (first - least) / static_cast<double>(first_rows - least_rows));
  return first + slope * static_cast<double>(rows - first_rows);
}

void DraftControl::choose(int64_t num_texts, int64_t max_drafts, std::span<Offer> offers) {
  for (Offer& offer : offers) offer.chosen = 0;
  tokens_ ? choose_all(max_drafts, offers) : choose_best(num_texts, max_drafts, offers);
}

// One more of each text at a time, as long as there is room.
void DraftControl::choose_all(int64_t max_drafts, std::span<Offer> offers) const {
  for (int64_t i = 0; i < *tokens_; ++i) {
    for (Offer& offer : offers) {
      if (offer.num_drafts <= i || max_drafts == 0) continue;
      ++offer.chosen;
      --max_drafts;
    }
  }
}

double DraftControl::draft_seconds(int64_t rows) const {
  if (!drafts_take_time_ || rows == 0) return 0.0;
  const double known = draft_times_.seconds(rows);
  return rows <= draft_times_.most_rows() ? known : std::max(known, passes_.seconds(rows));
}

void DraftControl::choose_best(int64_t num_texts, int64_t max_drafts, std::span<Offer> offers) {
  struct Guess {
    double gain;
    size_t offer;
    int64_t place;  // among those of its text
  };
  std::vector<Guess> guesses;
  for (size_t i = 0; i < offers.size(); ++i) {
    double gain = 1.0;
    for (int64_t draft = 0; draft < offers[i].num_drafts; ++draft) {
      guesses.push_back({gain *= offers[i].rate, i, draft});
    }
  }
  // Those of a text stay in their order, since each is less likely than the one before.
  std::ranges::stable_sort(guesses, std::ranges::greater(), &Guess::gain);
  guesses.resize(std::min(guesses.size(), static_cast<size_t>(std::max<int64_t>(0, max_drafts))));
  if (guesses.empty() || times_.seconds(num_texts) == 0.0) return;

  // [i]: a step with the first i of them.
  std::vector<double> seconds = {times_.seconds(num_texts)};
  std::array<int64_t, kMostDrafts> texts_at{};  // that have a guess in that place
  double drafting = 0.0;
  for (size_t i = 0; i < guesses.size(); ++i) {
    int64_t& texts = texts_at[static_cast<size_t>(guesses[i].place)];
    drafting += draft_seconds(texts + 1) - draft_seconds(texts);
    ++texts;
    seconds.push_back(times_.seconds(num_texts + static_cast<int64_t>(i) + 1) + drafting);
  }
  double tokens = static_cast<double>(num_texts), best = tokens / seconds[0];
  size_t count = 0;
  for (size_t i = 0; i < guesses.size(); ++i) {
    tokens += guesses[i].gain;
    const double speed = tokens / seconds[i + 1];
    if (speed > best) best = speed, count = i + 1;
  }
  if (count == 0 && drafts_take_time_) return probe_one(num_texts, offers);
  // Twice as many or, of none, one of every text: is it still true that they do not pay?
  const size_t wider = std::min(guesses.size(), count == 0 ? offers.size() : 2 * count);
  if (const double more = seconds[wider] - seconds[count]; wider > count && more <= probe_seconds_) {
    probe_seconds_ = 0.0;
    count = wider;
  }
  num_guessing_ = count == 0 ? 0 : num_guessing_ + 1;
  if (num_guessing_ > kStepsWithGuesses) num_guessing_ = 0, count = 0;
  for (size_t i = 0; i < count; ++i) ++offers[guesses[i].offer].chosen;
}

void DraftControl::probe_one(int64_t num_texts, std::span<Offer> offers) {
  Offer* least = nullptr;
  for (Offer& offer : offers) {
    if (offer.num_drafts > 0 && (least == nullptr || offer.num_unread < least->num_unread)) least = &offer;
  }
  const double more = draft_seconds(std::max<int64_t>(1, least->num_unread)) + times_.seconds(num_texts + 1) -
                      times_.seconds(num_texts);
  if (more > probe_seconds_) return;
  probe_seconds_ -= std::max(0.0, more);
  least->chosen = 1;
}

void DraftControl::record(int64_t rows, double seconds) {
  times_.record(rows, seconds);
  passes_.record(rows, seconds);
  const double share = kProbeShare * seconds;
  const double most = drafts_take_time_ ? std::max(probe_seconds_, kSavedSteps * share) : probe_seconds_ + share;
  probe_seconds_ = std::min(probe_seconds_ + share, most);
}

void DraftControl::record_drafts(std::span<const DraftPass> passes) {
  for (const DraftPass& pass : passes) draft_times_.record(pass.rows, pass.seconds);
}

}  // namespace nmoe
