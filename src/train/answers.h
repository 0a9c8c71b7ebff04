// How many answers a model gets right.
//
// An answer is a run of targets with a loss, up to one without or the end of the document, which is no part of it. It
// is right when every token of it is the one predicted from the true tokens before it.
//
// Windows cut documents (data/stream/order.h). An answer counts when the window has all of it and all of its document
// before it: nobody can answer a question he has not seen.
#pragma once

#include <cstdint>
#include <span>

namespace nmoe {

class AnswerCounter {
 public:
  explicit AnswerCounter(int32_t eos_id) : eos_id_(eos_id) {}

  // The windows of a split in order, from its first or from behind another. One element a position in each; targets may
  // be kNoTarget (data/stream/loader.h).
  void add_window(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  std::span<const int32_t> predictions);

  // For whoever counts some of the windows, while others count the rest: the window before the first of these, and the
  // first target of the window behind the last, which says whether an answer that ends at the border is whole.
  void begin_behind(std::span<const int32_t> inputs, std::span<const int32_t> targets);
  void end_before(int32_t next_target);

  int64_t answers() const { return answers_; }
  int64_t correct() const { return correct_; }

 private:
  enum class Answer { kNone, kRight, kWrong, kCut };  // the one that is being read, so far
  bool in_answer(int32_t target) const;
  void end_answer();

  int32_t eos_id_;
  Answer answer_ = Answer::kNone;
  bool document_ended_ = true;  // with the last input
  int64_t answers_ = 0;
  int64_t correct_ = 0;
};

}  // namespace nmoe
