// What host and device exchange for a step: inputs to the device, results back.
//
// T tokens of a microbatch, E experts. A step's *losses* are those of its objectives and of its depths of multi-token
// prediction.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "config/config.h"
#include "model/model.h"
#include "optim/schedule.h"
#include "parallel/rank.h"
#include "tensor/arena.h"
#include "train/precision/precision_checks.h"
#include "train/step/batch_shape.h"
#include "train/step/microbatch.h"
#include "train/step/step_phase.h"

namespace nmoe {

// Everything that a step reads and that changes from step to step, in one block for a single copy.
struct StepInputs {
  // By shape: the rank's microbatches, with cu_seqlens for as many documents as tokens. A step has one shape: the
  // batches of all shapes use the same memory.
  std::vector<std::vector<Batch>> batches;
  // [losses] f64: of each objective, then of each depth of multi-token prediction, its coefficient over its divisor in
  // the step (StepScale::loss).
  Tensor loss_scale;
  Tensor rates;         // optim/optimizer.h
  Tensor rounding_key;  // [1] i64: for stochastic rounding of gradients (model/weight_formats.h) and moments
  Tensor block;         // all of the above, [bytes] u8
};

// Of the rank `rank` of config.parallel.ranks, for steps of each of `shapes`. The same layout in whichever arena.
StepInputs allocate_step_inputs(const Config& config, int64_t rank, std::span<const BatchShape> shapes, Arena& arena);

// Copies values of the destination's dtype to it.
using PutBytes = std::function<void(Tensor destination, std::span<const std::byte> values)>;

// `batch` filled through `put` with a microbatch of at most as many tokens as it has room for, as that many sequences.
// The microbatch has the rows of the batch and no others. Rows of further tokens, which only training reads, stay as
// they are.
Batch fill_batch(Batch batch, const Microbatch& microbatch, const PutBytes& put);
// Those, of a microbatch of as many tokens as `batch` has.
void fill_ahead(const Batch& batch, const Microbatch& microbatch, const PutBytes& put);
// The positions of sequences that are one document each, which fill_batch() leaves as they are.
void fill_positions(const Batch& batch, const PutBytes& put);

// A router's behaviour over one step, on all ranks.
struct RouterHealth {
  int64_t layer = 0;            // of the model, dense layers counted: weights are called layers.<layer>
  std::vector<int32_t> counts;  // [E] rows
  double balance_loss = 0.0;
  double z_loss = 0.0;
  double entropy = 0.0;     // mean over tokens, nats
  std::vector<float> bias;  // [E] added to scores where experts are selected

  double bias_range() const;  // largest minus smallest
};

// What one rank did in the exchanges of one layer over one step.
struct RankTraffic {
  int64_t rows = 0;  // token copies that its experts got from all ranks
  int64_t sent = 0;  // tokens that it sent to other ranks, and their copies there
  int64_t sent_copies = 0;
  int64_t received = 0;  // tokens that others sent to it, and their copies here
  int64_t received_copies = 0;
  // By transfer (rdep/statistics.h): time waiting for the others of its domain, duration of the transfer, and the
  // part of that which other work did not hide.
  std::array<double, kTransfers.size()> waited_ms{}, lasted_ms{}, exposed_ms{};
};
struct LayerTraffic {
  int64_t layer = 0;               // as in RouterHealth
  std::vector<RankTraffic> ranks;  // of the run
};

// An objective's loss over a step: the sum of its token losses over its divisor, times its coefficient.
struct StepLoss {
  const Objective* objective = nullptr;
  double value = 0.0;
};

// Of a depth of multi-token prediction over a step.
struct DepthResult {
  double loss = 0.0;        // mean cross-entropy of its targets
  int64_t num_targets = 0;  // in the step
  int64_t num_right = 0;    // of this rank's, those that are what it finds likeliest, if asked for in detail
};

// The targets with a loss in a step, on all ranks, by which losses divide.
struct StepTargets {
  StepTargets(int64_t next_tokens, std::vector<int64_t> of_depths = {})  // NOLINT(google-explicit-constructor)
      : next(next_tokens), ahead(std::move(of_depths)) {}

