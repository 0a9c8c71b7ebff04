// A microbatch on the device: tokens of sequences, and what else is known of each token.
//
// B sequences of S tokens each, T = B*S.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// What a batch may carry beside its tokens: a row with one value for each. A new one is an entry here and in
// kBatchRows; an objective (model/heads/objective.h) names it as one that it needs, and whoever makes batches fills it.
enum class BatchRow : uint8_t {
  kTargets,        // the token that follows; negative: no loss here
  kTargetWeights,  // what a target's loss counts; all count 1 in a batch without this row (only tests fill it yet)
};

struct BatchRowInfo {
  std::string_view name;
  DType dtype;  // of host and device; on the device, reals are stat
};
inline constexpr auto kBatchRows = std::to_array<BatchRowInfo>({
    {"targets", DType::kI32},
    {"target_weights", DType::kF32},
});
constexpr const BatchRowInfo& row_info(BatchRow row) { return kBatchRows[static_cast<size_t>(row)]; }

// The rows of a batch by their names, each as a Value: Value() for those that the batch does not have.
template <class Value>
class BatchRows {
 public:
  BatchRows() = default;
  BatchRows(std::initializer_list<std::pair<BatchRow, Value>> rows) {
    for (const auto& [row, value] : rows) (*this)[row] = value;
  }
  Value& operator[](BatchRow row) { return values_[static_cast<size_t>(row)]; }
  const Value& operator[](BatchRow row) const { return values_[static_cast<size_t>(row)]; }

 private:
  std::array<Value, kBatchRows.size()> values_{};
};

// Which part of which of a step's sequences a batch holds.
struct SequencePart {
  int64_t first_seq = 0;       // of the batch, among the sequences of the step on all ranks
  int64_t first_position = 0;  // in each of its sequences, of the tokens that are here
  int64_t whole_len = 0;       // tokens of a whole sequence; 0: those that are here

  bool is_whole(int64_t seq_len) const { return first_position == 0 && (whole_len == 0 || whole_len == seq_len); }
};

// What a depth of multi-token prediction reads: for position i and depth k, tokens i + k of its sequence and document
// as inputs, and what follows them as targets.
struct AheadRows {
  Tensor tokens;   // [T] i32; 0 beyond the end
  Tensor targets;  // [T] i32; negative: no loss here, as beyond the end
};

struct Batch {
  int64_t num_seqs = 0;
  int64_t seq_len = 0;          // tokens of each sequence that are here
  Tensor tokens;                // [T] i32
  BatchRows<Tensor> rows = {};  // [T] each
  Tensor positions;             // [T] i32, in the sequence or, with cu_seqlens, in the document
  // [C] i32, as in AttentionShape: a token sees only its own document. Undefined: every sequence is one document.
  Tensor cu_seqlens = {};
  // [C] i32, if documents are trees of pieces (TreeAttention) with the bounds in cu_seqlens: the piece that each one
  // continues. Such batches are for forward only. Undefined: every document begins at position 0.
  Tensor parents = {};
  SequencePart part = {};
  std::vector<AheadRows> ahead = {};  // of each depth, k = 1 first; for training alone

  int64_t num_tokens() const { return num_seqs * seq_len; }
};

}  // namespace nmoe
