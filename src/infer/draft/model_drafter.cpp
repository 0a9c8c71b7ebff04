#include "infer/draft/model_drafter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nmoe {
namespace {

void check_model(const CachedModel& model, const CachedModel& target) {
  const Tokenizer &own = model.tokenizer(), &other = target.tokenizer();
  constexpr const char* kRemedy = "give --draft a checkpoint that was trained with the same tokenizer";
  if (own.vocab_size() != other.vocab_size()) {
    throw usage_error(
        fmt::format("the drafting model's vocabulary has {} ids, the model's {}", own.vocab_size(), other.vocab_size()),
        kRemedy);
  }
  if (own.hash() != other.hash()) {
    throw usage_error("the drafting model has another tokenizer than the model", kRemedy);
  }
  if (!model.goes_back()) {
    throw usage_error("the drafting model has layers whose states do not go back behind a wrong guess",
                      "give --draft a checkpoint without recurrent layers");
  }
  NMOE_CHECK(model.num_slots() >= target.num_slots() && model.capacity() >= target.capacity(),
             "{} slots of {} positions to draft for {} of {}", model.num_slots(), model.capacity(), target.num_slots(),
             target.capacity());
}

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<CachedModel> model, const CachedModel& target)
    : model_((check_model(*model, target), std::move(model))), slots_(*model_), passes_(*model_) {}

int32_t ModelDrafter::Going::token_at(int64_t position) const {
  const int64_t guess = position - std::ssize(text->tokens);
  return guess < 0 ? text->tokens[static_cast<size_t>(position)] : (*text->drafts)[static_cast<size_t>(guess)];
}

int64_t ModelDrafter::num_unread(uint64_t id, int64_t num_tokens) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? num_tokens : num_tokens - found->second.num_sure;
}

std::vector<DraftPass> ModelDrafter::draft(std::span<const DraftedText> texts) {
  ++num_calls_;
  std::vector<Going> going;
  for (const DraftedText& text : texts) {
    if (text.max_drafts <= 0) continue;
    if (Held* const held = hold(text)) going.push_back({&text, held});
  }
  std::vector<DraftPass> passes;
  while (run_pass(going, passes)) {
  }
  return passes;
}

void ModelDrafter::end(uint64_t id) {
  const auto found = texts_.find(id);
  if (found == texts_.end()) return;
  const Held& held = found->second;
  slots_.leave(held.slot, std::span(held.ids).first(static_cast<size_t>(held.num_sure)));
  texts_.erase(found);
}

ModelDrafter::Held* ModelDrafter::hold(const DraftedText& text) {
  const int64_t size = std::ssize(text.tokens), num_positions = size + text.max_drafts - 1;
  if (!texts_.contains(text.id) && !enter(text, num_positions)) return nullptr;
  Held& held = texts_.at(text.id);
  held.last_call = num_calls_;
  while (!slots_.grow(held.slot, num_positions)) {
    if (!evict()) return nullptr;
  }
  // Guesses that were right stay. The last token is to be run for its logits.
  held.num_sure = std::min(held.num_sure, size - 1);
  const auto begin = static_cast<std::ptrdiff_t>(held.num_sure);
  const auto wrong =
      std::mismatch(held.ids.begin() + begin, held.ids.end(), text.tokens.begin() + begin, text.tokens.end() - 1).first;
  held.ids.erase(wrong, held.ids.end());
  held.num_sure = std::ssize(held.ids);
  return &held;
}

bool ModelDrafter::enter(const DraftedText& text, int64_t num_positions) {
  const std::span<const int32_t> before_last = text.tokens.first(text.tokens.size() - 1);
  for (;;) {
    if (const auto place = slots_.enter(before_last, num_positions, /*spare=*/0)) {
      const std::span<const int32_t> ids = before_last.first(static_cast<size_t>(place->num_held));
      texts_[text.id] = {.slot = place->slot,
                         .ids = std::vector(ids.begin(), ids.end()),
                         .num_sure = place->num_held,
                         .last_call = num_calls_};
      return true;
    }
    if (!evict()) return false;
  }
}

bool ModelDrafter::evict() {
  const auto oldest = least_recently_asked(texts_, num_calls_);
  if (oldest == texts_.end()) return false;
  end(oldest->first);
  return true;
}

bool ModelDrafter::run_pass(std::span<Going> going, std::vector<DraftPass>& passes) {
  std::vector<CacheRow> rows;
  std::vector<int32_t> wanted;
  std::vector<const DraftedText*> drawn;
  for (Going& one : going) {
    if (!one.goes_on()) continue;
    std::vector<int32_t>& ids = one.held->ids;
    while (std::ssize(rows) < model_->max_rows() && std::ssize(ids) < one.num_known()) {
      const int64_t position = std::ssize(ids);
      rows.push_back({.token = one.token_at(position),
                      .slot = static_cast<int32_t>(one.held->slot),
                      .position = static_cast<int32_t>(position)});
      ids.push_back(rows.back().token);
    }
    one.held->num_sure = std::min(std::ssize(one.text->tokens), std::ssize(ids));
    if (std::ssize(ids) < one.num_known()) continue;
    wanted.push_back(static_cast<int32_t>(rows.size()) - 1);
    drawn.push_back(one.text);
  }
  if (rows.empty()) return false;
  passes.push_back(passes_.run(rows, wanted, drawn));
  for (Going& one : going) {
    const std::span<const int32_t> sure = std::span(one.held->ids).first(static_cast<size_t>(one.held->num_sure));
    slots_.computed(one.held->slot, sure);
    one.stopped = std::ssize(one.held->ids) == one.num_known();  // it was drawn, and there was nothing finite
  }
  return true;
}

}  // namespace nmoe
