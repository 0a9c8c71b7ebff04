// Linear layers with weights of the model: every product with a weight matrix, forward and backward, uses these, except
// in operations that are more than the product (head_loss, mla_cached_attention).
//
// N rows, E experts.
//
// Threads: driven by the one that drives the device (ops/device.h). The WeightSet must outlive them.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/pass.h"
#include "model/weight_set.h"

namespace nmoe {

// y = x w^T. x [N, in], y [N, out] act or stat.
class Linear {
 public:
  // The weight [out, in] of that name.
  Linear(WeightSet& weights, std::string_view name) : weight_(weights.at(name)) {}
  explicit Linear(Weight& weight) : weight_(weight) {}

  // y = x w^T, plus the addend (of y's shape, may be y) if there is one.
  void forward(Ops& ops, const Rows& x, Tensor y, Tensor addend = {}) const {
    weight_.measure_forward(ops, x.values, weight_.value);
    OperandRounding rounding = weight_.rounding(ops);
    if (weight_.copies.takes_codes(ops)) rounding.rows = x.quantised;
    ops.linear_forward({.x = x.tensor(), .w = weight_.value, .y = y, .addend = addend, .rounding = rounding});
  }
  // pre = [N, out], and h = its activation, each as values and, if it has memory for it, quantised. Without `reads_h`,
  // nobody reads h but quantised.
  void forward_activation(Ops& ops, Activation kind, const Rows& x, const Rows& pre, const Rows& h,
                          bool reads_h) const {
    weight_.measure_forward(ops, x.values, weight_.value);
    OperandRounding rounding = weight_.rounding(ops);
    if (weight_.copies.takes_codes(ops)) rounding.rows = x.quantised;
    ops.linear_activation_forward({.kind = kind,
                                   .x = x.tensor(),
                                   .w = weight_.value,
                                   .pre = pre.tensor(),
                                   .h = h.tensor(),
                                   .h_codes = h.quantised,
                                   .rounding = rounding,
                                   .keeps_h = reads_h,
                                   .pre_codes = pre.quantised});
  }
  // dx =, or += with accumulate.
  void backward_input(Ops& ops, const Rows& dy, Tensor dx, bool accumulate = false) const {
    weight_.measure_gradient(ops, dy.values, weight_.value);
    OperandRounding rounding = weight_.input_gradient_rounding(ops);
    if (weight_.copies.takes_codes(ops)) rounding.rows = dy.quantised;
    ops.linear_backward_input(
        {.dy = dy.tensor(), .w = weight_.value, .dx = dx, .accumulate = accumulate, .rounding = rounding});
  }
  // The weight's gradient, as model/parameter.h says; with the rounding that was drawn for it, if that was earlier.
  void backward_weight(Ops& ops, Tensor x, Tensor dy) const {
    backward_weight(ops, x, dy, weight_.weight_gradient_rounding());
  }
  void backward_weight(Ops& ops, Tensor x, Tensor dy, const OperandRounding& rounding) const {
    ops.linear_backward_weight(
        {.x = x, .dy = dy, .dw = weight_.grad, .accumulate = weight_.accumulate_grad(), .rounding = rounding});
  }
  // Both. dx may not be the storage of x.
  void backward(Ops& ops, Tensor x, const Rows& dy, Tensor dx, bool accumulate = false) const {
    backward_weight(ops, x, dy.tensor());
    backward_input(ops, dy, dx, accumulate);
  }
  // Memory for rows [N, width] in FP8, x or dy of a product with this weight, to be filled by the operation that makes
  // these rows; undefined if the product takes none.
  RowCodes push_codes(const Pass& pass, int64_t num_rows, int64_t width) const {
    return weight_.copies.push_codes(pass.ops, pass.activations, num_rows, width);
  }

  Weight& weight() const { return weight_; }

 private:
  Weight& weight_;
};

// Several weights [out, in] that are consecutive in memory (WeightSpec::joins_previous), as one linear layer: x is read
// once, and dx written once. A row of y is the concatenation of their outputs. They belong to the same part of a layer,
// and are rounded as one matrix.
class JoinedLinear {
 public:
  // The weights `prefix` + name, in this order.
  JoinedLinear(WeightSet& weights, const std::string& prefix, const std::vector<std::string_view>& names) {
    for (const std::string_view name : names) parts_.push_back(&weights.at(prefix + std::string(name)));
  }

