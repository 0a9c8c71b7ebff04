#include "infer/draft/guess_passes.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace nmoe {

DraftPass GuessPasses::run(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
                           std::span<const DraftedText* const> texts) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  model_.samples() && !wanted.empty() ? sample(rows, wanted, texts) : draw(rows, wanted, texts);
  return {.rows = std::ssize(rows), .seconds = std::chrono::duration<double>(Clock::now() - begin).count()};
}

void GuessPasses::draw(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
                       std::span<const DraftedText* const> texts) {
  const LogitRows logits = model_.run(rows, wanted, /*with_sums=*/false);
  for (size_t i = 0; i < texts.size(); ++i) {
    const DraftedText& text = *texts[i];
    const std::span<const float> all =
        logits.from(i).logits.first(static_cast<size_t>(model_.tokenizer().vocab_size()));
    if (!std::isfinite(*std::ranges::max_element(all))) continue;
    seen_.clear();
    if (text.sampling->repetition_penalty != 1.0) {
      seen_.assign(text.seen->ids().begin(), text.seen->ids().end());
      seen_.insert(seen_.end(), text.drafts->begin(), text.drafts->end());
    }
    const auto position = static_cast<uint64_t>(text.num_written + std::ssize(*text.drafts));
    text.drafts->push_back(sampler_.sample(all, *text.sampling, position, seen_));
  }
}

void GuessPasses::sample(std::span<const CacheRow> rows, std::span<const int32_t> wanted,
                         std::span<const DraftedText* const> texts) {
  std::vector<TokenDraw> draws;
  std::vector<CachedModel::IdOfRow> seen;
  for (size_t i = 0; i < texts.size(); ++i) {
    const DraftedText& text = *texts[i];
    draws.push_back(token_draw(*text.sampling, text.num_written + std::ssize(*text.drafts)));
    if (text.sampling->repetition_penalty == 1.0) continue;
    for (const int32_t id : ids_with(*text.seen, *text.drafts)) {
      seen.push_back({.wanted_idx = static_cast<int32_t>(i), .id = id});
    }
  }
  const std::span<const int32_t> tokens = model_.sample(rows, wanted, draws, seen, {}).tokens;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (tokens[i] >= 0) texts[i]->drafts->push_back(tokens[i]);
  }
}

}  // namespace nmoe
