#include "rdep/exchange.h"

namespace nmoe {
namespace {

class LocalRouting final : public RoutedExchange {
 public:
  LocalRouting(const ExchangePass& pass, int64_t num_experts, RowFormat dispatch_format, Tensor top_idx, Tensor counts)
      : dispatch_format_(dispatch_format),
        plan_{.offsets = pass.activations.allocate(DType::kI32, {num_experts + 1}),
              .row_of = pass.activations.allocate(DType::kI32, top_idx.shape()),
              .token_of = pass.activations.allocate(DType::kI32, {top_idx.num_elements()})} {
    const int64_t capacity = top_idx.num_elements();
    pass.ops.build_moe_plan({.top_idx = top_idx, .plan = plan_, .counts = counts});
    routed_ = {
        .capacity = capacity, .parts = {{.begin = 0, .end = capacity, .offsets = plan_.offsets}}, .overflow = {}};
  }

  void begin_dispatch(const ExchangePass& pass, const Rows& x, Tensor weights) override {
    begin(pass, x);
    weights_ = weights;
  }
  Rows end_dispatch(const ExchangePass& pass, Tensor row_weight) override {
    pass.ops.moe_dispatch_weights({.weights = weights_, .plan = plan_, .row_weight = row_weight});
    return rows_begun(pass);
  }
  void combine(const ExchangePass& pass, Tensor rows, Tensor y, bool accumulate, const OverflowPass&) override {
    pass.ops.moe_combine({.rows = rows, .plan = plan_, .y = y, .accumulate = accumulate});
  }

  // Combine is a sum, whose gradient goes to each of its terms: a dispatch. Dispatch makes copies, whose gradients are
  // summed: a combine.
  void begin_combine_backward(const ExchangePass& pass, const Rows& dy, const Rows&, Tensor) override {
    begin(pass, dy);
  }
  Rows end_combine_backward(const ExchangePass& pass, Tensor) override { return rows_begun(pass); }
  void begin_dispatch_backward(const ExchangePass&, Tensor drows, Tensor drow_weight) override {
    rows_ = drows, weights_ = drow_weight;
  }
  void end_dispatch_backward(const ExchangePass& pass, Tensor dx, Tensor dweights, bool accumulate,
                             const OverflowPass&) override {
    pass.ops.moe_combine({.rows = rows_, .plan = plan_, .y = dx, .accumulate = accumulate});
    pass.ops.moe_combine_weights({.row_weight = weights_, .plan = plan_, .weights = dweights});
  }

 private:
  void begin(const ExchangePass& pass, const Rows& x) {
    x_ = x;
    if (dispatch_format_ == RowFormat::kFp8) x_.quantised = quantised(pass, x);
  }
  // The rows of experts, in the tokens that were begun.
  Rows rows_begun(const ExchangePass& pass) const {
    Tensor tokens = x_.tensor();
    if (dispatch_format_ == RowFormat::kFp8) {
      tokens = pass.activations.allocate(pass.ops.compute_dtype(), tokens.shape());
      pass.ops.widen_rows({.codes = x_.quantised, .x = tokens});
    }
    return {OperandRows(tokens, plan_.token_of, plan_.row_of), x_.quantised};
  }

  const RowFormat dispatch_format_;
  const MoePlan plan_;
  Rows x_;  // what was begun
  Tensor rows_, weights_;
};

class LocalExchange final : public TokenExchange {
 public:
  LocalExchange(int64_t num_experts, RowFormat dispatch_format)
      : TokenExchange(dispatch_format), num_experts_(num_experts) {}

  std::unique_ptr<RoutedExchange> plan(const ExchangePass& pass, Tensor top_idx, Tensor counts) const override {
    return std::make_unique<LocalRouting>(pass, num_experts_, dispatch_format(), top_idx, counts);
  }

 private:
  int64_t num_experts_;
};

}  // namespace

RowCodes quantised(const ExchangePass& pass, const Rows& x) {
  if (x.quantised.defined()) return x.quantised;
  const RowCodes made = push_row_codes(pass.activations, x.tensor().dim(0), x.tensor().dim(1));
  pass.ops.quantize(quantize_rows(x.tensor(), made));
  return made;
}

std::unique_ptr<TokenExchange> make_local_exchange(int64_t num_experts, RowFormat dispatch_format) {
  return std::make_unique<LocalExchange>(num_experts, dispatch_format);
}

}  // namespace nmoe
