#include "model/token_exchange.h"

namespace nmoe {
namespace {

class LocalExchange final : public TokenExchange {
 public:
  LocalExchange(int64_t num_experts, bool in_place) : num_experts_(num_experts), in_place_(in_place) {}

  RoutedRows plan(const Pass& pass, Tensor top_idx, Tensor counts) override {
    const int64_t capacity = top_idx.num_elements();
    plan_ = {.offsets = pass.push_i32({num_experts_ + 1}),
             .row_of = pass.push_i32(top_idx.shape()),
             .token_of = in_place_ ? pass.push_i32({capacity}) : Tensor()};
    pass.ops.build_moe_plan({.top_idx = top_idx, .plan = plan_, .counts = counts});
    return {.capacity = capacity, .parts = {{.begin = 0, .end = capacity, .offsets = plan_.offsets}}, .overflow = {}};
  }

  void begin_dispatch(const Pass&, Tensor x, Tensor weights) override { x_ = x, weights_ = weights; }
  OperandRows end_dispatch(const Pass& pass, Tensor row_weight) override {
    pass.ops.moe_dispatch_weights({.weights = weights_, .plan = plan_, .row_weight = row_weight});
    return rows_of(pass, x_, in_place_ ? Tensor() : pass.push({row_weight.dim(0), x_.dim(1)}));
  }
  void combine(const Pass& pass, Tensor rows, Tensor y, bool accumulate, const OverflowWork&) override {
    pass.ops.moe_combine({.rows = rows, .plan = plan_, .y = y, .accumulate = accumulate});
  }

  // Combine is a sum, whose gradient goes to each of its terms: a dispatch. Dispatch makes copies, whose gradients are
  // summed: a combine.
  void begin_combine_backward(const Pass&, Tensor dy, Tensor, Tensor) override { x_ = dy; }
  OperandRows end_combine_backward(const Pass& pass, Tensor drows) override { return rows_of(pass, x_, drows); }
  void begin_dispatch_backward(const Pass&, Tensor drows, Tensor drow_weight) override {
    rows_ = drows, weights_ = drow_weight;
  }
  void end_dispatch_backward(const Pass& pass, Tensor dx, Tensor dweights, bool accumulate,
                             const OverflowWork&) override {
    pass.ops.moe_combine({.rows = rows_, .plan = plan_, .y = dx, .accumulate = accumulate});
    pass.ops.moe_combine_weights({.row_weight = weights_, .plan = plan_, .weights = dweights});
  }

 private:
  // The rows of experts: of `tokens`, or copies of them in `room`.
  OperandRows rows_of(const Pass& pass, Tensor tokens, Tensor room) const {
    if (in_place_) return {tokens, plan_.token_of};
    pass.ops.moe_dispatch({.x = tokens, .plan = plan_, .rows = room});
    return room;
  }

  int64_t num_experts_;
  bool in_place_;
  MoePlan plan_;
  Tensor x_, rows_, weights_;  // what was begun
};

}  // namespace

std::unique_ptr<TokenExchange> make_local_exchange(int64_t num_experts, bool in_place) {
  return std::make_unique<LocalExchange>(num_experts, in_place);
}

}  // namespace nmoe
