// The whole language model: embedding, blocks, final norm, head, and in training modules that predict further tokens.
//
// T tokens of a microbatch, D model width, V vocabulary.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/block_inputs.h"
#include "model/heads/language_head.h"
#include "model/parts/moe.h"
#include "model/pass.h"
#include "model/prediction_module.h"
#include "model/sequence_model.h"
#include "model/spec/spec.h"
#include "model/weight_set.h"
#include "rdep/placement.h"

namespace nmoe {

// What passes keep, in which formats, and what they minimise.
struct PassOptions {
  PerLayer<Recompute> recompute = Recompute::kNone;  // changes what forward_backward keeps, but no result
  RowFormat wire = RowFormat::kDevice;               // of tokens sent to routed experts, except in cached passes
  PerLayer<RowFormat> saved = RowFormat::kDevice;    // KeepOptions::saved, of forward_backward
  Objectives objectives = next_token_alone();
  GenerationArithmetic generation = GenerationArithmetic::kLatent;  // of cached passes
};

class Model final : public SequenceModel {
 public:
  // Over weights that somebody else owns, as describe_model(config) has them, which outlive it, as `ops` do: its passes
  // are in their arithmetic. Several models may run the same weights, one after the other. config.vocab_size must be
  // set. Angle tables cover `max_positions`. With a share of several ranks, all of them make the same passes, each over
  // any number of tokens.
  Model(const ModelConfig& config, WeightSet& weights, Ops& ops, int64_t max_positions, PassOptions passes = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Allocates tables and router statistics. Call once, before any pass.
  void allocate(Arena& state);
  // With Recompute::kHost in some layer: where inputs of blocks wait, in mapped memory and an arena for this alone.
  // Call once, before any forward_backward().
  void keep_inputs_in(Arena& host);
  // Where several ranks share the experts: sends tokens to them through `transport`, which must outlive the model.
  // Allocates its window for passes within `limits`, and in `state` what belongs to it. Call once, after weights have
  // their codes (model/weight_formats.h), if they are to have any.
  void share_experts(Transport& transport, Arena& state, const ExchangeLimits& limits);
  // Sets where the experts of each MoE layer are from now on; initially they are in order. Only after
  // share_experts(). Moves nothing: a slot's contents are taken to be the expert that is now there.
  void place_experts(const ExpertPlacement& placement);
  // Who follows all passes that belong to no step, from now on; nobody if it is empty.
  void watch(Inspector inspect) { inspect_ = std::move(inspect); }
  // Sets statistics of routers and exchanges to zero; what follows overwrites gradients.
  void begin_step();
  // Computes the gradients of the objectives' losses and of those of further depths, the sum of each one's token losses
  // times its element of scale.loss, and of auxiliary losses: = in the first microbatch of a step, += in later ones
  // (but see UpdateShare::in_order). losses [objectives + depths, T] stat =; predictions [depths, T] i32 = the token
  // that each depth finds likeliest, undefined: not wanted. GradientsReady is called before each mixer's backward, and
  // with 0 at the end. Gradients of head and embedding are added up in the order next token, depth 1, 2, ... and depth
  // ..., 2, 1, first tokens.
  void forward_backward(const Batch& batch, const StepScale& scale, Arena& activations, Tensor losses,
                        const Watchers& watchers = {}, Tensor predictions = {});
  // Token losses, the negative log-probabilities of the batch's targets, and, if `predictions` is defined, the
  // likeliest next tokens: [T] i32 =. Router statistics, which are those of a step, do not change unless `statistics`.
  void forward(const Batch& batch, Arena& activations, Tensor losses, Tensor predictions = {}, bool statistics = false);
  // Next-token logits [T, V] = of every position, or [L, V] = of the positions `rows`
  // [L] i32 (of T). Router statistics do not change.
  void logits(const Batch& batch, Arena& activations, Tensor logits, Tensor rows = {});
  // The same for losses, computed for kScoredAtOnce rows at a time: if the number of rows is a multiple of this, all
  // products have the same shape.
  static constexpr int64_t kScoredAtOnce = 1024;
  void scores(const Batch& batch, Arena& activations, const ScoredRows& scored);

  // Passes of generation: the same values as from logits(), up to rounding. States have at most as many positions as
  // the tables. Only where all experts are on this rank.
  Ops& ops() const override { return ops_; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  std::vector<StateSpec> states() const override;
  void cached_logits(const CachedRows& rows, const ModelStates& states, Arena& activations, Tensor wanted,
                     Tensor logits) override;
  void cached_scores(const CachedRows& rows, const ModelStates& states, Arena& activations,
                     const ScoredRows& scored) override;
  // Where cached passes leave their states behind the final norm from now on: of a pass's row i in row i of `states`
  // [R, D], in passes of up to R rows. It outlives them.
  void keep_cached_states(Tensor states) { cached_states_ = states; }
  // What the first module of multi-token prediction keeps of a sequence in passes of its own.
  std::vector<StateSpec> prediction_states() const;
  // A pass of that module: row t goes on from the states in row sources[t] of `hidden` [R, D] with its token, which is
  // the one behind those. Leaves its states for the rows `wanted` [L] i32 in `made` [L, D], which may be rows of
  // `hidden`, and their logits [L, V], of what follows the token; none if L is 0.
  struct PredictionRows {
    CachedRows rows;
    Tensor sources;  // [T] i32
    Tensor hidden;
    Tensor made;
  };
  void cached_predictions(const PredictionRows& rows, const ModelStates& states, Arena& activations, Tensor wanted,
                          Tensor logits);
  // Updates every router's selection bias by the signs of this step's load errors, unless grad_scale is not finite.
  void update_router_bias(Tensor grad_scale);

  const ModelConfig& config() const { return config_; }
  WeightSet& weights() const { return weights_; }
  // The layer from normed hidden states [N, D] to logits [N, V].
  const Linear& head() const { return head_.linear(); }
  const std::vector<Moe*>& moe_layers() const { return moe_layers_; }  // in layer order
  // The statistics of all routers: rows of each expert, [L, E] i32, and sums, [L, 3] f64.
  Tensor router_counts() const { return router_counts_; }
  Tensor router_sums() const { return router_sums_; }
  // Of all ranks and layers, in the arena `state`; undefined without other ranks.
  const ExchangeStats& exchange_stats() const { return exchange_stats_; }

 private:
  // Of a pass with backward: what further depths keep of it.
  struct Ahead {
    std::vector<PredictionModule::Kept> kept;  // by depth
    std::vector<Tensor> gradients;             // [T, D], of each depth's states
  };
  const PredictionModule& module_of(size_t depth) const { return *modules_[config_.mtp.shared ? 0 : depth]; }
  // Further depths, of states [T, D] behind the final norm: forward with their losses, and backward, which adds to the
  // states' gradient.
  Ahead forward_ahead(Pass& pass, Tensor states, Tensor losses, Tensor predictions);
  void backward_ahead(Pass& pass, const Ahead& ahead, Tensor dstates);
  OutputPlace place_of_input(size_t layer);
  Pass make_pass(const Batch& batch, Arena& activations) const;
  // Embedding and blocks without keeping anything for backward: [T, D], normed.
  Tensor hidden_states(const Pass& pass);
  // The same for rows that see the states and are added to them.
  Tensor cached_hidden_states(const Pass& pass, const CachedRows& rows, const ModelStates& states);

  ModelConfig config_;
  Ops& ops_;
  int64_t max_positions_;
  PassOptions passes_;
  std::vector<KeepOptions> keep_;  // in forward_backward, of each layer, then of each further depth
  std::optional<BlockInputs> inputs_;
  Inspector inspect_;
  ModelSpec spec_;
  WeightSet& weights_;
  Weight& embedding_;             // [V, D]
  std::vector<Moe*> moe_layers_;  // of blocks_, then of modules_, which add themselves
  std::vector<std::unique_ptr<Block>> blocks_;
  Norm final_norm_;
  std::vector<std::unique_ptr<PredictionModule>> modules_;
  LanguageHead head_;  // [V, D]; the embedding itself when tied
  std::optional<ExchangeWindow> window_;
  Tensor places_;                       // [L, E] i32 of the experts; with a window
  Tensor expert_numbers_;               // [L, slots] i32: which are this rank's; with a window
  Tensor router_counts_, router_sums_;  // undefined in a model without routers
  ExchangeStats exchange_stats_;
  RopeTables rope_;
  Tensor cached_states_;  // keep_cached_states(); undefined: they are not kept
};

}  // namespace nmoe
