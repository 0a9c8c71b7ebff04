#include "train/answers.h"

#include "base/error.h"
#include "data/stream/loader.h"

namespace nmoe {

bool AnswerCounter::in_answer(int32_t target) const { return target != kNoTarget && target != eos_id_; }

void AnswerCounter::end_answer() {
  answers_ += answer_ == Answer::kRight || answer_ == Answer::kWrong ? 1 : 0;
  correct_ += answer_ == Answer::kRight ? 1 : 0;
  answer_ = Answer::kNone;
}

// Of an answer that is not over at that window's end: the rank before counts it if it ends with the window; here, where
// it goes on, it is cut.
void AnswerCounter::begin_behind(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
  answer_ = in_answer(targets.back()) ? Answer::kCut : Answer::kNone;
  document_ended_ = inputs.back() == eos_id_;
}

void AnswerCounter::end_before(int32_t next_target) {
  if (!in_answer(next_target)) end_answer();
}

void AnswerCounter::add_window(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                               std::span<const int32_t> predictions) {
  NMOE_CHECK(!inputs.empty() && targets.size() == inputs.size() && predictions.size() == inputs.size(),
             "{} inputs, {} targets, {} predictions", inputs.size(), targets.size(), predictions.size());
  bool whole_document = document_ended_;  // the window has it from its beginning
  if (answer_ != Answer::kNone && in_answer(targets.front())) answer_ = Answer::kCut;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == eos_id_) whole_document = true;
    if (in_answer(targets[i])) {
      if (answer_ == Answer::kNone) answer_ = whole_document ? Answer::kRight : Answer::kCut;
      if (answer_ == Answer::kRight && predictions[i] != targets[i]) answer_ = Answer::kWrong;
    } else {
      end_answer();
    }
  }
  document_ended_ = inputs.back() == eos_id_;
}

}  // namespace nmoe
