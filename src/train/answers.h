// Counts how many answers a model gets right.
//
// An answer is a sequence of targets with a loss, up to one without or up to the end of the document, which is not part
// of it. It is right if every token is the one predicted from the true tokens before it.
//
// Windows cut documents (data/stream/order.h). An answer counts only if the window contains all of it and all of its
// document before it, since otherwise the question may be missing.
#pragma once

#include <cstdint>
#include <span>

namespace nmoe {

class AnswerCounter {
 public:
  explicit AnswerCounter(int32_t eos_id) : eos_id_(eos_id) {}

  // Called for the windows of a split in order, from the first one or following begin_behind(). Each span has one
  // element per position; targets may be kNoTarget (data/stream/loader.h).
  void add_window(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  std::span<const int32_t> predictions);

  // For counting only a range of the windows: takes the window before the range, and the first target after it, which
  // shows whether an answer that ends at the border is complete.
  void begin_behind(std::span<const int32_t> inputs, std::span<const int32_t> targets);
  void end_before(int32_t next_target);

  int64_t answers() const { return answers_; }
  int64_t correct() const { return correct_; }

 private:
  enum class Answer { kNone, kRight, kWrong, kCut };  // the state of the current answer
  bool in_answer(int32_t target) const;
  void end_answer();

  int32_t eos_id_;
  Answer answer_ = Answer::kNone;
  bool document_ended_ = true;  // with the last input
  int64_t answers_ = 0;
  int64_t correct_ = 0;
};

}  // namespace nmoe
