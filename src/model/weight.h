// The model's named weights: where their values and gradients live, how they start, how gradients are written.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/flat_weights.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace nmoe {

// What is measured of a weight's products: operands, then outputs: those of the forward product, and gradients of
// inputs.
enum class Measured { kInputs, kWeights, kGradients, kOutputs, kInputGradients };
inline constexpr int64_t kNumMeasured = 5;
constexpr bool is_output(Measured what) { return what >= Measured::kOutputs; }

// Room for codes of rows [N, width] on the activation stack.
RowCodes push_row_codes(Arena& activations, int64_t num_rows, int64_t width);

// One weight. In a step, whoever writes its gradient first writes it (=), all later ones add to it (+=): several
// microbatches, and several uses such as a tied head's.
//
// A rank *updates* some of a weight's elements: all of what it alone has (its stacked experts, one in each slot, and
// buffers, which all ranks update alike), a part of what every rank of its domain has (model/flat_weights.h). Of those
// alone it has the rest of the master, and the optimizer's state.
//
// Which of the two an operation does is decided as it is enqueued, and may end up in a recording: every step has to
// write in the same order. A step begins with begin_step().
class Weight {
 public:
  // `shape_here`: of what this rank has of it.
  Weight(WeightSpec description, const Shape& shape_here) : spec(std::move(description)), shape(shape_here) {}
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  bool is_part() const { return !(shape == spec.shape); }  // whether other ranks have the rest

  const WeightSpec spec;  // of the whole weight
  const Shape shape;      // of value, low and grad
  ElementRange updated;   // of the elements that this rank has, those that it updates
  Tensor value;           // act, or stat where spec.is_stat
  Tensor low;             // i16, the rest of the master weight (ops/ops.h) of `updated`; undefined where value is stat
  Tensor grad;            // stat; undefined for buffers
  Tensor total;  // stat, as updated_shape(): where the step's gradient of `updated` is complete; in grad, or not
  OperandFormat format = OperandFormat::kAct;       // of its products but those of its gradient ...
  OperandFormat grad_format = OperandFormat::kAct;  // ... and of those: model/operand_formats.h
  bool in_act = false;                              // whether products are, for now, as if both were kAct
  Tensor rounding_key;                              // [1] i64 (RandomRounding); undefined: gradients too to nearest
  bool transforms = true;                           // OperandRounding::transform
  Tensor expert_numbers;   // of stacked experts: [E] i32, which of all each is; undefined: they are all
  WeightCodes codes;       // where products want those (WeightRounding::kCodes), of the first of those that are joined
  Tensor coded;            // [E, out, in] what they are of: value, and those that join it (WeightSpec::joins_previous)
  Tensor rounding_counts;  // [Measured, 5] f64: what rounding loses of its products; undefined: not measured

  // What this rank updates of `x`, which is value or grad; empty where that is nothing. As it is where that is all,
  // else flat.
  Tensor updated_of(const Tensor& x) const;
  // Which of the whole weight's elements those that this rank updates are, in the order in which they lie here: one
  // range, but where experts that are neighbours here are none in the whole. Of none, an empty range.
  std::vector<ElementRange> updated_elements() const;
  // Of stacked experts, from here on: slot s of this rank, number `rank`, has the one whose place is that (places [E],
  // parallel/expert_placement.h). In the beginning they are in order.
  void place_experts(std::span<const int32_t> places, int64_t rank);
  // Which of the whole weight's each of those is, by slots.
  std::vector<int32_t> experts_here() const;
  Shape updated_shape() const { return updated.extent == shape.num_elements() ? shape : Shape({updated.extent}); }

  void begin_step() { has_grad_ = false; }
  // For an operation that can write a gradient or add to it: whether it is to add. Ask once for each such operation.
  bool accumulate_grad() { return std::exchange(has_grad_, true); }
  // For an operation that can only add: the gradient, which becomes zero before the first of a step.
  Tensor grad_to_add_to(Ops& ops);
  // Whether the gradient is of this step.
  bool has_grad() const { return has_grad_; }

