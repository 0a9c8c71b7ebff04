// Engine: one rank's weights, gradients, optimizer state and buffers on a backend, and the parts of a step.
//
// The same code runs twice. Against counting arenas it measures what a step needs (measure_memory); then an
// engine with exactly that storage is made, and nothing allocates again.
//
// T tokens of a microbatch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/stream/documents.h"
#include "model/model.h"
#include "ops/backend.h"
#include "optim/optimizer.h"
#include "tensor/arena.h"
#include "tensor/named_tensor.h"

namespace nmoe {

// Bytes of each arena.
struct EngineMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t step_state = 0;          // batch, token losses and predictions, router statistics, rope tables
  int64_t scratch = 0;             // temporary storage of single operations
  int64_t checkpoint_staging = 0;  // the copy an asynchronous checkpoint writes from

  int64_t total() const {
    return parameters + gradients + optimizer + activations + step_state + scratch + checkpoint_staging;
  }
};

// A router's behaviour over one step.
struct RouterHealth {
  std::vector<int32_t> counts;  // [E] rows
  double balance_loss = 0.0;
  double z_loss = 0.0;
  double entropy = 0.0;     // mean over tokens, nats
  double bias_range = 0.0;  // largest minus smallest selection bias
};

struct StepResult {
  double loss = 0.0;       // mean cross-entropy over the step's target tokens, nats
  double grad_norm = 0.0;  // of all gradients of the step, before clipping
  bool finite = true;      // false: loss or gradient is not finite, and no weight was changed
};

struct StateTensors {
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;
};

class Engine {
 public:
  // `memory` null: counting. config.model.vocab_size must be resolved; `config` is copied.
  Engine(const Config& config, Backend& ops, const EngineMemory* memory);

  void initialise();

  // --- a step: load every microbatch, run
  int64_t num_microbatches() const { return static_cast<int64_t>(batches_.size()); }
  // Microbatch `index` of the next step: host arrays of microbatch_seqs * seq_len ids. `documents` are those of the
  // inputs where data.mask_documents is set, else empty; so everywhere below.
  void load(int64_t index, std::span<const int32_t> inputs, std::span<const int32_t> targets,
            const Documents& documents = {});
  // Forward, backward, clipping, weights and router biases, over what is loaded; `progress` is where it ends.
  // `num_targets`: targets with a loss in all of it; the loss is their mean. A step that is not finite changes nothing.
  // Enqueued as one recording, made at the second call: it waits for nothing.
  void step(const Progress& progress, int64_t num_targets);
  // The same unrecorded, for measuring: calls `done` after each phase, when its work is over. The phases of
  // step_phases() take turns by layer and microbatch.
  void step_in_phases(const Progress& progress, int64_t num_targets,
                      const std::function<void(std::string_view phase)>& done);
  StepResult result() const;                        // of the last step; waits for it
  std::vector<RouterHealth> router_health() const;  // of the last step, in layer order; waits

  // Names the first parameter or intermediate that is not finite when the loaded microbatches are run again, "" if all
  // are.
  std::string find_non_finite();

  // Token losses in nats of up to microbatch_seqs sequences; targets < 0 give 0. `predictions`, unless empty, become
  // the likeliest next tokens, at every position.
  void evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets, std::span<float> losses,
                const Documents& documents = {}, std::span<int32_t> predictions = {});

  // What a checkpoint holds, in host memory: weights as their masters. Allocated at first use: locking so much memory
  // takes longer than a run's first steps. stage() copies it there, where it keeps while training goes on: call it
  // again only when the last is written. restore() copies what is there to the device.
  const StateTensors& staging();
  const StateTensors& stage();
  void restore();

  bool masks_documents() const { return config_.data.mask_documents; }
  Model& model() { return model_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  EngineMemory used() const;  // most bytes ever in use

 private:
  void upload_batch(Batch& batch, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                    const Documents& documents);
  void set_step(const Progress& progress, int64_t num_targets);
  void enqueue_gradients(const Model::Inspector& inspect = {});
  void enqueue_update();
  StepScale step_scale() const;
  void allocate_batches();
  void allocate_staging();

  Config config_;
  Backend& ops_;
  Arena parameters_{"parameters"};
  Arena gradients_{"gradients"};
  Arena optimizer_state_{"optimizer"};
  Arena activations_{"activations"};
  Arena step_state_{"step state"};
  Arena staging_{"checkpoint staging"};
  Model model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Batch> batches_;       // the step's microbatches; cu_seqlens for as many documents as tokens
  std::vector<int32_t> cu_seqlens_;  // host side of a batch's cu_seqlens
  int64_t num_targets_ = 1;          // of the step
  int64_t staging_bytes_ = 0;        // that staging_ will take
  StateTensors staged_;
  Tensor losses_;                    // [T] stat
  Tensor predictions_;               // [T] i32
  Tensor loss_scale_;                // [1] f64: 1 / num_targets_
  Tensor loss_sum_;                  // [1] f64
  Tensor square_sum_;                // [1] f64
  Tensor grad_scale_;                // [1] f64
  Tensor bad_count_;                 // [1] i32
  bool warm_ = false;                // a step was run
  std::unique_ptr<Recording> step_;  // last: it uses all of the above
};

// What Engine::step_in_phases tells apart, in the order of their first turns: "zero gradients", "embedding", ...
// "update".
std::span<const std::string_view> step_phases();

// The backend that a run asks for.
std::unique_ptr<Backend> make_backend(const RunConfig& run);

// Runs one whole step, a validation and a checkpoint's staging against counting arenas.
EngineMemory measure_memory(const Config& config);

}  // namespace nmoe
