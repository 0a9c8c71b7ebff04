// Mixture of experts (DeepSeekMoE, arXiv 2401.06066; router of DeepSeek-V3, arXiv 2412.19437): a token passes its
// top_k routed experts, weighted, and all shared experts. Dropless: every routed copy is processed.
//
// With model.moe.latent_dim (LatentMoE, arXiv 2601.18089) routed experts are in a latent space: one projection down is
// before what travels to them, one up behind the sum of what they give, nothing else; router and shared experts read
// the stream. Sums: what the experts give is added up from 0 by a token's choices, the projection of that is added to
// the residual stream, or to that and the shared experts' output, and rounded once.
//
// T tokens, D width of the stream, L width of rows that travel (travelling_width in model/spec/moe.h), E routed
// experts, K top_k, R routed rows (the exchange's capacity for T tokens, of which the routing uses a part:
// rdep/routed_rows.h), F expert width, W pre-activation width.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/parts/shared_experts.h"
#include "rdep/exchange.h"

namespace nmoe {

// Statistics of one layer's router in a step, summed over microbatches. Set to zero by Model::begin_step.
struct RouterStats {
  Tensor counts;    // [E] i32 rows an expert got
  Tensor aux_loss;  // [2] f64 balance loss, z-loss
  Tensor entropy;   // [1] f64 sum over tokens, nats
};

class Moe final : public Part {
 public:
  Moe(const LayerPart& part, WeightSet& weights);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  // Requires all experts to be on this rank.
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  bool takes_codes(const Ops& ops) const override {
    const bool of_routed =
        exchange_->dispatch_format() == RowFormat::kFp8 || experts_in_.weight().copies.takes_codes(ops);
    return (of_routed && !latent_) || (shared_ && shared_->takes_codes(ops));
  }

  // Sets the format of what is sent to routed experts, except in cached_forward(). To be called before the first pass.
  void send_as(RowFormat wire) { exchange_ = make_local_exchange(config_.moe.num_experts, wire); }
  // Sets where its router's statistics are stored. To be called before the first pass.
  void keep_stats(const RouterStats& stats) { stats_ = stats; }
  // From now on tokens go to their experts by this exchange; at first by one for experts that are all here.
  void exchange_by(std::unique_ptr<TokenExchange> exchange) { exchange_ = std::move(exchange); }
  std::array<Weight*, 2> expert_weights() const { return {&experts_in_.weight(), &experts_out_.weight()}; }
  // What every expert has its own of, and so moves with it: those two, and biases.
  std::vector<Weight*> weights_per_expert() const;
  const RouterStats& stats() const { return stats_; }
  const Weight& router_bias() const { return router_bias_; }
  int64_t layer() const { return layer_; }  // its index among all layers of the model

