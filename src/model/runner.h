// Runs the weights of a model that somebody else owns (those of a checkpoint, random ones, or those that a trainer is
// training) on the device where they are: whoever makes passes, for training, generation, scores, comparisons or
// measurements, makes them through one.
//
// A runner changes no weight, except through what it is asked to do with the model's gradients, and keeps nothing in
// the weights: several of them may run the same ones, in arithmetics of their own, one pass after the other. What it
// keeps itself is in the arenas that it is given. So it is planned by being made, and making its largest passes, on
// counting arenas (ops/storage.h), and the plans of two runners need no rule: of two that live at once, what they keep
// adds up, and of their activations, the larger counts; of two that are made in one ArenaScope after the other, the
// larger counts altogether.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <span>

#include "config/config.h"
#include "model/model.h"
#include "model/weight_set.h"
#include "ops/storage.h"

namespace nmoe {

// The arenas of a runner; all three may be the same one.
struct RunnerRoom {
  Arena& kept;         // inputs, results, tables
  Arena& states;       // of sequences
  Arena& activations;  // during a pass

  // The arenas of a storage that has been planned for the runner.
  static RunnerRoom of(Storage& storage) {
    return {storage[ArenaKind::kStepState], storage[ArenaKind::kCache], storage[ArenaKind::kActivations]};
  }
  // Everything among the activations, which are empty between the passes of other runners: for one that lives no longer
  // than that, in an ArenaScope.
  static RunnerRoom between_passes(Storage& storage) {
    Arena& activations = storage[ArenaKind::kActivations];
    return {activations, activations, activations};
  }
};

struct RunnerOptions {
  int64_t max_positions = 0;  // of a sequence
  Arithmetic arithmetic = Arithmetic::kFastest;
  PassOptions passes = {};
};

// What a batch has beside tokens and positions.
struct BatchForm {
  int64_t num_seqs = 1;
  int64_t seq_len = 1;
  bool has_targets = false;
  bool has_documents = false;  // cu_seqlens, of as many documents as tokens
  bool has_pieces = false;     // cu_seqlens and parents, of as many pieces as tokens
};

class ModelRunner {
 public:
  // `weights` outlive it, and have their memory before the first pass.
  ModelRunner(const ModelConfig& config, WeightSet& weights, Device& device, const RunnerRoom& room,
              const RunnerOptions& options);

  Model& model() { return model_; }
  Device& device() const { return device_; }
  Ops& ops() const { return ops_; }  // of its arithmetic
  Arena& activations() const { return room_.activations; }

  // Memory for inputs and results of passes.
  Batch make_batch(const BatchForm& form) const;
  ScoredRows make_scored_rows(int64_t count) const;
  ModelStates make_states(const StateSizes& sizes) const;

 private:
  Device& device_;
  Ops& ops_;
  RunnerRoom room_;
  Model model_;
};

}  // namespace nmoe