  // y =, plus the addend (of y's shape, may be y) if there is one.
  void forward(Ops& ops, const Rows& x, Tensor y, Tensor addend = {}) const {
    Weight& first = *parts_.front();
    first.measure_forward(ops, x.values, joined(&Weight::value));
    OperandRounding rounding = first.rounding(ops);
    if (first.copies.takes_codes(ops)) rounding.rows = x.quantised;
    ops.linear_forward({.x = x.tensor(), .w = joined(&Weight::value), .y = y, .addend = addend, .rounding = rounding});
  }
  // The weights' gradients, as model/parameter.h says, and dx =. dx may not be the storage of x.
  void backward(Ops& ops, Tensor x, Tensor dy, Tensor dx) const {
    Weight& first = *parts_.front();
    const bool accumulate = first.accumulate_grad();
    for (Weight* part : std::span(parts_).subspan(1)) {
      NMOE_CHECK(part->accumulate_grad() == accumulate, "{} has a gradient of its own", part->spec.name);
    }
    first.measure_gradient(ops, dy, joined(&Weight::value));
    ops.linear_backward_weight({.x = x,
                                .dy = dy,
                                .dw = joined(&Weight::grad),
                                .accumulate = accumulate,
                                .rounding = first.weight_gradient_rounding()});
    ops.linear_backward_input(
        {.dy = dy, .w = joined(&Weight::value), .dx = dx, .rounding = first.input_gradient_rounding(ops)});
  }

 private:
  // All parts' values, or gradients, as one matrix.
  Tensor joined(Tensor Weight::*which) const {
    const Tensor first = parts_.front()->*which;
    int64_t rows = 0;
    for (const Weight* part : parts_) {
      const Tensor& x = part->*which;
      const int64_t offset = rows * first.dim(1) * static_cast<int64_t>(dtype_bytes(first.dtype()));
      NMOE_CHECK(
          x.dim(1) == first.dim(1) && (first.raw() == nullptr || x.raw() == static_cast<char*>(first.raw()) + offset),
          "{} {} does not lie behind {} rows of the same width", part->spec.name, x.shape(), rows);
      rows += x.dim(0);
    }
    return {first.raw(), first.dtype(), {rows, first.dim(1)}};
  }

  std::vector<Weight*> parts_;
};

// The bias of a linear layer, or of several that are one together: what its product is added to.
class Bias {
 public:
  // The weight [out] of that name (WeightList::bias).
  Bias(WeightSet& weights, std::string_view name) : weight_(weights.at(name)) {}

  // What the product is to be added to, [N, out] on the activation stack: x, or undefined for 0, plus the bias in every
  // row. It is not where the product goes, whose sum would be rounded before (cuBLASLt, in place).
  Tensor forward(const Pass& pass, Tensor x, int64_t num_rows) const {
    const Tensor y = pass.push({num_rows, weight_.value.dim(0)});
    pass.ops.bias_forward({.x = x, .bias = weight_.value, .y = y});
    return y;
  }
  // The same for a product that leaves statistics.
  Tensor forward_stat(const Pass& pass, int64_t num_rows) const {
    const Tensor y = pass.push_stat({num_rows, weight_.value.dim(0)});
    pass.ops.bias_forward({.x = {}, .bias = weight_.value, .y = y});
    return y;
  }
  void backward(Ops& ops, Tensor dy) const { ops.bias_backward({.dy = dy, .dbias = weight_.grad_to_add_to(ops)}); }

 private:
  Weight& weight_;
};

// The biases of a grouped linear layer, one for each expert, on rows that its product rounded before.
class GroupedBias {
 public:
  // The weight [E, 1, out] of that name (WeightList::expert_bias).
  GroupedBias(WeightSet& weights, std::string_view name) : weight_(weights.at(name)) {}

  // For rows that have weights [N] stat, what is added is multiplied by them.
  ExpertBias of(Tensor row_weight = {}) const { return {.values = by_expert(weight_.value), .row_weight = row_weight}; }
  // drow_weight +=, of what was added by row_weight.
  void backward(Ops& ops, const Rows& dy, Tensor offsets, Tensor row_weight = {}, Tensor drow_weight = {}) const {
    ops.expert_bias_backward({.dy = dy.values,
                              .offsets = offsets,
                              .bias = of(row_weight),
                              .dvalues = by_expert(weight_.grad_to_add_to(ops)),
                              .drow_weight = drow_weight});
  }

  Weight& weight() const { return weight_; }

 private:
  // [E, out]
  static Tensor by_expert(const Tensor& x) { return x.reshape({x.dim(0), x.dim(2)}); }

  Weight& weight_;
};

// One matrix per expert: rows [offsets[e], offsets[e + 1]) of x are multiplied with expert e's. offsets [E + 1] i32.
class GroupedLinear {
 public:
  // The weight [E, out, in] of that name.
  GroupedLinear(WeightSet& weights, std::string_view name) : weight_(weights.at(name)) {}