  // Of a forward product. The first since restart_rounding() makes the codes, if there are any.
  OperandRounding rounding(Ops& ops);
  // Of a product with a gradient of outputs, for that of inputs, and for that of the weight. Each of a step's has
  // another stream of random bits: ask once for each.
  OperandRounding input_gradient_rounding(Ops& ops);
  OperandRounding weight_gradient_rounding() { return gradient_rounding(grad_format); }
  // From here on the next product of each kind measures: adds to rounding_counts what rounding its operands to `format`
  // loses of them (contracts/quantize.h) and of its outputs (contracts/measure_product.h), whatever it rounds them to.
  void measure_next() { measures_forward_ = measures_gradient_ = rounding_counts.defined(); }
  // Whether the next does: it takes rows as they are, beside codes.
  bool measures_forward() const { return measures_forward_; }
  bool measures_gradient() const { return measures_gradient_; }
  // For those products, in front of each. Rows as they take them, of experts those that `offsets` covers. `value`: with
  // what joins it.
  void measure_forward(Ops& ops, const OperandRows& x, Tensor value, Tensor offsets = {});
  void measure_gradient(Ops& ops, const OperandRows& dy, Tensor value, Tensor offsets = {});
  // Room for codes of rows [N, width] that go into a product with this weight; undefined where it has no codes itself.
  RowCodes push_codes(Arena& activations, int64_t num_rows, int64_t width) const;
  // Room for codes of the columns of such rows, which lie in groups, for the weight's gradient; undefined where that is
  // not from FP8 operands.
  ColumnCodes push_columns(Arena& activations, int64_t num_rows, int64_t width, int64_t num_groups) const;
  // Whether products take codes of rows, at present.
  bool takes_codes() const { return codes.defined() && !in_act; }
  // Whether the weight's gradient takes codes of columns, at present.
  bool rounds_gradient_in_fp8() const { return takes_codes() && grad_format == OperandFormat::kFp8; }
  // Before the first product of a step, or of a pass by itself: values may be others than before.
  void restart_rounding();
  // The products that come are of this shard of a step's batch: a microbatch of a rank, by microbatch and rank. Random
  // bits go by it, and so not by the number of ranks. Of stacked experts: of the first rank's, and of one behind it
  // where products are of one rank's tokens each.
  void begin_microbatch(int64_t shard) { shard_ = shard, part_ = 0; }
  void begin_part(int64_t part) { part_ = part; }

  // The values that this rank updates, or their master's, from and to stat numbers in host memory. Gradients are
  // overwritten: where there is a master, it passes through them. `host` is free, or has the values, when the device's
  // upload() or begin_download() says so.
  void upload(Ops& ops, const void* host);
  void begin_download(Ops& ops, void* host) const;
  // Fills those values as spec says; gradients are overwritten, as by upload(). They are drawn from a stream of their
  // own, keyed by seed and name: adding a layer changes no other.
  void initialise(Ops& ops, uint64_t seed, double truncation);

 private:
  OperandRounding gradient_rounding(OperandFormat format);
  const WeightCodes& codes_now(Ops& ops);
  void measure_rows(Ops& ops, Measured operand, const OperandRows& rows, Tensor offsets);

  std::vector<ElementRange> experts_;  // of the whole weight's elements, those that are here; empty: no stacked experts
  bool has_grad_ = false;
  int64_t shard_ = 0, part_ = 0;
  std::map<int64_t, uint64_t> num_rounded_;  // gradients in this step, by shard
  bool codes_are_current_ = false;
  bool measures_forward_ = false, measures_gradient_ = false;
};

// What a rank has of a model, in a domain whose ranks share the stacked experts and the update of all else equally.
struct DomainShare {
  int64_t index = 0;
  int64_t count = 1;
  std::vector<WeightGroup> by_matrix = {};                     // groups whose matrices cannot be cut for the update
  int64_t bucket_bytes = std::numeric_limits<int64_t>::max();  // model/flat_weights.h
  // The gradient of what every rank has is that of one microbatch: a new one with each, added up elsewhere, one after
  // the other. That of experts is added up as always.
  bool in_order = false;
  int64_t first_rank = 0, num_ranks = 1;  // the domain's first of all ranks of the run
};

// Weights that every rank of a domain has, as two tensors of as many elements: this rank updates those of `updated`.
struct FlatWeights {
  Tensor values;
  Tensor grads;             // stat; what lies between weights is zero
  size_t first_weight = 0;  // index of the one whose gradient is complete last
  ElementRange updated;
  Tensor totals;  // stat, of `updated`: sums of gradients; undefined: in grads
};

// All weights of a description, in its order; of stacked experts, those that are this rank's. References stay valid for
// the set's life.
class WeightSet {
 public:
  explicit WeightSet(std::vector<WeightSpec> specs, DomainShare share = {});
  WeightSet(const WeightSet&) = delete;
  WeightSet& operator=(const WeightSet&) = delete;

  const DomainShare& share() const { return share_; }
  Weight& at(std::string_view name) { return weights_[index_of(name)]; }
  size_t index_of(std::string_view name) const;
  std::deque<Weight>& all() { return weights_; }
  const std::deque<Weight>& all() const { return weights_; }

  // Gives every weight its storage, in the device's dtypes. Values and gradients lie alike on every rank.
  void allocate(Ops& ops, Arena& values, Arena& grads);
  const std::vector<FlatWeights>& flat() const { return flat_; }
  // Of what this rank updates. What others do is to come from them.
  void initialise(Ops& ops, uint64_t seed, double truncation);
  void begin_step();
  void begin_microbatch();
  // Before a pass that is no step's.
  void restart_rounding();
  // That every trained weight has a gradient of this step: one without would keep the last step's.
  void check_grads() const;

 private:
  DomainShare share_;
  int64_t microbatch_ = -1;  // of this step
  std::deque<Weight> weights_;
  std::vector<FlatWeights> flat_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace nmoe
