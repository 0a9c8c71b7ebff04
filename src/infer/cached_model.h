// A model with states of the sequences in its slots and the memory to run rows of any of them: what generation asks a
// model for. The weights are somebody else's, and so is the device.
//
// Its passes are batch-invariant (ops/device.h), and prompts take the same path as single tokens. A row's logits
// therefore have the same bits however the rows of its sequence are spread over calls, and whatever else is in them.
//
// On a GPU a call may have thousands of rows, with which prompts are read at the speed of training's forward. They are
// padded to few numbers of rows, with rows that belong to no sequence.
//
// On a GPU, calls that want every row's logits, as when all sequences generate, are recorded as graphs for some numbers
// of rows and padded likewise. Tokens are sampled there by the same rule as on the CPU
// (ops/sampling.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/logprobs.h"
#include "model/runner.h"
#include "model/sequence_model.h"
#include "ops/sampling.h"

namespace nmoe {

// The token at `position` of the sequence in `slot`.
struct CacheRow {
  int32_t token = 0;
  int32_t slot = 0;
  int32_t position = 0;
};

struct CachedModelOptions {
  int64_t num_slots = 8;
  int64_t capacity = 0;         // positions of a slot: context_of()
  int64_t cache_positions = 0;  // of all slots together, in whole pages; 0: as many as all slots have
  int64_t max_drafts = 0;       // guesses of a slot whose logits are wanted beside its last token's
  int64_t max_scores = 0;       // of one call of score()
  // Rows of one call; at least kMaxRows and twice the slots, so that prompts are read beside as many writers as there
  // are slots. 0: on a GPU kMaxDeviceRows, as far as slots have so many positions; on a CPU the least.
  int64_t max_rows = 0;
  bool records = true;  // false: nothing is recorded, so that passes can be watched (Model::watch)
};

// The positions of a slot where `asked` were asked for; 0: model.max_positions or, when that is 0, data.seq_len. Error
// (usage) for a number that is out of range.
int64_t context_of(const Config& config, int64_t asked);
// The same for sequences at a time.
int64_t slots_of(int64_t asked);
// The same for cached positions of all sequences together; 0 stays 0.
int64_t cache_positions_of(int64_t asked);

// How likely a token was.
struct TokenScore {
  float nats = 0.0F;      // its loss, over the model's whole vocabulary, as training counts it
  int32_t likeliest = 0;  // the likeliest token there, the lowest of equals
};
// A token that may follow one of the rows of a call; a row may have several of them.
struct ScoredToken {
  int32_t row = 0;
  int32_t token = 0;
};

// What the host is told of a row's logits.
struct ToldLogits {
  enum What { kNothing, kAll, kOne } what = kNothing;
  int32_t id = -1;  // with kOne; -1: of the row's token. Where ids are penalised it is, too, unlike all of a row.
};

class CachedModel {
 public:
  static constexpr int64_t kMaxRows = 256;  // of one call, at least (CachedModelOptions::max_rows)
  // Of one call on a GPU, if no other number is asked for. A sequence that writes waits for a pass of so many at most
  // between two of its tokens; rows enough that experts' weights cost little beside their products.
  static constexpr int64_t kMaxDeviceRows = 4096;
  // Rows of one call whose logits are wanted, or the number of slots; and of guesses of all slots beside.
  static constexpr int64_t kMaxLogits = 32, kMaxDraftLogits = 128;

  // Over passes of `model`, which outlives it, as the room does, in which all of its memory is taken here. Made in a
  // counting run, it makes its largest passes. Error (usage): more ids than its device samples from.
  CachedModel(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, SequenceModel& model,
              const RunnerRoom& room, const CachedModelOptions& options);
  CachedModel(const CachedModel&) = delete;
  CachedModel& operator=(const CachedModel&) = delete;

  // Runs `rows` and adds them to the states of their slots: model/states.h (CachedRows) says what must be there.
  // Returns the logits of rows[wanted[0]], rows[wanted[1]], ..., consecutively, each of vocab_size() ids; `with_sums`:
  // and their sums. Valid until the next call.
  LogitRows run(std::span<const CacheRow> rows, std::span<const int32_t> wanted, bool with_sums);
  // The same for scores, up to CachedModelOptions::max_scores of them, in the order of `scored`.
  std::span<const TokenScore> score(std::span<const CacheRow> rows, std::span<const ScoredToken> scored);
  // Whether a slot's sequence can go on from an earlier position than its last one.
  bool goes_back() const { return states_.goes_back; }

