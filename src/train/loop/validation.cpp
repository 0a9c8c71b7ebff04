#include "train/loop/validation.h"

#include <algorithm>
#include <numbers>

#include "train/loop/answers.h"

namespace nmoe {

std::vector<int32_t> token_byte_counts(const Tokenizer& tokenizer) {
  std::vector<int32_t> counts(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < counts.size(); ++id) {
    counts[id] = static_cast<int32_t>(tokenizer.token_bytes(static_cast<int32_t>(id)).size());
  }
  return counts;
}

double ValidationResult::loss() const { return nats / static_cast<double>(tokens); }

double ValidationResult::bits_per_byte() const { return text_nats / (std::numbers::ln2 * static_cast<double>(bytes)); }

double ValidationResult::special_share() const { return static_cast<double>(special) / static_cast<double>(tokens); }

double ValidationResult::special_loss() const { return (nats - text_nats) / static_cast<double>(special); }

double ValidationResult::special_predicted_share() const {
  return static_cast<double>(special_predicted) / static_cast<double>(special);
}

double ValidationResult::answers_correct_share() const {
  return static_cast<double>(answers_correct) / static_cast<double>(answers);
}

ValidationResult& ValidationResult::operator+=(const ValidationResult& other) {
  nats += other.nats;
  tokens += other.tokens;
  text_nats += other.text_nats;
  bytes += other.bytes;
  special += other.special;
  special_predicted += other.special_predicted;
  answers += other.answers;
  answers_correct += other.answers_correct;
  return *this;
}

namespace {

// Windows [range.begin, range.end) of a split, in `num_batches` batches: as many on every rank, each with as many
// windows as are left. Ranks run the model together.
ValidationResult validate_range(Engine& engine, const SequenceReader& split, const std::vector<int32_t>& token_bytes,
                                RankSlice range, int64_t num_seqs, int64_t microbatch_seqs, int64_t num_batches) {
  const auto seq_len = static_cast<size_t>(split.seq_len());
  const size_t capacity = static_cast<size_t>(microbatch_seqs) * seq_len;
  const bool has_mask = split.has_mask(0);
  std::vector<SequenceRef> refs;
  std::vector<int32_t> inputs(capacity), targets(capacity);
  std::vector<float> losses(capacity);
  std::vector<int32_t> predictions(has_mask ? capacity : 0);
  const bool finds_documents = has_mask || engine.masks_documents();
  std::vector<uint8_t> ends(finds_documents ? capacity + static_cast<size_t>(microbatch_seqs) : 0);
  AnswerCounter answers;
  Documents documents;
  ValidationResult result;
  const auto read = [&](int64_t first, int64_t count) {
    refs.clear();
    for (int64_t window = first; window < first + count; ++window) refs.push_back({0, window});
    const size_t size = static_cast<size_t>(count) * seq_len;
    split.read(refs, split.seq_len(), std::span(inputs).first(size), std::span(targets).first(size),
               std::span(ends).first(finds_documents ? size + static_cast<size_t>(count) : 0));
  };
  const auto window = [&](size_t index) -> AnswerCounter::Window {
    return {std::span(targets).subspan(index * seq_len, seq_len),
            std::span(ends).subspan(index * (seq_len + 1), seq_len + 1)};
  };
  if (has_mask && range.begin > 0) {
    read(range.begin - 1, 1);
    answers.begin_behind(window(0));
  }
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const int64_t first = range.begin + batch * microbatch_seqs;
    const int64_t count = std::clamp<int64_t>(range.end - first, 0, microbatch_seqs);
    const size_t size = static_cast<size_t>(count) * seq_len;
    const std::span batch_targets(targets.data(), size);
    // The last batch is filled up with windows that have no loss: another shape might need what was not planned.
    std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(size), inputs.end(), 0);
    std::fill(targets.begin() + static_cast<std::ptrdiff_t>(size), targets.end(), kNoTarget);
    std::ranges::fill(ends, uint8_t{0});
    if (count > 0) read(first, count);
    if (engine.masks_documents()) find_documents(ends, microbatch_seqs, split.seq_len(), documents);
    engine.evaluate(inputs, targets, losses, documents, predictions);
    for (int64_t i = 0; has_mask && i < count; ++i) {
      const auto index = static_cast<size_t>(i);
      answers.add_window(window(index), std::span(predictions).subspan(index * seq_len, seq_len));
    }
    for (size_t i = 0; i < size; ++i) {
      if (batch_targets[i] == kNoTarget) continue;
      const int32_t bytes = token_bytes[static_cast<size_t>(batch_targets[i])];
      result.nats += static_cast<double>(losses[i]);
      ++result.tokens;
      if (bytes > 0) {
        result.text_nats += static_cast<double>(losses[i]);
        result.bytes += bytes;
      } else {
        ++result.special;
        if (has_mask && predictions[i] == batch_targets[i]) ++result.special_predicted;
      }
    }
  }
  if (has_mask && range.begin < range.end && range.end < num_seqs) {
    read(range.end, 1);
    answers.end_before(window(0));
  }
  result.answers = answers.answers();
  result.answers_correct = answers.correct();
  return result;
}

}  // namespace

ValidationResult validate(Engine& engine, const SequenceReader& split, const std::vector<int32_t>& token_bytes,
                          int64_t max_seqs, int64_t microbatch_seqs) {
  const int64_t num_windows = split.num_windows(0);
  const int64_t num_seqs = max_seqs == 0 ? num_windows : std::min(max_seqs, num_windows);
  const Rank& rank = engine.rank();
  const RankSlice range = rank_slice(num_seqs, rank.index(), rank.count());
  const int64_t most_windows = (num_seqs + rank.count() - 1) / rank.count();
  const int64_t num_batches = (most_windows + microbatch_seqs - 1) / microbatch_seqs;
  const ValidationResult part =
      validate_range(engine, split, token_bytes, range, num_seqs, microbatch_seqs, num_batches);
  ValidationResult all;
  for (const ValidationResult& of_rank : rank.mesh().data().all_gather_values(part)) all += of_rank;
  return all;
}

}  // namespace nmoe
