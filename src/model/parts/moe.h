// Mixture of experts (DeepSeekMoE, arXiv 2401.06066; router of DeepSeek-V3, arXiv 2412.19437): a token passes its
// top_k routed experts, weighted, and all shared experts. Dropless: every routed copy is processed.
//
// T tokens, D width of the stream, L width of rows that travel (travelling_width in model/spec/moe.h), E routed
// experts, K top_k, R routed rows (the exchange's capacity for T tokens, of which the routing uses a part:
// rdep/routed_rows.h), F expert width, W pre-activation width.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "model/parts/mlp.h"
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

  Application forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) const override;
  // Requires all experts to be on this rank.
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const CodedRows& dy, Tensor dx) const override;
  bool takes_codes() const override {
    return wire_ == RowFormat::kFp8 || experts_in_.weight().takes_codes() || (shared_ && shared_->takes_codes());
  }

  // Sets the format of what is sent to routed experts, except in cached_forward(). To be called before the first pass.
  void send_as(RowFormat wire) { wire_ = wire; }
  // Sets where its router's statistics are stored. To be called before the first pass.
  void keep_stats(const RouterStats& stats) { stats_ = stats; }
  // From now on tokens go to their experts by this exchange; at first by one for experts that are all here.
  void exchange_by(std::unique_ptr<TokenExchange> exchange) { exchange_ = std::move(exchange); }
  std::array<Weight*, 2> expert_weights() const { return {&experts_in_.weight(), &experts_out_.weight()}; }
  const RouterStats& stats() const { return stats_; }
  const Weight& router_bias() const { return router_bias_; }
  int64_t layer() const { return layer_; }  // its index among all layers of the model

 private:
  // The form in which x [T, D], or a gradient, is sent. Missing codes are
  // made, in memory of the activations arena.
  CodedRows sent(const Pass& pass, const CodedRows& x) const;
  // Codes of the source of the rows that came of x: those that travelled or, of rows picked from x, its own.
  RowCodes codes_of(const ArrivedRows& arrived, const CodedRows& x) const;
  RouterRule rule() const;
  RouterLoss loss(const Pass& pass) const;
  // N rows on their way through the experts.
  struct ExpertPass {
    OperandRows rows;                                   // [N, L]
    Tensor row_weight;                                  // [N]
    Tensor pre;                                         // [N, W]
    Tensor hidden;                                      // [N, F]; undefined if codes suffice
    RowCodes hidden_codes = {};                         // [N, F], if the second layer uses them
    ColumnCodes hidden_columns = {}, pre_columns = {};  // [N, F], and [N, W] of pre's gradient, if weight gradients
                                                        // use them
    RowCodes pre_codes = {};                            // [N, W]: forward writes them, backward reads them for pre
    bool keeps_hidden = true;                           // forward: whether anyone reads hidden but as codes
    bool makes_hidden = false;                          // backward: whether hidden, or its columns, was not kept
    bool keeps_gradient = false;                        // whether pre's gradient itself is needed too
    RowCodes source_codes = {};                         // of the rows' source, if it has codes
  };
  struct ExpertGradients {
    OperandRows dy;              // [N, L] of the experts' outputs; may lie in drows
    Tensor drows;                // [N, L] of the rows
    Tensor drow_weight;          // [N]
    RowCodes source_codes = {};  // of dy's source, if it has codes
  };
  struct Kept {
    Tensor logits;   // [T, E]
    Tensor scores;   // [T, E]
    Tensor top_idx;  // [T, K] i32
    Tensor weights;  // [T, K]
    std::shared_ptr<RoutedExchange> exchange;
    Tensor row_weight;                        // [R] weights dispatched
    OperandRows rows;                         // [R, L] x dispatched
    Tensor pre;                               // [R, W]
    RowCodes pre_codes;                       // [R, W], if they wait for backward instead of pre
    Tensor hidden;                            // [R, F], times row_weight; undefined if hidden_columns are kept instead
    std::vector<ColumnCodes> hidden_columns;  // [R, F], by parts, if the gradient of the second weight uses codes
    Application shared;                       // of the shared experts

    const RoutedRows& routed() const { return exchange->routed(); }
    ExpertPass expert_rows() const {
      return {.rows = rows, .row_weight = row_weight, .pre = pre, .hidden = hidden, .pre_codes = pre_codes};
    }
  };
  // kept's logits, scores, top_idx and weights = of x.
  void route(const Pass& pass, Tensor x, const Kept& kept) const;
  // y += the experts' outputs for kept.rows. Leaves pre and hidden, or codes of hidden if kept.hidden_columns has
  // memory for them, and codes of pre if pre_codes has. source_codes: of the rows' source, if it has codes.
  void forward_experts(const Pass& pass, const Kept& kept, const RowCodes& source_codes, Tensor y) const;
  // Whether the gradient of the second weight takes hidden units as codes of columns; chunks of overflow want them as
  // they are.
  bool multiplies_columns(const Kept& kept) const;
  // Memory for the codes of columns of rows [R, width] that the gradient of `of`'s weight uses, one for each part.
  std::vector<ColumnCodes> push_columns(const Pass& pass, const Kept& kept, const GroupedLinear& of,
                                        int64_t width) const;
  // pre and hidden, or their codes, = from a part's rows.
  void forward_hidden(const Pass& pass, const RaggedRows& part, const ExpertPass& of) const;
  // Backward of a part, except for the gradient of the first weight: from the gradients of the experts' outputs to
  // those of the rows. pre is overwritten by its gradient.
  void backward_experts(const Pass& pass, const RaggedRows& part, const ExpertPass& of,
                        const ExpertGradients& gradients) const;
  // The gradient of the first weight from a part's rows, after backward_experts().
  void backward_in_weight(const Pass& pass, const RaggedRows& part, const ExpertPass& of) const;
  // Calls work(rows, index) for each part of the rows; each has its own random bits for rounding gradients.
  void for_each_part(const Kept& kept, const std::function<void(const RaggedRows&, size_t part)>& work) const;
  // How overflow is processed by the experts: forward in the memory of rows_out and more that it pushes; backward in
  // the memory of the rows that forward kept, which are no longer needed (unless all overflow is empty: OverflowWork).
  // `pass` must outlive what they return.
  OverflowWork overflow_forward(const Pass& pass, const Kept& kept, Tensor rows_out) const;
  OverflowWork overflow_backward(const Pass& pass, const Kept& kept, const ExpertGradients& gradients) const;

  const ModelConfig& config_;
  int64_t layer_;
  int64_t travel_dim_;  // L
  int64_t expert_dim_;  // F
  RowFormat wire_ = RowFormat::kDevice;
  Linear router_;              // [E, D]
  Weight& router_bias_;        // [E], selection only
  GroupedLinear experts_in_;   // [E, W, L]
  GroupedLinear experts_out_;  // [E, L, F]
  std::unique_ptr<TokenExchange> exchange_;
  std::optional<Mlp> shared_;
  RouterStats stats_;
};

}  // namespace nmoe
