// A Scorer that makes forward passes over many texts at once, with the products of training; used on GPUs.
//
// A pass always has the same number of rows, so that the same product kernels are chosen; in its attention, each row
// depends on its text alone (TreeAttention). A prefix that a text shares with the one before it is in a pass once. On a
// GPU a text's bits depend neither on that nor on what else is in the pass. The next pass is assembled while one
// runs. Logits are computed only where tokens are scored.
#pragma once

#include <filesystem>
#include <memory>

#include "config/config.h"
#include "eval/scorer.h"
#include "model/placed_weights.h"
#include "model/runner.h"

namespace nmoe {

struct PackedScorerOptions {
  std::string device = "cpu";
  DType compute_dtype = DType::kF32;
  int num_threads = 0;         // of the CPU; 0: one per available CPU
  int64_t max_tokens = 0;      // of a text; 0: model.max_positions or, when that is 0, data.seq_len
  int64_t num_rows = 32768;    // of a pass; at least max_tokens
  bool share_prefixes = true;  // false: every text from its first token on
};

class CheckpointReader;

class PackedScorer final : public Scorer {
 public:
  // Errors: CheckpointReader's; (usage) without such a device, or where it has too little memory.
  PackedScorer(const std::filesystem::path& checkpoint, const PackedScorerOptions& options);
  // Random weights by config.run.seed. config.model.vocab_size is set.
  PackedScorer(const Config& config, const PackedScorerOptions& options);

  int64_t max_tokens() const override { return options_.max_tokens; }
  void score(std::span<const std::vector<ScoredText>* const> groups,
             const std::function<void(size_t group, std::span<const TextScore> scores)>& done) override;
  int64_t computed_tokens() const override { return computed_tokens_; }

 private:
  // Rows [begin, end) of a pass, which go on behind another piece's, or at position 0.
  struct Piece {
    int32_t begin, end;
    int32_t parent;  // -1: none
  };
  // What a pass has.
  struct Texts {
    std::vector<int32_t> tokens, positions;  // of its rows
    std::vector<Piece> pieces;
    std::vector<int32_t> scored_rows, targets;
    std::vector<TextScore*> owners;  // of each that is scored

    void clear();
  };

  // Weights of a checkpoint or, without a reader, random ones.
  PackedScorer(const Config& config, const PackedScorerOptions& options, const CheckpointReader* reader);
  PackedScorer(const CheckpointReader& reader, const PackedScorerOptions& options);
  // What makes the passes, and the memory that they use.
  struct Passes {
    Passes(const Config& config, const PackedScorerOptions& options, WeightSet& weights, Storage& storage);

    ModelRunner runner;
    Batch batch;        // of as many pieces as rows
    ScoredRows scored;  // as many as rows, and more, to fill up what is computed at once
  };
  static PackedScorerOptions complete(const Config& config, PackedScorerOptions options);
  WeightsPlace place() const;
  // Puts a text into the next pass, false without room.
  bool place(const ScoredText& text, TextScore& score);
  // Ends the path to the text placed last behind `position`, with a piece that ends there.
  void cut_path(int64_t position);
  void clear_next();
  // Begins the next pass.
  void launch();
  // Ends the pass under way.
  void collect();

  Config config_;
  PackedScorerOptions options_;
  PlacedWeights weights_;
  Passes passes_;
  int64_t computed_tokens_ = 0;
  Texts next_, running_;
  // The text placed last: itself, the row of each of its positions, and the pieces that these are in.
  const ScoredText* last_ = nullptr;
  std::vector<int32_t> last_rows_, path_;
};

}  // namespace nmoe
