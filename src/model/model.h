// The whole language model: embedding, blocks, final norm, head with its loss.
//
// T tokens of a microbatch, D model width, V vocabulary.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/linear.h"
#include "model/pass.h"
#include "model/spec.h"
#include "model/weight.h"
#include "parallel/expert_placement.h"

namespace nmoe {

// What is wanted of some rows of a pass: how likely the token behind each was. L pairs of a row and a token; a row may
// be in several.
struct ScoredRows {
  Tensor rows;         // [L] i32, of the pass's
  Tensor targets;      // [L] i32: the token that came behind the row
  Tensor losses;       // [L] stat =: its loss in nats, over all of V
  Tensor predictions;  // [L] i32 =: the likeliest token, the lowest of equals
};

class Model {
 public:
  // config.vocab_size must be set. Angle tables cover `max_positions`. The model keeps a reference to `ops`.
  // `recompute` changes what forward_backward keeps, and no result. With a `share` of several ranks these all make the
  // same passes, over as many tokens each as may be. `wire`: what tokens are to routed experts, but of passes that are
  // cached.
  Model(const ModelConfig& config, Ops& ops, int64_t max_positions, Recompute recompute = Recompute::kNone,
        DomainShare share = {}, WireFormat wire = WireFormat::kDevice);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Storage of weights and gradients; tables and router statistics go to `state`. Call once, before anything else.
  void allocate(Arena& values, Arena& grads, Arena& state);
  // Storage for what ranks put there, in a shared arena: of passes within `limits`. Call once, in a domain of several
  // ranks only: `peers`, which outlive the model, are those ranks; this one is `rank` of the `num_ranks` of the run.
  void allocate_window(const Peers& peers, Arena& window, Arena& state, const ExchangeLimits& limits, int64_t rank,
                       int64_t num_ranks);
  // Where the experts of each layer of experts are from here on, in order at first; in such a domain only. Moves
  // nothing: what a slot holds is taken for the expert that is now there.
  void place_experts(const ExpertPlacement& placement);
  // Of what this rank updates (model/weight.h).
  void initialise(uint64_t seed) { weights_.initialise(ops_, seed, config_.init.truncation); }

  // Zeroes statistics of routers and exchanges; gradients are written anew by what comes next.
  void begin_step();
  // Gradients, = in the first microbatch of a step and += after it (but see DomainShare::in_order): those of (sum of
  // token losses) * scale.loss + auxiliary losses. losses [T] stat =, in nats. `ready` is called once in each layer,
  // and with 0 at the end.
  void forward_backward(const Batch& batch, const StepScale& scale, Arena& activations, Tensor losses,
                        const Inspector& inspect = {}, const GradientsReady& ready = {});
  // Token losses, and where `predictions` is defined the likeliest next tokens: [T] i32 =. Router statistics
  // stay as they are, which are those of a step, unless `statistics`.
  void forward(const Batch& batch, Arena& activations, Tensor losses, Tensor predictions = {}, bool statistics = false);
  // Next-token logits [T, V] = of every position, or [L, V] = of the positions `rows` [L] i32 (of T). Router statistics
  // stay as they are.
  void logits(const Batch& batch, Arena& activations, Tensor logits, Tensor rows = {});
  // The same for losses, made for kScoredAtOnce rows at a time: where there is a multiple of those, products have one
  // shape.
  static constexpr int64_t kScoredAtOnce = 1024;
  void scores(const Batch& batch, Arena& activations, const ScoredRows& scored);

  // Storage for `num_slots` sequences of up to `capacity` positions, of which there may not be more than max_positions.
  KvCache make_cache(Arena& arena, int64_t num_slots, int64_t capacity) const;
  // Runs rows through the model, each attending to what is cached of its slot, and adds them to the cache. logits [L,
  // V] = of the rows `wanted` [L] i32 (of T); none where L is 0. The same values as logits() gives, up to rounding.
  void cached_logits(const CachedRows& rows, const KvCache& cache, Arena& activations, Tensor wanted, Tensor logits);
  // The same for losses; none where `scored` has no rows.
  void cached_scores(const CachedRows& rows, const KvCache& cache, Arena& activations, const ScoredRows& scored);
  // Moves every router's selection bias by its integer load error of this step, unless grad_scale is not finite.
  void update_router_bias(Tensor grad_scale);

  const ModelConfig& config() const { return config_; }
  WeightSet& weights() { return weights_; }
  const WeightSet& weights() const { return weights_; }
  // What turns normed hidden states [N, D] into logits [N, V].
  const Linear& head() const { return head_; }
  const std::vector<Moe*>& moe_layers() const { return moe_layers_; }  // in layer order
  // The statistics of all routers: what each expert got, [L, E] i32, and sums, [L, 3] f64.
  Tensor router_counts() const { return router_counts_; }
  Tensor router_sums() const { return router_sums_; }
  // Of all ranks and layers, in the arena `state`; undefined where a rank is alone.
  const ExchangeStats& exchange_stats() const { return exchange_stats_; }

 private:
  Pass make_pass(const Batch& batch, Arena& activations) const;
  // Embedding and blocks without keeping anything for backward: [T, D], normed.
  Tensor hidden_states(const Pass& pass);
  // The same of rows that see what is cached, and go there.
  Tensor cached_hidden_states(const Pass& pass, const CachedRows& rows, const KvCache& cache);
  void write_logits(const Pass& pass, Tensor normed, Tensor rows, Tensor logits);
  void write_scores(const Pass& pass, Tensor normed, const ScoredRows& scored);

  ModelConfig config_;
  Ops& ops_;
  int64_t max_positions_;
  Recompute recompute_;
  WireFormat wire_;
  ModelSpec spec_;
  WeightSet weights_;
  Weight& embedding_;  // [V, D]
  std::vector<std::unique_ptr<Block>> blocks_;
  Norm final_norm_;
  Linear head_;  // [V, D]; the embedding itself when tied
  std::vector<Moe*> moe_layers_;
  std::optional<ExchangeWindow> window_;
  Tensor places_;                       // [L, E] i32 of the experts; with a window
  Tensor expert_numbers_;               // [L, slots] i32: which are this rank's; with a window
  Tensor router_counts_, router_sums_;  // undefined in a model without routers
  ExchangeStats exchange_stats_;
  RopeTables rope_;
};

}  // namespace nmoe
