// Engine: one rank's weights, gradients, optimizer state and buffers on a device, and the parts of a step.
//
// The same code runs twice: against counting arenas (train/plan/engine_plan.h), then on storage of just that size.
// Nothing allocates again after that.
//
// The host runs ahead of the device: step() enqueues, and results are taken once they have arrived. While one step is
// computed, the inputs of the next are copied.
//
// Ranks divide every step's microbatches. Each rank has experts of its own, to which the others send tokens, and a copy
// of all other weights, of which it updates a part: it sums the gradients of this part over the ranks
// (parallel/domain.h), on the communication lane while backward goes on, and sends the new values to the others.
// Losses, the norm of gradients and router statistics are summed over all ranks before any weight is updated. All ranks
// make the same calls, since every pass needs the experts of all.
//
// With parallel.logical_shards no sum depends on the number of ranks: each microbatch is a shard, the m-th of rank i of
// W ranks being shard m * W + i. Gradients of weights that all ranks have are added up shard by shard; experts process
// the ranks' tokens one rank after the other (Received::kApart), so that theirs are, too; losses are summed for each
// shard, squares for each chunk (tensor/chunks.h), and both then in order.
//
// T tokens of a microbatch.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/runner.h"
#include "ops/storage.h"
#include "optim/optimizer.h"
#include "parallel/domain.h"
#include "rdep/moves.h"
#include "rdep/peer_transport.h"
#include "tensor/named_tensor.h"
#include "train/precision/precision_checks.h"
#include "train/step/phase_clock.h"
#include "train/step/state_ring.h"
#include "train/step/step_exchange.h"
#include "train/step/step_phase.h"

namespace nmoe {

// The first tensor with a value that is not finite.
struct NonFinite {
  std::string name;  // of the tensor, with the number of its values that are not finite; "": all are finite
  // The tensor's position in the order of computation, which is the same on all ranks.
  int64_t place = std::numeric_limits<int64_t>::max();
};

class Engine {
 public:
  // Uses `storage`, which belongs to the rank's device and must outlive the engine. config.model.vocab_size must be
  // resolved; `config` is copied. `seq_lens`: the lengths that sequences of a step may have (sequence_lengths());
  // empty: data.seq_len alone. Error (usage) if parallel.logical_shards would cross domains.
  Engine(const Config& config, const Rank& rank, Storage& storage, std::span<const int64_t> seq_lens = {});

  void initialise();

  // --- a step: load every microbatch of this rank, run. All ranks make the same steps. The largest number of steps
  // whose results have not been taken: one being computed, and the next. A further step waits for the oldest and drops
  // its result. NOTE: with three of super's graphs in its queue, the driver delays the launch.
  static constexpr int64_t kMaxPending = 2;

  // Sets the sequence length from the next step on, one of the engine's seq_lens; initially data.seq_len. To be called
  // before that step is loaded.
  void use_seq_len(int64_t seq_len);
  int64_t num_microbatches() const { return static_cast<int64_t>(inputs_.batches[shape_].size()); }
  // Loads microbatch `index` of the next step, of as many tokens as its shape (train/step/batch_shape.h) has, and
  // copies it.
  void load(int64_t index, const Microbatch& microbatch);
  // Enqueues a step on what was loaded since the last one: forward, backward, clipping, the update of weights and
  // router biases. `progress`: the state after the step. `targets`: those with a loss in the whole step, on all
  // ranks, by which losses divide. Does not wait: from the second step of each sequence length
  // on, it runs a recording. `in_detail`: the result includes the routers' health and the token losses. `with_phases`:
  // it also includes the times of phases, except in the first step of a length and while the result of another timed
  // step has not been taken. Timed steps have their own recordings, so that other steps take no longer; the bits are
  // the same.
  //
  // A step that is not finite changes no weight, bias or moment, nor does any later step until initialise() or
  // restore(), even one that was already enqueued.
  void step(const Progress& progress, const StepTargets& targets, bool in_detail = false, bool with_phases = false);
  void wait();  // for everything that is enqueued
  int64_t num_pending() const { return num_enqueued_ - num_taken_; }
  bool has_result() const;   // take_result() would not wait
  StepResult take_result();  // of the oldest pending step
  StepResult result();       // of the last step; takes the results of all pending steps
  // Of the last step, in layer order; waits. evaluate() does not change it, find_non_finite() does.
  std::vector<RouterHealth> router_health();

