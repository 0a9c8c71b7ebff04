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
  // A window of S positions, as SequenceReader::read (data/stream/loader.h) gives it.
  struct Window {
    std::span<const int32_t> targets;  // [S], some kNoTarget
    std::span<const uint8_t> ends;     // [S + 1]: of inputs and look-ahead, not 0 for the last of a document
  };

  // Called for the windows of a split in order, from the first one or following begin_behind(), with what was
  // predicted: [S].
  void add_window(Window window, std::span<const int32_t> predictions);

  // For counting only a range of the windows: takes the window before the range, and the one after it, whose first
  // target shows whether an answer that ends at the border is complete.
  void begin_behind(Window window);
  void end_before(Window window);

  int64_t answers() const { return answers_; }
  int64_t correct() const { return correct_; }

 private:
  enum class Answer { kNone, kRight, kWrong, kCut };  // the state of the current answer
  void end_answer();

  Answer answer_ = Answer::kNone;
  bool document_ended_ = true;  // with the last input
  int64_t answers_ = 0;
  int64_t correct_ = 0;
};

}  // namespace nmoe
