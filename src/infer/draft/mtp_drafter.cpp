#include "infer/draft/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "infer/page_table.h"

namespace nmoe {

MtpDrafter::MtpDrafter(std::shared_ptr<PredictionPasses> passes)
    : passes_(std::move(passes)), guesses_(passes_->cached) {
  if (!passes_->cached.goes_back()) {
    throw usage_error("--draft mtp: states of the module's layers do not go back behind a wrong guess",
                      "leave out --draft");
  }
  for (int64_t slot = passes_->cached.num_slots(); slot-- > 0;) free_slots_.push_back(slot);
  for (int64_t page = passes_->cached.num_pages(); page-- > 0;) free_pages_.push_back(static_cast<int32_t>(page));
}

void MtpDrafter::ran(std::span<const RanRows> rows) {
  ran_.clear();
  for (const RanRows& some : rows) ran_[some.id] = some;
}

std::vector<DraftPass> MtpDrafter::draft(std::span<const DraftedText> texts) {
  ++num_calls_;
  std::vector<Going> going;
  for (const DraftedText& text : texts) {
    const auto ran = ran_.find(text.id);
    // The state of the position before the last token gives the first guess.
    const int64_t last = std::ssize(text.tokens) - 2;
    if (text.max_drafts <= 0 || ran == ran_.end()) continue;
    const RanRows& rows = ran->second;
    if (last < rows.position || last >= rows.position + rows.count) continue;
    if (Held* const held = hold(text, rows)) going.push_back({.text = &text, .held = held});
  }
  std::vector<DraftPass> passes;
  if (going.empty()) return passes;
  passes.push_back(run_first(going));
  for (int64_t made = 1;; ++made) {
    // Where nothing was finite there is no guess to go on from.
    std::erase_if(going, [made](const Going& one) {
      return std::ssize(*one.text->drafts) < made || one.text->max_drafts <= made;
    });
    if (going.empty()) return passes;
    passes.push_back(run_next(going));
  }
}

void MtpDrafter::end(uint64_t id) {
  const auto found = texts_.find(id);
  if (found == texts_.end()) return;
  free_slots_.push_back(found->second.slot);
  free_pages_.insert(free_pages_.end(), found->second.pages.begin(), found->second.pages.end());
  texts_.erase(found);
}

bool MtpDrafter::evict() {
  const auto oldest = least_recently_asked(texts_, num_calls_);
  if (oldest == texts_.end()) return false;
  end(oldest->first);
  return true;
}

MtpDrafter::Held* MtpDrafter::hold(const DraftedText& text, const RanRows& ran) {
  if (const auto found = texts_.find(text.id); found != texts_.end() && found->second.end != ran.position) {
    end(text.id);
  }
  if (!texts_.contains(text.id)) {
    if (free_slots_.empty() && !evict()) return nullptr;
    texts_[text.id] = {.slot = free_slots_.back(), .pages = {}, .begin = ran.position, .end = ran.position};
    free_slots_.pop_back();
  }
  Held& held = texts_.at(text.id);
  held.last_call = num_calls_;
  const int64_t first_page = std::ssize(held.pages), last = std::ssize(text.tokens) - 2;
  const int64_t num_pages = PageTable::pages_for(last - held.begin + text.max_drafts);
  while (std::ssize(free_pages_) < num_pages - first_page) {
    if (!evict()) {
      end(text.id);
      return nullptr;
    }
  }
  for (int64_t page = first_page; page < num_pages; ++page) {
    held.pages.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  passes_->cached.set_pages(held.slot, first_page, std::span(held.pages).subspan(static_cast<size_t>(first_page)));
  return &held;
}

DraftPass MtpDrafter::run_first(std::span<Going> going) {
  std::vector<CacheRow> rows;
  std::vector<int32_t> wanted, sources;
  std::vector<const DraftedText*> texts;
  for (Going& one : going) {
    const RanRows& ran = ran_.at(one.text->id);
    const auto& tokens = one.text->tokens;
    for (int64_t position = ran.position; position + 1 < std::ssize(tokens); ++position) {
      rows.push_back({.token = tokens[static_cast<size_t>(position + 1)],
                      .slot = static_cast<int32_t>(one.held->slot),
                      .position = static_cast<int32_t>(position - one.held->begin)});
      sources.push_back(static_cast<int32_t>(ran.first_row + position - ran.position));
    }
    one.held->end = std::ssize(tokens) - 1;
    one.source = static_cast<int32_t>(passes_->model.max_rows() + std::ssize(wanted));
    wanted.push_back(static_cast<int32_t>(rows.size()) - 1);
    texts.push_back(one.text);
  }
  passes_->model.set_sources(sources);
  return guesses_.run(rows, wanted, texts);
}

DraftPass MtpDrafter::run_next(std::span<Going> going) {
  std::vector<CacheRow> rows;
  std::vector<int32_t> wanted, sources;
  std::vector<const DraftedText*> texts;
  for (Going& one : going) {
    const std::vector<int32_t>& drafts = *one.text->drafts;
    rows.push_back({.token = drafts.back(),
                    .slot = static_cast<int32_t>(one.held->slot),
                    .position = static_cast<int32_t>(one.held->end - one.held->begin + std::ssize(drafts) - 1)});
    sources.push_back(one.source);
    one.source = static_cast<int32_t>(passes_->model.max_rows() + std::ssize(wanted));
    wanted.push_back(static_cast<int32_t>(wanted.size()));
    texts.push_back(one.text);
  }
  passes_->model.set_sources(sources);
  return guesses_.run(rows, wanted, texts);
}

}  // namespace nmoe