  // y = [N, out].
  void forward(Ops& ops, const Rows& x, Tensor offsets, Tensor y, const ExpertBias& bias = {}) const {
    weight_.measure_forward(ops, x.values, weight_.value, offsets);
    OperandRounding rounding = weight_.rounding(ops);
    rounding.rows = x.quantised;
    ops.grouped_linear_forward(
        {.x = x.tensor(), .w = weight_.value, .offsets = offsets, .y = y, .rounding = rounding, .bias = bias});
  }
  // pre = [N, out], and h = its activation times row_weight [N] stat, in those forms for which they have memory; where
  // h has columns, too, and nobody reads its values, only quantised. reads_h as in Linear.
  void forward_activation(Ops& ops, Activation kind, const Rows& x, Tensor offsets, Tensor row_weight, const Rows& pre,
                          const Rows& h, bool reads_h, const ExpertBias& bias = {}) const {
    weight_.measure_forward(ops, x.values, weight_.value, offsets);
    OperandRounding rounding = weight_.rounding(ops);
    if (weight_.copies.takes_codes(ops)) rounding.rows = x.quantised;
    const bool columns_alone = h.columns.defined() && !reads_h;
    ops.grouped_activation_forward({.kind = kind,
                                    .x = x.values,
                                    .w = weight_.value,
                                    .offsets = offsets,
                                    .row_weight = row_weight,
                                    .pre = pre.tensor(),
                                    .h = columns_alone ? Tensor() : h.tensor(),
                                    .rounding = rounding,
                                    .h_codes = h.quantised,
                                    .h_columns = columns_alone ? h.columns : ColumnCodes{},
                                    .keeps_h = reads_h,
                                    .pre_codes = pre.quantised,
                                    .bias = bias});
    if (!h.columns.defined() || columns_alone) return;
    ops.activation_forward({.kind = kind,
                            .pre = pre.tensor(),
                            .row_weight = row_weight,
                            .h = {},
                            .num_rows = offsets.rows(offsets.dim(0) - 1, offsets.dim(0)),
                            .h_columns = h.columns,
                            .offsets = offsets});
  }
  // dx = [N, in].
  void backward_input(Ops& ops, const Rows& dy, Tensor offsets, Tensor dx) const {
    weight_.measure_gradient(ops, dy.values, weight_.value, offsets);
    OperandRounding rounding = weight_.input_gradient_rounding(ops);
    rounding.rows = dy.quantised;
    ops.grouped_linear_backward_input(
        {.dy = dy.tensor(), .w = weight_.value, .offsets = offsets, .dx = dx, .rounding = rounding});
  }
  // The same through the activation before this layer. The weight and rounding of `args`, and its dy, are filled in
  // here.
  void backward_activation(Ops& ops, const Rows& dy, GroupedActivationBackward args) const {
    weight_.measure_gradient(ops, dy.values, weight_.value, args.offsets);
    args.dy = dy.values;
    args.w = weight_.value;
    args.rounding = weight_.input_gradient_rounding(ops);
    if (weight_.copies.takes_codes(ops)) args.rounding.rows = dy.quantised;
    ops.grouped_activation_backward(args);
  }
  // The weight's gradient, as model/parameter.h describes, with the rounding that was drawn for it. Where rows are
  // there as columns, their values are not read. A gradient in BF16 borrows room for the product as it is.
  void backward_weight(const Pass& pass, const Rows& x, const Rows& dy, Tensor offsets,
                       const OperandRounding& rounding) const {
    const bool accumulate = weight_.accumulate_grad();
    NMOE_CHECK(!accumulate || !weight_.squares.defined(), "{}: squares of a gradient in several parts",
               weight_.spec.name);
    const bool apart = weight_.grad.dtype() == DType::kBF16;
    const ArenaScope scope(pass.activations);
    const Tensor dw = apart ? pass.push_stat(weight_.grad.shape()) : weight_.grad;
    pass.ops.grouped_linear_backward_weight({.x = x.values,
                                             .dy = dy.values,
                                             .offsets = offsets,
                                             .dw = dw,
                                             .accumulate = accumulate && !apart,
                                             .rounding = rounding,
                                             .x_columns = x.columns,
                                             .dy_columns = dy.columns,
                                             .squares = weight_.squares});
    if (!apart) return;
    pass.ops.add_gradient({.product = dw,
                           .offsets = offsets,
                           .sum = weight_.grad,
                           .accumulate = accumulate,
                           .random = weight_.sum_rounding(accumulate)});
  }
  // As Linear's.
  RowCodes push_codes(const Pass& pass, int64_t num_rows, int64_t width) const {
    return weight_.copies.push_codes(pass.ops, pass.activations, num_rows, width);
  }
  // The form of such matrices of rows, in this layer's groups, as its weight's gradient takes them by columns; no
  // groups if it does not.
  ColumnForm columns(int64_t num_matrices, int64_t num_rows) const {
    return {.num_matrices = num_matrices,
            .num_rows = num_rows,
            .num_groups = weight_.copies.rounds_gradient_in_fp8() ? weight_.shard.shape[0] : 0};
  }

  Weight& weight() const { return weight_; }

 private:
  Weight& weight_;
};

}  // namespace nmoe
