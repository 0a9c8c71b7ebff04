// Mixture of experts (DeepSeekMoE, arXiv 2401.06066; router of DeepSeek-V3, arXiv 2412.19437): a token passes its
// top_k routed experts, weighted, and all shared experts. Dropless: every routed copy is computed.
//
// T tokens, D model width, E routed experts, K top_k, R routed rows (the exchange's capacity for T tokens, of which the
// routing uses a part: model/token_exchange.h), F expert width, W pre-activation width.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "model/mlp.h"
#include "model/remote_exchange.h"
#include "model/token_exchange.h"

namespace nmoe {

// What one layer's router did in a step, summed over microbatches. Zeroed by Model::begin_step.
struct RouterStats {
  Tensor counts;    // [E] i32 rows an expert got
  Tensor aux_loss;  // [2] f64 balance loss, z-loss
  Tensor entropy;   // [1] f64 sum over tokens, nats
};

class Moe final : public FeedForward {
 public:
  static void describe(const Layer& layer, WeightList& weights);
  Moe(const Layer& layer, WeightSet& weights);

  void forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) override;
  // All experts are here.
  void cached_forward(const Pass& pass, Tensor x, Tensor residual, Tensor y) override;
  void backward(const Pass& pass, const CodedRows& dy, Tensor dx) override;
  bool takes_codes() const override {
    return wire_ == WireFormat::kFp8 || experts_in_.weight().takes_codes() || (shared_ && shared_->takes_codes());
  }

  // What goes to routed experts from here on, but for cached_forward(). Before the first pass.
  void send_as(WireFormat wire) { wire_ = wire; }

  // Where its router's statistics are kept. Before the first pass.
  void keep_stats(const RouterStats& stats) { stats_ = stats; }
  // From here on experts are shared with the other ranks of a domain, and where `places` says (remote_exchange.h): of
  // stacked weights there are this rank's alone. `stats`: where this rank's of the layer are kept.
  void exchange_through(ExchangeWindow& window, Tensor places, const ExchangeStats& stats);
  std::array<Weight*, 2> expert_weights() const { return {&experts_in_.weight(), &experts_out_.weight()}; }
  const RouterStats& stats() const { return stats_; }
  const Weight& router_bias() const { return router_bias_; }
  int64_t layer() const { return layer_; }  // its index among all layers of the model

 private:
  struct Saved {
    Tensor x;        // [T, D]
    Tensor logits;   // [T, E]
    Tensor scores;   // [T, E]
    Tensor top_idx;  // [T, K] i32
    Tensor weights;  // [T, K]
    RoutedRows routed;
    Tensor row_weight;                        // [R] weights dispatched
    OperandRows rows;                         // [R, D] x dispatched
    Tensor pre;                               // [R, W]
    Tensor hidden;                            // [R, F], times row_weight; undefined where codes of its columns are kept
    std::vector<ColumnCodes> hidden_columns;  // of [R, F], of each part, where the second weight's gradient takes them
  };
  // What travels of x [T, D] or of a gradient. Codes that are not there are made, in memory of the activations arena.
  CodedRows sent(const Pass& pass, const CodedRows& x) const;
  // Whether experts on one rank read tokens where they are.
  bool reads_in_place() const;
  RouterRule rule() const;
  RouterLoss loss(const Pass& pass) const;
  // Rows on their way through the experts, N of them.
  struct ExpertPass {
    OperandRows rows;                                   // [N, D]
    Tensor row_weight;                                  // [N]
    Tensor pre;                                         // [N, W]
    Tensor hidden;                                      // [N, F]; undefined where codes serve
    RowCodes hidden_codes = {};                         // [N, F], where the second layer wants them
    ColumnCodes hidden_columns = {}, pre_columns = {};  // [N, F] and, of gradients, [N, W], where gradients of weights
                                                        // take them
    bool keeps_gradient = false;                        // whether pre's gradient is wanted beside those
    RowCodes source_codes = {};                         // [T, D] of what rows are picked from, where there are any
  };
  struct ExpertGradients {
    OperandRows dy;              // [N, D] of what the experts made of the rows; may lie in drows
    Tensor drows;                // [N, D] of the rows
    Tensor drow_weight;          // [N]
    RowCodes source_codes = {};  // [T, D] of what dy's rows are picked from, where there are any
  };
  ExpertPass saved_rows() const { return {saved_.rows, saved_.row_weight, saved_.pre, saved_.hidden}; }
  // Room for codes of columns [R, width] of `of`'s rows, of each part.
  std::vector<ColumnCodes> push_columns(const Pass& pass, const GroupedLinear& of, int64_t width) const;
  // pre and hidden = of a part's rows.
  void forward_hidden(const Pass& pass, const RaggedRows& part, const ExpertPass& of);
  // From the gradients of what the experts made of a part's rows: those of the rows, all but that of the first weight.
  // pre becomes its own gradient.
  void backward_experts(const Pass& pass, const RaggedRows& part, const ExpertPass& of,
                        const ExpertGradients& gradients);
  // That of the first weight, behind backward_experts.
  void backward_in_weight(const Pass& pass, const RaggedRows& part, const ExpertPass& of);
  // For each part of the rows, by its number; the random bits of gradients' rounding are then the part's.
  void for_each_part(const std::function<void(const RaggedRows&, size_t part)>& work);
  // How overflow passes the experts: forward in the memory of rows_out and what it pushes, backward in that of the rows
  // that were kept, which have served by then unless all overflow is empty (OverflowWork). pass outlives what they
  // return.
  OverflowWork overflow_forward(const Pass& pass, Tensor rows_out);
  OverflowWork overflow_backward(const Pass& pass, const ExpertGradients& gradients);

  const ModelConfig& config_;
  int64_t layer_;
  int64_t expert_dim_;  // F
  WireFormat wire_ = WireFormat::kDevice;
  Linear router_;                            // [E, D]
  Weight& router_bias_;                      // [E], selection only
  GroupedLinear experts_in_;                 // [E, W, D]
  GroupedLinear experts_out_;                // [E, D, F]
  std::unique_ptr<TokenExchange> exchange_;  // exchange_through()'s, else made by the first pass
  std::optional<Mlp> shared_;
  RouterStats stats_;
  Saved saved_;
};

}  // namespace nmoe