  // Repeats this rank's microbatches of the step whose result was taken last, and returns the first parameter or
  // intermediate that is not finite. To be called before anything else is loaded; pending steps are lost.
  NonFinite find_non_finite();

  // --- checks of precision (precision_checks.h)
  // Whether a pending step may change the formats of products. Its result must be taken before the next step is
  // enqueued, which would otherwise wait for it and drop it.
  bool decision_is_pending() const {
    return precision_ && precision_->acts() && last_check_ >= num_taken_ && !ops_.counting();
  }
  // The state of checks, from results that were taken, as stored in checkpoints; restore_precision() sets it before the
  // first step, and returns false if it belongs to another model. Checks that only report may begin without one, and
  // where there are none, theirs is dropped.
  std::vector<PrecisionRole> precision() const {
    return precision_ ? precision_->state() : std::vector<PrecisionRole>();
  }
  bool restore_precision(std::span<const PrecisionRole> state);
  bool checks_precision() const { return precision_.has_value(); }

  // --- experts that the ranks of a domain share (rdep/placement.h)
  bool shares_experts() const { return !experts_.places.empty(); }
  const ExpertState& experts() const { return experts_; }
  // Sets the places and rows with which a run continues, before initialise() or restore(); moves nothing. Ignored if
  // experts are not shared.
  void place_experts(const ExpertState& experts);
  // Whether rebalance() is due after `steps` steps of the run: after every parallel.rebalance_every.
  bool rebalance_is_due(int64_t steps) const;
  // Enqueues the move of experts, with their weights and optimizer state, to places with which the ranks' loads would
  // have been more even in the steps whose results were taken since the last call. No step may be pending. All ranks
  // must call it, and get the same result. Overwrites gradients.
  Rebalancing rebalance();

  // losses = the token losses, in nats, of up to train.microbatch_seqs sequences of data.seq_len; 0 for targets < 0.
  // predictions, unless empty, = the likeliest next token at every position. `documents`: those of the inputs if
  // data.mask_documents is set, else empty.
  void evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets, std::span<float> losses,
                const Documents& documents = {}, std::span<int32_t> predictions = {});
  // logits = the next-token logits of the rows `rows` of up to train.microbatch_seqs sequences of data.seq_len:
  // [rows, vocab_size], row-major.
  void next_logits(std::span<const int32_t> inputs, std::span<const int32_t> rows, std::vector<float>& logits,
                   const Documents& documents = {});

  // This rank's part of a checkpoint; weights are masters. Its memory, of at most checkpoint.staging_bytes, is taken at
  // first use, since pinning much takes longer than a run's first steps.
  StateRing& state_ring();
  // Sets all state to what `load` gives, and the optimizer's to zero if it does not give that.
  enum class Restored { kAll, kModel };
  void restore(const StateRing::Load& load, Restored what = Restored::kAll);

  // Sets how long the other ranks wait for this one, in calls and on their devices; at first parallel.timeout_s.
  void set_patience(std::chrono::milliseconds patience) const { domain_.set_patience(patience); }

  // Where something else runs the weights until the next pass (train/step/live_generation.h).
  RunnerRoom room_between_steps();

  const Rank& rank() const { return rank_; }
  bool masks_documents() const { return config_.data.mask_documents; }
  Model& model() { return model_; }

