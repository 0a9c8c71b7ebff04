// Engine: one rank's weights, gradients, optimizer state and buffers on a device, and the parts of a step.
//
// The same code runs twice: against counting arenas (plan_engine_storage), then on storage of just that size. Nothing
// allocates again after that.
//
// The host runs ahead of the device: step() enqueues, and a step's results are taken when they are there. While a step
// is computed, the inputs of the next are on their way.
//
// Ranks share every step's microbatches. Each has experts of its own, to which the others send their tokens, and a copy
// of all other weights, of which it updates a part: gradients are summed over the ranks there (parallel/domain.h), on
// the communication lane while backward goes on, and the new values go to all. Losses, the gradients' norm and what
// routers did are summed for every rank before any weight moves. They make the same calls: whatever runs the model
// needs the experts of all.
//
// With parallel.logical_shards every sum has an order that does not depend on the number of ranks: a microbatch is a
// shard, rank i's m-th of W ranks is shard m * W + i. The gradients of what all ranks have are added up shard by shard;
// experts work off the ranks' tokens one after the other (Received::kApart), so that theirs are, too; losses are summed
// for each shard, squares for each chunk (tensor/chunks.h), and then in order.
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
#include "model/model.h"
#include "ops/storage.h"
#include "optim/optimizer.h"
#include "parallel/domain.h"
#include "tensor/named_tensor.h"
#include "train/expert_moves.h"
#include "train/phase_clock.h"
#include "train/precision_checks.h"
#include "train/step_exchange.h"
#include "train/step_phase.h"

namespace nmoe {

// What a rank has of a tensor of a checkpoint.
struct StagedTensor {
  std::string name;
  Tensor tensor;                     // what the rank updates of it
  Shape shape;                       // of the whole
  std::vector<ElementRange> slices;  // which of the whole's elements these are, one slice after the other
  bool is_written = false;           // by this rank: what several have, one writes
};
struct StateTensors {
  std::vector<StagedTensor> model;
  std::vector<StagedTensor> optimizer;
};
// Slice by slice, as they are loaded.
std::vector<NamedPart> named_parts(std::span<const StagedTensor> tensors);

// A value that is not finite.
struct NonFinite {
  std::string name;  // and how many values of it are not; "": all values are finite
  // In the order in which values come, the same on all ranks.
  int64_t place = std::numeric_limits<int64_t>::max();
};

class Engine {
 public:
  // On `storage`, which outlives the engine and is of the rank's device. config.model.vocab_size must be resolved;
  // `config` is copied. `seq_lens`: the lengths that sequences of a step may have (sequence_lengths()); empty:
  // data.seq_len alone. Error (usage) where parallel.logical_shards would cross domains.
  Engine(const Config& config, const Rank& rank, Storage& storage, std::span<const int64_t> seq_lens = {});

  void initialise();

  // --- a step: load every microbatch of this rank, run. All ranks make the same steps.
  // Steps that may be enqueued without their results taken: one that is computed and one behind it. One more, and the
  // oldest is waited for and dropped. NOTE: with three of super's graphs in its queue the driver holds up the launch.
  static constexpr int64_t kMaxPending = 2;

  // From the next step on, before it is loaded: sequences have `seq_len` tokens, one of the engine's seq_lens; at first
  // data.seq_len.
  void use_seq_len(int64_t seq_len);
  int64_t num_microbatches() const { return static_cast<int64_t>(inputs_.batches[shape_].size()); }
  // Microbatch `index` of the next step: host arrays of as many ids as its shape (train/batch_shape.h) says.
  // `documents` are those of the inputs where data.mask_documents is set, else empty; so everywhere below.
  void load(int64_t index, std::span<const int32_t> inputs, std::span<const int32_t> targets,
            const Documents& documents = {});
  // Forward, backward, clipping, weights and router biases, over what was loaded since the last step; `progress` is
  // where it ends. `num_targets`: targets with a loss in all of it, on all ranks; the loss is their mean. Enqueued as
  // one recording for each length of sequences, made at its second step: it waits for nothing. `with_routers`: the
  // result is to have their health. `with_phases`: and what the step's time went to, unless it is the first of a length
  // or the result of a timed one is not taken yet. Timed steps have a recording of their own, for the others to cost
  // nothing; they have the same bits.
  //
  // A step that is not finite changes no weight, bias or moment, and nor does any after it, whatever was enqueued
  // meanwhile, until initialise() or restore().
  void step(const Progress& progress, int64_t num_targets, bool with_routers = false, bool with_phases = false);
  void wait();  // for all that is enqueued
  int64_t num_pending() const { return num_enqueued_ - num_taken_; }
  bool has_result() const;   // take_result() would not wait
  StepResult take_result();  // of the oldest pending step
  StepResult result();       // of the last step; takes all
  // Of the last step, in layer order; waits. evaluate() leaves it as it is, find_non_finite() does not.
  std::vector<RouterHealth> router_health();

