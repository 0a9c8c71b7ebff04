#include "train/validation.h"

#include <algorithm>
#include <numbers>

#include "train/answers.h"

namespace nmoe {

std::vector<int32_t> token_byte_counts(const Tokenizer& tokenizer) {
  std::vector<int32_t> counts(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < counts.size(); ++id) {
    counts[id] = static_cast<int32_t>(tokenizer.token_bytes(static_cast<int32_t>(id)).size());
  }
  return counts;
}

double ValidationResult::loss() const { return nats / static_cast<double>(tokens); }

double ValidationResult::bits_per_byte() const { return nats / (std::numbers::ln2 * static_cast<double>(bytes)); }

double ValidationResult::answers_correct_share() const {
  return static_cast<double>(answers_correct) / static_cast<double>(answers);
}

ValidationResult& ValidationResult::operator+=(const ValidationResult& other) {
  nats += other.nats;
  tokens += other.tokens;
  bytes += other.bytes;
  answers += other.answers;
  answers_correct += other.answers_correct;
  return *this;
}

ValidationResult validate(Engine& engine, const SequenceReader& split, const std::vector<int32_t>& token_bytes,
                          int64_t max_seqs, int64_t microbatch_seqs) {
  const int64_t num_windows = split.num_windows(0);
  const int64_t num_seqs = max_seqs == 0 ? num_windows : std::min(max_seqs, num_windows);
  const size_t capacity = static_cast<size_t>(microbatch_seqs * split.seq_len());
  std::vector<SequenceRef> refs;
  std::vector<int32_t> inputs(capacity), targets(capacity);
  std::vector<float> losses(capacity);
  std::vector<int32_t> predictions(split.has_mask(0) ? capacity : 0);
  AnswerCounter answers(split.eos_id());
  Documents documents;
  ValidationResult result;
  for (int64_t first = 0; first < num_seqs; first += microbatch_seqs) {
    const int64_t count = std::min(microbatch_seqs, num_seqs - first);
    const size_t size = static_cast<size_t>(count * split.seq_len());
    const std::span batch_inputs(inputs.data(), size), batch_targets(targets.data(), size);
    // The last batch is filled up with windows that have no loss: another shape might need what was not planned.
    std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(size), inputs.end(), 0);
    std::fill(targets.begin() + static_cast<std::ptrdiff_t>(size), targets.end(), kNoTarget);
    refs.clear();
    for (int64_t window = first; window < first + count; ++window) refs.push_back({0, window});
    split.read(refs, batch_inputs, batch_targets);
    if (engine.masks_documents()) {
      find_documents(inputs, microbatch_seqs, split.seq_len(), split.eos_id(), documents);
    }
    const std::span batch_predictions(predictions.data(), predictions.empty() ? 0 : size);
    engine.evaluate(inputs, targets, losses, documents, predictions);
    const auto window = static_cast<size_t>(split.seq_len());
    for (size_t i = 0; i < batch_predictions.size(); i += window) {
      answers.add_window(batch_inputs.subspan(i, window), batch_targets.subspan(i, window),
                         batch_predictions.subspan(i, window));
    }
    for (size_t i = 0; i < size; ++i) {
      if (batch_targets[i] == kNoTarget) continue;
      const int32_t bytes = token_bytes[static_cast<size_t>(batch_targets[i])];
      if (bytes == 0) continue;
      result.nats += static_cast<double>(losses[i]);
      result.bytes += bytes;
      ++result.tokens;
    }
  }
  result.answers = answers.answers();
  result.answers_correct = answers.correct();
  return result;
}

}  // namespace nmoe
