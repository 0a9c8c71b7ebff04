#include "train/loop/answers.h"

#include "base/error.h"
#include "data/stream/loader.h"

namespace nmoe {

namespace {

// Whether target i of the window is of an answer: the end of a document is not.
bool in_answer(AnswerCounter::Window window, size_t i) {
  return window.targets[i] != kNoTarget && window.ends[i + 1] == 0;
}

// Whether the window's last input ends a document, so that the last target begins one.
bool ends_document(AnswerCounter::Window window) { return window.ends[window.targets.size() - 1] != 0; }

}  // namespace

void AnswerCounter::end_answer() {
  answers_ += answer_ == Answer::kRight || answer_ == Answer::kWrong ? 1 : 0;
  correct_ += answer_ == Answer::kRight ? 1 : 0;
  answer_ = Answer::kNone;
}

// Of an answer that is not over at that window's end: the rank before counts it if it ends with the window; here, where
// it goes on, it is cut.
void AnswerCounter::begin_behind(Window window) {
  answer_ = in_answer(window, window.targets.size() - 1) ? Answer::kCut : Answer::kNone;
  document_ended_ = ends_document(window);
}

void AnswerCounter::end_before(Window window) {
  if (!in_answer(window, 0)) end_answer();
}

void AnswerCounter::add_window(Window window, std::span<const int32_t> predictions) {
  const std::span<const int32_t> targets = window.targets;
  NMOE_CHECK(!targets.empty() && window.ends.size() == targets.size() + 1 && predictions.size() == targets.size(),
             "{} targets, {} ends, {} predictions", targets.size(), window.ends.size(), predictions.size());
  bool whole_document = document_ended_;  // the window has it from its beginning
  if (answer_ != Answer::kNone && in_answer(window, 0)) answer_ = Answer::kCut;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (window.ends[i] != 0) whole_document = true;
    if (in_answer(window, i)) {
      if (answer_ == Answer::kNone) answer_ = whole_document ? Answer::kRight : Answer::kCut;
      if (answer_ == Answer::kRight && predictions[i] != targets[i]) answer_ = Answer::kWrong;
    } else {
      end_answer();
    }
  }
  document_ended_ = ends_document(window);
}

}  // namespace nmoe