  // Which page has each block of a slot, from `first_block` on, in calls from now on (ops/contracts/cache.h). Where
  // there are pages enough, slots begin with pages of their own; else with page 0 for all.
  void set_pages(int64_t slot, int64_t first_block, std::span<const int32_t> pages);
  int64_t num_pages() const { return states_.sizes.num_pages; }
  void copy_page(int64_t from, int64_t to) { states_.copy_pages(ops_, from, to, 1); }
  // Slot `to`, which has pages of its own, holds what `from` holds.
  void copy_slot(int64_t from, int64_t to);

  // Whether sample() can be called.
  bool samples() const { return draws_.defined(); }
  // The same, and a token for each of `wanted` by its draw; -1 where the largest logit is not finite. Penalised are the
  // ids `seen`, each pair once. Of a row's logits only what is told of it travels to the host; nothing, no sums either,
  // with an empty `told`.
  struct Samples {
    std::span<const int32_t> tokens;
    LogitRows logits;
  };
  struct IdOfRow {
    int32_t wanted_idx = 0;
    int32_t id = 0;
  };
  Samples sample(std::span<const CacheRow> rows, std::span<const int32_t> wanted, std::span<const TokenDraw> draws,
                 std::span<const IdOfRow> seen, std::span<const ToldLogits> told);

  const Config& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // The model's: where it is larger than the tokenizer's, the ids beyond have no meaning, but they have probabilities.
  int64_t vocab_size() const { return model_.vocab_size(); }
  int64_t num_slots() const { return options_.num_slots; }
  int64_t capacity() const { return states_.sizes.capacity; }  // of a slot: no more than all pages have
  int64_t max_rows() const { return options_.max_rows; }
  int64_t max_scores() const { return options_.max_scores; }
  int64_t max_logits() const {
    const int64_t drafts = std::min(kMaxDraftLogits, options_.num_slots * options_.max_drafts);
    return std::max(kMaxLogits, options_.num_slots) + drafts;
  }
  const Device& device() const { return device_; }

 private:
  void allocate(const RunnerRoom& room);
  void upload_pages();
  int64_t num_draw_inputs() const;
  // Of a call that is not recorded, with those that belong to no sequence.
  int64_t plain_rows(int64_t num_rows) const;
  // From one of a call's inputs to the next: calls of few rows upload little.
  int64_t input_pitch(int64_t num_rows) const;
  // The i-th input, of `size` values, of a call of `num_rows`: 0 tokens, 1 slots, 2 positions, 3 wanted.
  Tensor input(int64_t i, int64_t size, int64_t num_rows) const;
  CachedRows input_rows(int64_t num_rows) const;
  // Of those, and of draws, on the host.
  void upload_inputs(int64_t num_rows);
  int32_t* host_input(int64_t i, int64_t num_rows);
  void fill_inputs(std::span<const CacheRow> rows, int64_t num_rows);
  void enqueue(std::span<const CacheRow> rows, std::span<const int32_t> wanted);
  void download_sums(int64_t num_logits);
  void download_logits(int64_t begin, int64_t end);
  // Of the rows of which all is told, or one logit.
  void download_all(std::span<const ToldLogits> told);
  void download_one(std::span<const ToldLogits> told);
  LogitRows host_logits(int64_t num_logits, bool with_sums) const;

  const Config config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  CachedModelOptions options_;
  SequenceModel& model_;
  Ops& ops_;
  Device& device_;
  Arena& activations_;
  ModelStates states_;
  // i32, uploaded at once: the draws, and tokens, slots, positions and wanted, input_pitch() of each
  Tensor inputs_;
  Tensor logits_;      // [max_logits, V]
  Tensor sums_;        // [max_logits, 3], LogitSums
  Tensor draws_;       // [max_logits * sizeof(TokenDraw)] u8, of inputs_; as those below, undefined if the host samples
  Tensor seen_;        // [N, 2] i32, of those that are penalised at once
  Tensor sampled_;     // [max_logits] i32
  Tensor picked_ids_;  // [max_logits, 2] i32
  Tensor picked_;      // [max_logits] F32
  ScoredRows scored_;  // of max_scores
  struct Step {
    bool has_run = false;
    std::unique_ptr<Recording> recording;
  };
  std::map<int64_t, Step> steps_;                // by their number of rows
  std::vector<int32_t> host_pages_;              // ModelStates::pages
  int64_t changed_begin_ = 0, changed_end_ = 0;  // of host_pages_: what the device has not got yet lies between
  std::vector<int32_t> host_inputs_, host_sampled_;
  std::vector<int32_t> host_ids_;  // of what is scored
  std::vector<float> host_logits_, host_picked_;
  std::vector<IdOfRow> host_picked_ids_;
  std::vector<LogSum> host_sums_;
  std::vector<float> host_losses_;
  std::vector<TokenScore> host_scores_;
};

}  // namespace nmoe
