// A task's items as tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "eval/scorer.h"
#include "eval/task_data.h"

namespace nmoe {

// A text as the model sees it: the ids that begin every text, then the text's, at most `max_tokens` of them.
struct TokenRules {
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> begin_ids;  // such as the end of the document before it
  int64_t max_tokens = 0;
};

struct EvalItem {
  std::vector<ScoredText> texts;  // one for each option; for language modelling, documents and prompts one
  int64_t cropped = 0;            // of the texts, how many lost tokens at their beginning
  int64_t bytes = 0;              // that the scored tokens stand for
};

// Item i of a task of choices, schemas or language modelling, as nanochat's core_eval.py does: texts are tokenized
// as a whole. For choices, the tokens after the prefix that all share are scored; for schemas, the suffix that all
// share; for language modelling, those after the text without its answer; at least one token of each. Texts that are
// too long lose their beginning. Error (runtime) where that would be more than what comes before the scored tokens,
// where a text has no tokens, or where the ids of the text without its answer are not how those of the whole begin.
//
// For written answers it is the prompt, none of whose tokens is scored, cropped to leave room for an answer; Error
// (runtime) where there is none.
EvalItem make_item(const TaskData& data, int64_t i, const TokenRules& rules);

// Documents in windows of at most max_tokens, of which every token but those of begin_ids is scored once: a window
// begins with the last token of the one before.
std::vector<EvalItem> make_text_items(std::string_view document, const TokenRules& rules);

}  // namespace nmoe