 private:
  StepSlot& slot(int64_t step) { return slots_[static_cast<size_t>(step % kMaxPending)]; }
  const StepSlot& slot(int64_t step) const { return slots_[static_cast<size_t>(step % kMaxPending)]; }
  // What steps of one shape have, of those that are checked or of those that are not.
  struct Steps {
    bool warm = false;  // a step was run
    std::unique_ptr<PhaseClock> clock;
    std::unique_ptr<Recording> recording, timed;  // timed: with the clock's marks
  };
  void enqueue_timed(PhaseClock& clock);
  void enqueue_inputs(const Progress& progress, const StepTargets& targets);
  void enqueue_begin();
  void enqueue_gradients(const Marker& mark = {});
  void sum_gradients(size_t first_weight, size_t end_weight);
  void enqueue_update();
  void enqueue_results(bool in_detail);
  void settle();  // state that a step left on the device, before anything else uses the stack or host memory
  Batch place(const Microbatch& microbatch);
  void forget_recordings();
  void or_failure(const std::function<void()>& work) const;
  StepScale step_scale(size_t shape) const;
  void allocate_exchange(Arena& state);  // of tokens between ranks, where others share the experts
  void allocate_sums(Arena& state);
  Tensor parts_of_loss(int64_t loss) const;
  void collect_shared_tensors();  // summed_, summed_across_, grads_ and values_
  bool in_order() const { return config_.parallel.logical_shards > 0; }
  void gather_values();  // of weights that every rank has, from the ranks that updated them
  std::vector<MovableExperts> movable_experts();
  void set_places(ExpertPlacement places);

  Config config_;
  Rank rank_;
  Storage& storage_;
  Device& device_;
  Ops& ops_;
  Arena& activations_;
  std::vector<BatchShape> shapes_;  // of steps
  PutBytes upload_, write_;         // to the device, to the host's side
  Domain domain_;
  Objectives objectives_;
  std::optional<PeerTransport> transport_;  // where several ranks share the experts
  WeightSet weights_;
  ModelRunner runner_;       // in the steps' arithmetic
  Model& model_;             // the runner's
  StepInputs inputs_;        // of the step that is computed
  size_t shape_ = 0;         // of the next step
  size_t inputs_shape_ = 0;  // of what inputs_ holds
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<StepSlot> slots_;  // kMaxPending, used in turn: slot()
  int64_t num_enqueued_ = 0;     // steps
  int64_t num_taken_ = 0;
  int64_t timed_step_ = -1;                // number of the last timed step
  std::unique_ptr<StateRing> state_ring_;  // null before its first use
  ExpertState experts_;                    // empty where no experts are shared; rows where they are rebalanced
  Tensor losses_;                          // microbatch by microbatch of the rank: [losses, T] stat
  Tensor depth_predictions_;               // the same: [depths, T] i32
  Tensor predictions_;                     // [T] i32
  Tensor partial_sums_;                    // f64: of token losses, then of squares of gradients; summed over ranks
  Tensor partial_losses_;                  // its parts: of each loss one, or one a logical shard
  Tensor partial_squares_;                 //            one, or one a chunk of a weight
  SumsOfSquares squares_;                  // that this rank sums
  Tensor square_order_;                    // i32: with logical shards, squares of experts in the experts' order
  Tensor sums_;                            // [losses + 1] f64: of each one's token losses, then of all squares
  Tensor loss_sums_, square_sum_;          // its parts
  Tensor all_losses_;                      // [1] f64: the sum of loss_sums_
  Tensor grad_scale_;                      // [1] f64
  Tensor stopped_;                         // [1] i32: not 0 from the first step that is not finite
  Tensor bad_count_;                       // [1] i32
  std::vector<PeerGroup::Part> grads_;     // of weights that every rank has: the parts that this rank updates
  std::vector<PeerGroup::Part> values_;    // likewise
  std::vector<Tensor> summed_across_;      // what a step sums over replicas of shards, besides gradients
  std::vector<Tensor> summed_;             // what it then sums over the ranks that divide the update
  std::unique_ptr<Event> enqueued_;        // behind everything that was enqueued when it was recorded last
  std::unique_ptr<Prefetch> prefetch_;     // of inputs_
  std::optional<PrecisionChecks> precision_;
  bool checks_ = false;                   // whether the step that is being enqueued is checked
  int64_t last_check_ = -1;               // number of the last step that was checked
  const PhaseClock* timed_by_ = nullptr;  // of timed_step_
  std::vector<Steps> steps_;  // by shape, then by whether they are checked; last: recordings use all of the above
};

// The device of a run, or of one of its ranks, which share the CPU threads equally, with at least one each.
DeviceOptions device_options(const RunConfig& run, int64_t num_ranks = 1, int64_t rank = 0);

}  // namespace nmoe