  // The first parameter or intermediate that is not finite when this rank's microbatches of the step whose result was
  // taken last are run again. Before anything is loaded after that; pending steps are lost.
  NonFinite find_non_finite();

  // --- checks of precision (precision_checks.h)
  // Whether a step is pending that may change the formats of products: its result is to be taken before the next step,
  // which otherwise waits for it and drops it.
  bool decision_is_pending() const {
    return precision_ && precision_->acts() && last_check_ >= num_taken_ && !ops_.counting();
  }
  // What checks have found so far, of results that were taken, for a checkpoint; and back, before the first step.
  // False where it is not of this model.
  std::vector<PrecisionRole> precision() const {
    return precision_ ? precision_->state() : std::vector<PrecisionRole>();
  }
  bool restore_precision(std::span<const PrecisionRole> state);
  // Every part of a layer without its format, for a plan.
  void leave_precision();

  // --- experts that the ranks of a domain share (parallel/expert_placement.h)
  bool shares_experts() const { return !experts_.places.empty(); }
  const ExpertState& experts() const { return experts_; }
  // The places and rows that a run left, before initialise() or restore(): moves nothing. Ignored where no experts are
  // shared.
  void place_experts(const ExpertState& experts);
  // Behind every parallel.rebalance_every steps, in front of the next.
  bool rebalance_is_due(int64_t steps) const;
  // With parallel.rebalance_every: enqueues what moves experts, with their weights and optimizer state, to where ranks
  // would have got more equal loads in the steps whose results were taken since the last call. No step may be pending.
  // All ranks call it alike, and get the same. Gradients are overwritten.
  Rebalancing rebalance();

  // Token losses in nats of up to train.microbatch_seqs sequences of data.seq_len; targets < 0 give 0. `predictions`,
  // unless empty, become the likeliest next tokens, at every position.
  void evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets, std::span<float> losses,
                const Documents& documents = {}, std::span<int32_t> predictions = {});
  // Next-token logits of the rows `rows` of up to train.microbatch_seqs sequences of data.seq_len: as many for each as
  // the model's vocabulary has ids.
  void next_logits(std::span<const int32_t> inputs, std::span<const int32_t> rows, std::vector<float>& logits,
                   const Documents& documents = {});

  // What a checkpoint holds of this rank, in host memory: weights as their masters. Allocated at first use: locking so
  // much memory takes longer than a run's first steps. stage() enqueues copies there of what this rank writes, and does
  // not wait: it is complete once wait_staged(), from any thread, has returned, and keeps while training goes on. Call
  // it again only when the last is written. restore() copies all that is there to the device.
  const StateTensors& staging();
  void stage();
  void wait_staged() const { staged_->wait(); }
  void restore();

  // How long the other ranks wait for this one, in calls and on their devices; at first parallel.timeout_s.
  void set_patience(std::chrono::milliseconds patience) const { domain_.set_patience(patience); }

  const Rank& rank() const { return rank_; }
  bool masks_documents() const { return config_.data.mask_documents; }
  Model& model() { return model_; }