 private:
  // N rows on their way through the experts.
  struct ExpertRows {
    Rows x;             // [N, L]
    Tensor row_weight;  // [N]
    Rows pre;           // [N, W]
    Rows hidden;        // [N, F], times row_weight
  };
  // Their gradients; those of the outputs may lie in the memory of x's.
  struct ExpertGradients {
    Rows dy;             // [N, L] of the outputs
    Rows dpre;           // [N, W]; may take the place of pre
    Tensor dx;           // [N, L]
    Tensor drow_weight;  // [N]
    Rows hidden = {};    // [N, F]: hidden units that did not wait for backward, made beside dpre
  };
  // Biases of the router's logits, and of both of the experts' products.
  struct Biases {
    Bias logits;      // [E]
    GroupedBias in;   // [E, W]
    GroupedBias out;  // [E, L]
  };
  // The projections between the stream and the experts' latent space, which no format rounds.
  struct Latent {
    Linear down;  // [L, D]
    Linear up;    // [D, L]
  };
  // What one application keeps for its backward.
  struct Kept {
    Tensor latent;                             // [T, L] what travels, and
    Tensor combined;                           // [T, L] the sum of what comes back; undefined without projections
    Tensor logits, scores;                     // [T, E]
    Tensor top_idx;                            // [T, K] i32
    Tensor weights;                            // [T, K]
    std::shared_ptr<RoutedExchange> exchange;  // of this routing
    Tensor row_weight;                         // [R] weights dispatched
    KeptRows x;                                // [R, L] tokens dispatched
    KeptRows pre;                              // [R, W]
    KeptRows hidden;                           // [R, F], times row_weight
    Application shared;                        // of the shared experts
  };
  // logits [T, E] of x [T, D].
  void forward_logits(const Pass& pass, Tensor x, Tensor logits) const;
  ExpertBias in_bias() const { return biases_ ? biases_->in.of() : ExpertBias{}; }
  // Of the outputs, which have the gate weights of their rows: hidden units have those already.
  ExpertBias out_bias(Tensor row_weight) const { return biases_ ? biases_->out.of(row_weight) : ExpertBias{}; }
  RouterRule rule() const;
  RouterLoss loss(const Pass& pass) const;
  // The router's decisions for x [T, D].
  Kept route(const Pass& pass, Tensor x) const;
  // The form in which R rows are wanted by columns for the gradient of a layer's weight.
  static ColumnForm columns_of(const GroupedLinear& layer, const RoutedRows& routed);
  // pre and hidden = of a part's x. Without reads_hidden, nobody reads hidden units but quantised.
  void forward_hidden(const Pass& pass, const RaggedRows& part, const ExpertRows& rows, bool reads_hidden = true) const;
  // Memory for forward_hidden's pre-activations: `pre`, and where nothing makes these in FP8 at once, for their values.
  Rows made_room(const Pass& pass, const Rows& pre, int64_t num_rows) const;
  // y =, or += with accumulate, the experts' outputs.
  void forward_experts(const Pass& pass, const Kept& kept, const Rows& x, Tensor y, bool accumulate) const;
  // y [T, D] = base + what experts gave, out of their latent space. base may be y.
  void add_latent(const Pass& pass, Tensor combined, Tensor base, Tensor y) const;
  // Memory for the gradient of pre-activations.
  Rows gradient_room(const Pass& pass, const RoutedRows& routed, const Rows& pre) const;
  // Backward of a part, except for the gradient of the first weight: from the gradients of the experts' outputs to
  // those of the rows.
  void backward_experts(const Pass& pass, const RaggedRows& part, const ExpertRows& rows,
                        const ExpertGradients& gradients) const;
  // The gradient of the first weight from a part's rows, after backward_experts().
  void backward_in_weight(const Pass& pass, const RaggedRows& part, const ExpertRows& rows,
                          const ExpertGradients& gradients) const;
  // Calls work(part) for each part of the rows; each has its own random bits for rounding gradients.
  template <class Work>
  void for_each_part(const RoutedRows& routed, const Work& work) const;
  // How overflow is processed by the experts: forward in the memory of rows_out, of what has served, and more that it
  // pushes; backward in the memory of the rows that forward kept, which are no longer needed (unless all overflow is
  // empty: OverflowPass). `pass` must outlive what they return.
  OverflowPass overflow_forward(const Pass& pass, const Kept& kept, const ExpertRows& served, Tensor rows_out) const;
  OverflowPass overflow_backward(const Pass& pass, const RoutedRows& routed, const ExpertRows& rows,
                                 const ExpertGradients& gradients) const;

  const ModelConfig& config_;
  int64_t layer_;
  int64_t travel_dim_;   // L
  int64_t expert_dim_;   // F
  Linear router_;        // [E, D]
  Weight& router_bias_;  // [E], selection only
  std::optional<Biases> biases_;
  std::optional<Latent> latent_;
  GroupedLinear experts_in_;   // [E, W, L]
  GroupedLinear experts_out_;  // [E, L, F]
  std::unique_ptr<TokenExchange> exchange_;
  std::optional<SharedExperts> shared_;
  RouterStats stats_;
};

}  // namespace nmoe
