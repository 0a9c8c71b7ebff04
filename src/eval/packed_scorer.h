// A Scorer that gives the model whole texts, packed one behind the other as documents of its sequences: what runs on
// any device, where generation's cache (eval/cached_scorer.h) does not. Beginnings that texts share are computed again
// in each.
//
// A pass always has B sequences of S positions, whatever is packed into them. Logits are made where tokens are scored.
#pragma once

#include <filesystem>
#include <memory>

#include "config/config.h"
#include "eval/scorer.h"
#include "model/model.h"
#include "ops/storage.h"

namespace nmoe {

struct PackedScorerOptions {
  std::string device = "cpu";
  DType compute_dtype = DType::kF32;
  int num_threads = 0;   // of the CPU; 0: one per available CPU
  int64_t num_seqs = 8;  // B
  int64_t seq_len = 0;   // S; 0: model.max_positions or, when that is 0, data.seq_len
};

class PackedScorer final : public Scorer {
 public:
  // Errors: CheckpointReader's; (usage) without such a device, or where it has too little memory.
  PackedScorer(const std::filesystem::path& checkpoint, const PackedScorerOptions& options);
  // Random weights by config.run.seed. config.model.vocab_size is set.
  PackedScorer(const Config& config, const PackedScorerOptions& options);

  int64_t max_tokens() const override { return options_.seq_len; }
  void score(std::span<const std::vector<ScoredText>* const> groups,
             const std::function<void(size_t group, std::span<const TextScore> scores)>& done) override;
  int64_t computed_tokens() const override { return computed_tokens_; }

 private:
  void set_up();
  std::unique_ptr<Model> make(Storage& storage);
  // Puts a text into the first sequence with room for it, false without any.
  bool place(const ScoredText& text, TextScore& score);
  void clear();
  void run();

  Config config_;
  PackedScorerOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Model> model_;
  Batch batch_;        // cu_seqlens for as many documents as tokens
  ScoredRows scored_;  // of a pass's tokens at most
  int64_t computed_tokens_ = 0;

  // What the next pass has.
  struct Document {
    const ScoredText* text;
    TextScore* score;
    int64_t first;  // its place in the pass
  };
  std::vector<int64_t> used_;  // positions of each sequence
  std::vector<Document> documents_;
};

}  // namespace nmoe