 private:
  StepSlot& slot(int64_t step) { return slots_[static_cast<size_t>(step % kMaxPending)]; }
  const StepSlot& slot(int64_t step) const { return slots_[static_cast<size_t>(step % kMaxPending)]; }
  // Steps of one shape, checked or not.
  struct Steps {
    bool warm = false;  // one was run
    std::unique_ptr<PhaseClock> clock;
    std::unique_ptr<Recording> recording, timed;  // timed: by the clock
  };
  void enqueue_timed(PhaseClock& clock);
  void enqueue_inputs(const Progress& progress, int64_t num_targets);
  void enqueue_begin();
  void enqueue_gradients(const Inspector& inspect = {});
  void sum_gradients(size_t first_weight, size_t end_weight);
  void enqueue_update();
  void enqueue_results(bool with_routers);
  Batch place(const MicrobatchArrays& arrays);
  void forget_recordings();
  void or_failure(const std::function<void()>& work) const;
  StepScale step_scale(size_t shape) const;
  void allocate_staging();
  void allocate_exchange(Arena& state);  // of tokens between ranks, where others share the experts
  void allocate_sums(Arena& state);
  void collect_shared_tensors();  // summed_, summed_across_, grads_ and values_
  bool in_order() const { return config_.parallel.logical_shards > 0; }
  void gather_values();  // of the weights that every rank has, from those that updated them
  std::vector<MovableExperts> movable_experts();
  void set_places(ExpertPlacement places);

  Config config_;
  Rank rank_;
  Storage& storage_;
  Device& device_;
  Ops& ops_;
  Arena& activations_;
  std::vector<BatchShape> shapes_;  // that steps may have
  PutIds upload_, write_;           // to the device, to the host's side
  Domain domain_;
  Model model_;
  StepInputs inputs_;        // of the step that is computed
  size_t shape_ = 0;         // of the next step
  size_t inputs_shape_ = 0;  // of what inputs_ holds
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<StepSlot> slots_;  // kMaxPending; a step's is the one of its number
  int64_t num_enqueued_ = 0;     // steps
  int64_t num_taken_ = 0;
  int64_t timed_step_ = -1;             // the last, counted as those enqueued
  StateTensors staging_;                // empty before its first use
  ExpertState experts_;                 // empty where no experts are shared; rows where they are rebalanced
  Tensor losses_;                       // [T] stat
  Tensor predictions_;                  // [T] i32
  Tensor partial_sums_;                 // f64: of token losses, then of squares of gradients; summed over ranks
  Tensor partial_losses_;               // its parts: one, or one a logical shard
  Tensor partial_squares_;              //            one, or one a chunk of a weight
  SumsOfSquares squares_;               // that this rank sums
  Tensor square_order_;                 // i32: with logical shards, squares of experts in the experts' order
  Tensor sums_;                         // [2] f64: of all token losses, of all squares
  Tensor loss_sum_, square_sum_;        // [1] f64 each, its parts
  Tensor grad_scale_;                   // [1] f64
  Tensor stopped_;                      // [1] i32: not 0 from the first step that is not finite
  Tensor bad_count_;                    // [1] i32
  std::vector<Domain::Part> grads_;     // of the weights that every rank has; this one's parts of them
  std::vector<Domain::Part> values_;    // and of their values
  std::vector<Tensor> summed_across_;   // what a step sums over domains beside gradients
  std::vector<Tensor> summed_;          // and then over the ranks of a domain, for all of them
  std::unique_ptr<Event> enqueued_;     // behind all that was enqueued when it was recorded last
  std::unique_ptr<Event> staged_;       // behind the copies of the last stage()
  std::unique_ptr<Prefetch> prefetch_;  // of inputs_
  std::optional<PrecisionChecks> precision_;
  bool checks_ = false;                   // of the step that is enqueued: whether it is checked
  int64_t last_check_ = -1;               // number of the last step that was
  const PhaseClock* timed_by_ = nullptr;  // of timed_step_
  std::vector<Steps> steps_;  // by shape, then by whether they are checked; last: recordings use all of the above
};

// The device that a run asks for, or one of its ranks: these share CPU threads equally, each having at least one.
DeviceOptions device_options(const RunConfig& run, int64_t num_ranks = 1, int64_t rank = 0);

// What one whole step of each length, a validation and a checkpoint's staging use on each of config.parallel.ranks
// ranks, of which `in_domain` share the experts; 0: all. `part`: of a rank on that part, which need not be here;
// run.device is "cuda". `seq_lens` as for an engine.
StoragePlan plan_engine_storage(const Config& config, int64_t in_domain = 0, const std::optional<cuda::Part>& part = {},
                                std::span<const int64_t> seq_lens = {});

// Rows of a layer's experts on each rank, in the largest microbatch; all zero where no other rank sends any.
ExpertRows plan_expert_rows(const Config& config, int64_t in_domain = 0, std::span<const int64_t> seq_lens = {});

}  // namespace nmoe