  int64_t next;
  std::vector<int64_t> ahead;  // of each depth of multi-token prediction (train/step/look_ahead.h)
};

// How many losses a step has.
int64_t num_losses(const Config& config);

// What the loss of each depth counts in the step that brings a run to `progress`: their mean counts what model.mtp
// says.
double depth_weight(const Config& config, const Progress& progress);

// The same on every rank, except for the phases and what is said to be of the rank.
struct StepResult {
  std::vector<StepLoss> losses;  // of each of the run's objectives
  std::vector<DepthResult> depths;
  double grad_norm = 0.0;  // of all gradients of the step, before clipping
  bool finite = true;      // false: loss or gradient is not finite, and no weight was changed
  // kNextToken's losses of this rank's targets, microbatch by microbatch, if asked for in detail.
  std::vector<float> token_losses;
  // In layer order, if the step was asked for in detail; traffic if ranks share the experts.
  std::vector<RouterHealth> routers;
  std::vector<LayerTraffic> traffic;
  std::vector<PhaseTime> phases;     // of this rank, if the step was timed; else empty
  std::vector<int32_t> expert_rows;  // [L * E], as routers' counts, if wanted for every step; else empty
  PrecisionReport precision;         // if the step was checked and is finite

  double loss(const Objective& objective) const;  // of the run's objectives
};

// The host's side of one step on one rank, in memory that the device copies to and from.
class StepSlot {
 public:
  // rounding_counts: what steps that are checked leave (PrecisionChecks), or undefined.
  StepSlot(const Config& config, std::span<const BatchShape> shapes, const Model& model, const Rank& rank, Arena& arena,
           bool with_expert_rows, Tensor rounding_counts);

  const StepInputs& inputs() const { return inputs_; }
  // Its step's: the number of one of `shapes`, the first until it is set.
  size_t shape() const { return shape_; }
  void set_shape(size_t shape);
  const std::vector<Batch>& batches() const { return inputs_.batches[shape_]; }
  // Of the step that brings the run to `progress`, before its inputs are sent.
  void set_targets(const StepTargets& targets, const Progress& progress);

  // Enqueues copies of the step's results on the device; sums [losses + 1] f64: of each one's token losses, then of
  // squares of gradients.
  void fetch_results(Tensor sums);
  void fetch_routers(const Model& model);
  void fetch_losses(Tensor losses);            // microbatch by microbatch: [losses, T] stat
  void fetch_predictions(Tensor predictions);  // the same: [depths, T] i32
  void fetch_rounding_counts();
  // Of its step, after wait() has returned; empty if it was not checked.
  std::span<const double> rounding_counts() const;
  bool arrived() const { return done_->reached(); }
  StepResult wait() const;

 private:
  struct Router {
    int64_t layer;
    RouterStats stats;
    Tensor bias;  // [E] stat
  };

  void fill_positions();
  std::vector<float> next_token_losses() const;
  int64_t num_right(size_t depth) const;
  LayerTraffic traffic_of(int64_t i) const;

  Device& device_;
  StepInputs inputs_;
  size_t shape_ = 0;
  Objectives objectives_;
  Config config_;
  StepCounts counts_;                  // of its step
  std::vector<int64_t> ahead_counts_;  // the same: targets of depths
  Tensor sums_;                        // [losses + 1] f64
  Tensor predictions_;                 // as fetch_predictions() has them
  Tensor losses_;                      // as fetch_losses() has them
  bool has_losses_ = false;            // of this step
  std::vector<Router> routers_;        // in layer order
  ExchangeStats exchanges_;            // undefined where a rank is alone
  bool has_routers_ = false;           // of this step
  Tensor expert_rows_;                 // [L, E] i32 on the device
  Tensor fetched_expert_rows_;         // the same here; undefined: not wanted
  Tensor rounding_counts_;             // on the device
  Tensor fetched_counts_;              // the same here
  bool has_counts_ = false;            // of this step
  std::unique_ptr<Event> done_;
};

}  // namespace nmoe
