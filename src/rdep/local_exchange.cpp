#include "rdep/exchange.h"

namespace nmoe {
namespace {

class LocalRouting final : public RoutedExchange {
 public:
  LocalRouting(const ExchangePass& pass, int64_t num_experts, Tensor top_idx, Tensor counts)
      : plan_{.offsets = pass.activations.allocate(DType::kI32, {num_experts + 1}),
              .row_of = pass.activations.allocate(DType::kI32, top_idx.shape()),
              .token_of = pass.activations.allocate(DType::kI32, {top_idx.num_elements()})} {
    const int64_t capacity = top_idx.num_elements();
    pass.ops.build_moe_plan({.top_idx = top_idx, .plan = plan_, .counts = counts});
    routed_ = {
        .capacity = capacity, .parts = {{.begin = 0, .end = capacity, .offsets = plan_.offsets}}, .overflow = {}};
  }

  void begin_dispatch(const ExchangePass&, const CodedRows& x, Tensor weights) override { x_ = x, weights_ = weights; }
  ArrivedRows end_dispatch(const ExchangePass& pass, Tensor row_weight) override {
    pass.ops.moe_dispatch_weights({.weights = weights_, .plan = plan_, .row_weight = row_weight});
    return rows_begun(pass);
  }
  void combine(const ExchangePass& pass, Tensor rows, Tensor y, bool accumulate, const OverflowWork&) override {
    pass.ops.moe_combine({.rows = rows, .plan = plan_, .y = y, .accumulate = accumulate});
  }

  // Combine is a sum, whose gradient goes to each of its terms: a dispatch. Dispatch makes copies, whose gradients are
  // summed: a combine.
  void begin_combine_backward(const ExchangePass&, const CodedRows& dy, const CodedRows&, Tensor) override { x_ = dy; }
  ArrivedRows end_combine_backward(const ExchangePass& pass, Tensor) override { return rows_begun(pass); }
  void begin_dispatch_backward(const ExchangePass&, Tensor drows, Tensor drow_weight) override {
    rows_ = drows, weights_ = drow_weight;
  }
  void end_dispatch_backward(const ExchangePass& pass, Tensor dx, Tensor dweights, bool accumulate,
                             const OverflowWork&) override {
    pass.ops.moe_combine({.rows = rows_, .plan = plan_, .y = dx, .accumulate = accumulate});
    pass.ops.moe_combine_weights({.row_weight = weights_, .plan = plan_, .weights = dweights});
  }

 private:
  // The rows of experts, in the tokens that were begun.
  ArrivedRows rows_begun(const ExchangePass& pass) const {
    Tensor tokens = x_.rows;
    if (x_.codes.defined()) {
      tokens = pass.activations.allocate(pass.ops.compute_dtype(), x_.rows.shape());
      pass.ops.widen_rows({.codes = x_.codes, .x = tokens});
    }
    return {.rows = {tokens, plan_.token_of, plan_.row_of}, .codes = x_.codes};
  }

  const MoePlan plan_;
  CodedRows x_{Tensor()};  // what was begun
  Tensor rows_, weights_;
};

class LocalExchange final : public TokenExchange {
 public:
  explicit LocalExchange(int64_t num_experts) : num_experts_(num_experts) {}

  std::unique_ptr<RoutedExchange> plan(const ExchangePass& pass, Tensor top_idx, Tensor counts) const override {
    return std::make_unique<LocalRouting>(pass, num_experts_, top_idx, counts);
  }

 private:
  int64_t num_experts_;
};

}  // namespace

std::unique_ptr<TokenExchange> make_local_exchange(int64_t num_experts) {
  return std::make_unique<LocalExchange>(num_experts);
}

}  // namespace nmoe
