// Synthetic corpora for research: documents drawn from a distribution that is known exactly, so that the loss of a
// perfect model (the floor) can be computed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nmoe {

// The entropy of a source's documents: what the best possible model loses on average, every token predicted from all
// before it in its document, and the end of the document too.
struct EntropyFloor {
  double document_nats = 0.0;        // of a document and its end
  double document_nats_error = 0.0;  // standard error if it was sampled, 0 if it is exact
  double end_nats = 0.0;             // the part of it for the end-of-sequence ids
  double end_nats_error = 0.0;
  double tokens_per_document = 0.0;   // mean, the end-of-sequence id included; exact
  double target_nats = 0.0;           // the part of it for tokens in loss_mask
  double targets_per_document = 0.0;  // number of these tokens

  // Every token is a target, as in pretraining.
  double nats_per_token() const { return document_nats / tokens_per_document; }
  // The end is no target, as in validation.
  double nats_per_text_token() const { return (document_nats - end_nats) / (tokens_per_document - 1); }
  // Only those in loss_mask are.
  double nats_per_target() const { return target_nats / targets_per_document; }
};

// Immutable after it is made, and safe to use from several threads at once.
class SyntheticSource {
 public:
  virtual ~SyntheticSource() = default;

  // The text of each id, except for the last id, which ends a document.
  virtual const std::vector<std::string>& words() const = 0;
  int32_t eos_id() const { return static_cast<int32_t>(words().size()); }
  int64_t vocab_size() const { return static_cast<int64_t>(words().size()) + 1; }

  // Document `index` of the stream that the seed names: any, in any order, always the same. Both vectors are replaced;
  // they have one element a token, the end-of-sequence id left out. loss_mask is 1 for tokens with loss: those that are
  // determined by what precedes them (answers), or all if the source has no such tokens.
  virtual void document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const = 0;

  // Whether documents have answers, so that loss_mask is not all 1.
  virtual bool has_answers() const = 0;

  virtual EntropyFloor floor() const = 0;

  // The settings as resolved, in order, for the record.
  using ResolvedSettings = std::vector<std::pair<std::string, int64_t>>;
  virtual const ResolvedSettings& settings() const = 0;
};

}  // namespace nmoe
