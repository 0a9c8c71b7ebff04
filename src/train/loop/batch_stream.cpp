#include "train/loop/batch_stream.h"

namespace nmoe {

BatchStream::BatchStream(const Config& config, const TrainingData& data, const StreamPlan& plan, int64_t rank)
    : config_(config),
      rank_(rank),
      shape_(batch_shape(config, config.data.seq_len)),
      schedule_(plan),
      reader_(plan, data.train_sets(), config.data.shuffle, static_cast<uint64_t>(config.run.seed)),
      inputs_(static_cast<size_t>(step_tokens(config) / config.parallel.ranks)),
      targets_(inputs_.size()) {}

void BatchStream::next() {
  if (schedule_.seq_len() != shape_.seq_len) shape_ = batch_shape(config_, schedule_.seq_len());
  batch_.clear();
  schedule_.take(shape_.batch_seqs, batch_);
  refs_.clear();
  for (int64_t i = 0; i < num_microbatches(); ++i) {
    const auto first = batch_.begin() + shape_.part(rank_, config_.parallel.ranks, i).first_seq;
    refs_.insert(refs_.end(), first, first + shape_.microbatch_seqs);
  }
  if (config_.data.mask_documents) ends_.resize(refs_.size() * static_cast<size_t>(shape_.seq_len + 1));
  reader_.read(refs_, shape_.seq_len, inputs_, targets_, ends_);
  documents_.resize(static_cast<size_t>(num_microbatches()));
  if (!config_.data.mask_documents) return;
  // Of a microbatch: its tokens, and a look-ahead for each sequence.
  const size_t num_ends = ends_.size() / documents_.size();
  for (size_t i = 0; i < documents_.size(); ++i) {
    find_documents(std::span(ends_).subspan(i * num_ends, num_ends), shape_.microbatch_seqs, shape_.seq_len,
                   documents_[i]);
  }
}

int64_t BatchStream::num_tokens() {
  int64_t tokens = std::ssize(inputs_);
  for (const Documents& documents : documents_) {
    for (const int32_t number : documents.padding) tokens -= documents.length(number);
  }
  return tokens;
}

double BatchStream::flops(const ModelCost& cost) {
  if (!config_.data.mask_documents) {
    const int64_t num_seqs = static_cast<int64_t>(inputs_.size()) / shape_.seq_len;
    return static_cast<double>(num_seqs) * cost.document_flops(shape_.seq_len);
  }
  double flops = 0.0;
  for (const Documents& documents : documents_) {
    auto padding = documents.padding.begin();
    for (int32_t number = 0; number < documents.count(); ++number) {
      if (padding != documents.padding.end() && *padding == number) {
        ++padding;
      } else {
        flops += cost.document_flops(documents.length(number));
      }
    }
  }
  return flops;
}

Microbatch BatchStream::microbatch(int64_t index) {
  const auto size = static_cast<size_t>(shape_.microbatch_tokens());
  const size_t first = static_cast<size_t>(index) * size;
  return microbatch_of(std::span(inputs_).subspan(first, size), std::span(targets_).subspan(first, size),
                       documents_[static_cast<size_t>(index)]);
}

}  // namespace nmoe
