#include "train/batch_stream.h"

#include <algorithm>

namespace nmoe {

BatchStream::BatchStream(const Config& config, const TrainingData& data, const StreamPlan& plan, RankSlice slice)
    : batch_seqs_(config.train.batch_seqs),
      slice_(slice),
      microbatch_seqs_(config.train.microbatch_seqs),
      mask_documents_(config.data.mask_documents),
      microbatch_tokens_(static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len)),
      schedule_(plan),
      reader_(plan, data.train_sets(), config.data.shuffle, static_cast<uint64_t>(config.run.seed)),
      inputs_(static_cast<size_t>((slice_.end - slice_.begin) * config.data.seq_len)),
      targets_(inputs_.size()) {}

void BatchStream::next() {
  refs_.clear();
  schedule_.take(batch_seqs_, refs_);
  const auto begin = static_cast<size_t>(slice_.begin), size = static_cast<size_t>(slice_.end) - begin;
  reader_.read(std::span(refs_).subspan(begin, size), inputs_, targets_);
}

int64_t BatchStream::num_targets() const {
  return static_cast<int64_t>(targets_.size()) - std::ranges::count(targets_, kNoTarget);
}

double BatchStream::flops(const ModelCost& cost) {
  const int64_t seq_len = reader_.seq_len();
  if (!mask_documents_) {
    return static_cast<double>(static_cast<int64_t>(inputs_.size()) / seq_len) * cost.document_flops(seq_len);
  }
  double flops = 0.0;
  for (int64_t i = 0; i < num_microbatches(); ++i) {
    const std::vector<int32_t>& bounds = microbatch(i).documents.cu_seqlens;
    for (size_t d = 1; d < bounds.size(); ++d) flops += cost.document_flops(bounds[d] - bounds[d - 1]);
  }
  return flops;
}

int64_t BatchStream::num_microbatches() const { return static_cast<int64_t>(inputs_.size() / microbatch_tokens_); }

Microbatch BatchStream::microbatch(int64_t index) {
  const size_t first = static_cast<size_t>(index) * microbatch_tokens_;
  const std::span inputs = std::span(inputs_).subspan(first, microbatch_tokens_);
  if (mask_documents_) {
    find_documents(inputs, microbatch_seqs_, reader_.seq_len(), reader_.eos_id(), documents_);
  }
  return {inputs, std::span(targets_).subspan(first, microbatch_tokens_), documents_};
}

}  // namespace nmoe
