#include "eval/eval_item.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace nmoe {
namespace {

std::vector<int32_t> encode(std::string_view text, const TokenRules& rules) {
  std::vector<int32_t> ids = rules.begin_ids;
  rules.tokenizer->encode(text, ids);
  return ids;
}

// How many elements all lists begin with alike, or, from_end, end with; less than the shortest list has.
int64_t common_length(std::span<const ScoredText> texts, bool from_end) {
  const std::vector<int32_t>& first = texts.front().tokens;
  int64_t common = std::ssize(first);
  for (const ScoredText& text : texts) common = std::min(common, std::ssize(text.tokens));
  --common;
  for (const ScoredText& text : texts) {
    const auto equal = [&](int64_t i) {
      const int64_t a = from_end ? std::ssize(first) - 1 - i : i, b = from_end ? std::ssize(text.tokens) - 1 - i : i;
      return first[static_cast<size_t>(a)] == text.tokens[static_cast<size_t>(b)];
    };
    int64_t same = 0;
    while (same < common && equal(same)) ++same;
    common = same;
  }
  return common;
}

EvalItem make_prompt(const TaskData& data, int64_t i, const TokenRules& rules) {
  std::vector<int32_t> tokens = encode(data.texts_of(i).front(), rules);
  const int64_t room = rules.max_tokens - data.task().generation.max_tokens;
  if (tokens.empty() || room < 1) {
    throw runtime_error(
        fmt::format("task {}, item {}: a prompt of {} tokens and an answer of up to {} in {}", data.task().name, i,
                    tokens.size(), data.task().generation.max_tokens, rules.max_tokens),
        "allow longer texts (--context), lower the task's max_tokens, or mend the row");
  }
  EvalItem item;
  if (std::ssize(tokens) > room) {
    item.cropped = 1;
    tokens.erase(tokens.begin(), tokens.end() - room);
  }
  const int64_t size = std::ssize(tokens);
  item.texts.push_back({.tokens = std::move(tokens), .begin = size});
  return item;
}

void set_spans(const TaskData& data, int64_t i, EvalItem& item, std::span<const int32_t> without) {
  switch (data.task().kind) {
    case TaskKind::kMultipleChoice: {
      const int64_t begin = common_length(item.texts, /*from_end=*/false);
      for (ScoredText& text : item.texts) text.begin = begin;
      break;
    }
    case TaskKind::kSchema: {
      const int64_t size = common_length(item.texts, /*from_end=*/true);
      for (ScoredText& text : item.texts) text.begin = std::ssize(text.tokens) - size;
      break;
    }
    default: {
      ScoredText& text = item.texts.front();
      text.begin = std::ssize(without);
      if (without.size() >= text.tokens.size() || !std::equal(without.begin(), without.end(), text.tokens.begin())) {
        throw runtime_error(
            fmt::format(
                "task {}, item {}: the tokens of the text without its answer are not how those of the whole text "
                "begin",
                data.task().name, i),
            "the tokenizer joins the prompt's end with the answer: give the task another delimiter, or leave it out");
      }
    }
  }
}

}  // namespace

EvalItem make_item(const TaskData& data, int64_t i, const TokenRules& rules) {
  if (data.task().is_generated()) return make_prompt(data, i, rules);
  std::vector<std::string> texts = data.texts_of(i);
  std::vector<int32_t> without;
  if (data.task().kind == TaskKind::kLanguageModeling) {
    without = encode(texts.front(), rules);
    texts.erase(texts.begin());
  }
  EvalItem item;
  for (const std::string& text : texts) {
    item.texts.push_back({.tokens = encode(text, rules)});
    if (item.texts.back().tokens.empty()) {
      throw runtime_error(fmt::format("task {}, item {}: an option has no tokens", data.task().name, i),
                          "mend the row, or leave the task out");
    }
  }
  set_spans(data, i, item, without);
  for (ScoredText& text : item.texts) {
    const int64_t too_many = std::ssize(text.tokens) - rules.max_tokens;
    if (too_many > 0) {
      ++item.cropped;
      text.tokens.erase(text.tokens.begin(), text.tokens.begin() + too_many);
      text.begin -= too_many;
    }
    // The first token of all has nothing before it.
    if (text.begin < 1 && (too_many > 0 || text.tokens.size() < 2)) {
      throw runtime_error(fmt::format("task {}, item {}: {} tokens have to be scored, and a text may have {}",
                                      data.task().name, i, std::ssize(text.tokens) - text.begin, rules.max_tokens),
                          "allow longer texts (--context), or leave the task out");
    }
    text.begin = std::max<int64_t>(text.begin, 1);
    for (auto id = text.tokens.begin() + text.begin; id != text.tokens.end(); ++id) {
      item.bytes += std::ssize(rules.tokenizer->token_bytes(*id));
    }
  }
  return item;
}

std::vector<EvalItem> make_text_items(std::string_view document, const TokenRules& rules) {
  const std::vector<int32_t> ids = encode(document, rules);
  NMOE_CHECK(rules.max_tokens >= 2, "windows of {} tokens", rules.max_tokens);
  std::vector<EvalItem> items;
  const int64_t size = std::ssize(ids);
  for (int64_t first = 0; first + 1 < size; first += rules.max_tokens - 1) {
    const int64_t end = std::min(size, first + rules.max_tokens);
    EvalItem& item = items.emplace_back();
    item.texts.push_back({.tokens = {ids.begin() + first, ids.begin() + end}, .begin = 1});
    for (auto id = ids.begin() + first + 1; id != ids.begin() + end; ++id) {
      item.bytes += std::ssize(rules.tokenizer->token_bytes(*id));
    }
  }
  return items;
}

}  // namespace nmoe
