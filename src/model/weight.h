// The model's named weights: their values and gradients, how they are initialised, and how gradients are written.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/rank_share.h"
#include "model/spec/flat_weights.h"
#include "model/spec/weights.h"
#include "ops/ops.h"
#include "ops/rows.h"
#include "tensor/arena.h"

namespace nmoe {

// The tensors of a weight's products whose rounding error is measured: first the operands, then the outputs (of the
// forward product, and the gradient of its input).
enum class Measured { kInputs, kWeights, kGradients, kOutputs, kInputGradients };
inline constexpr int64_t kNumMeasured = 5;
constexpr bool is_output(Measured what) { return what >= Measured::kOutputs; }

// One weight. In a step, the first operation that produces its gradient writes it (=) and all later ones add to it
// (+=): those of further microbatches, and of further uses, as by a tied head. Which of the two an operation does is
// decided when it is enqueued, and recordings keep it, so every step has to produce gradients in the same order. A step
// begins with begin_step().
//
// A rank *updates* some of a weight's elements: all of a weight that only it has (its stacked experts, one per slot) or
// that all ranks update alike (buffers), and its share of a weight that every rank of its domain has
// (model/spec/flat_weights.h). It holds the rest of the master and the optimizer's state of the elements it updates
// only.
class Weight {
 public:
  // `shape_here`: the shape of this rank's part.
  Weight(WeightSpec description, const Shape& shape_here) : spec(std::move(description)), shape(shape_here) {}
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  bool is_part() const { return !(shape == spec.shape); }  // whether other ranks have the rest

  const WeightSpec spec;  // of the whole weight
  const Shape shape;      // of value, low and grad
  ElementRange updated;   // the elements that this rank updates, counted among those that it has
  Tensor value;           // act, or stat where spec.is_stat
  Tensor low;             // i16, rest of the master weight (ops/ops.h) of `updated`; undefined: value is stat
  Tensor grad;            // stat; undefined for buffers
  Tensor total;    // stat, updated_shape(): the gradient of `updated`, summed over the ranks; may be a view of grad
  Tensor squares;  // of the experts' gradient, as GroupedLinearBackwardWeight leaves them; undefined: not kept
  OperandFormat format = OperandFormat::kAct;       // of products with the weight (model/spec/operand_formats.h)
  OperandFormat grad_format = OperandFormat::kAct;  // of products that give its gradient
  bool in_act = false;                              // both formats are kAct for now: a check of precision said so
  Tensor rounding_key;     // [1] i64 (RandomRounding); undefined: gradients are rounded to nearest
  bool transforms = true;  // OperandRounding::transform
  Tensor expert_numbers;   // [E] i32: the expert in each slot here; undefined: all experts, in order
  WeightCodes codes;  // for products that take codes (WeightRounding::kCodes); of joined weights, the first has them
  Tensor coded;       // [E, out, in] what codes encode: value, and weights joined to it (WeightSpec::joins_previous)
  Tensor rounding_counts;  // [Measured, 5] f64: errors of rounding in its products; undefined: not measured

  // The part of `x`, value or grad, that this rank updates: x itself if that is all of it, else flat; empty if this
  // rank updates nothing of it.
  Tensor updated_of(const Tensor& x) const;
  // Where the elements that this rank updates are in the whole weight, in the order in which this rank stores them: one
  // range, or one for each series of experts that are neighbours in both. An empty range if it updates none.
  std::vector<ElementRange> updated_elements() const;
  // For stacked experts: sets which expert is in each slot of this rank, whose index is `rank`, from the places [E] of
  // all experts (rdep/placement.h). Initially they are in order.
  void place_experts(std::span<const int32_t> places, int64_t rank);
  // The expert in each slot of this rank.
  std::vector<int32_t> experts_here() const;
  Shape updated_shape() const { return updated.extent == shape.num_elements() ? shape : Shape({updated.extent}); }

  void begin_step() { has_grad_ = false; }
  // For an operation that can either write the gradient or add to it: whether it has to add. To be called once for each
  // such operation.
  bool accumulate_grad() { return std::exchange(has_grad_, true); }
  // For an operation that can only add: the gradient, set to zero first if nothing has written it in this step.
  Tensor grad_to_add_to(Ops& ops);
  // Whether this step has written the gradient.
  bool has_grad() const { return has_grad_; }

  // The rounding of a forward product: none in batch-invariant arithmetic. The first call since restart_rounding()
  // enqueues what makes the codes, if the weight has any.
  OperandRounding rounding(Ops& ops);
  // The rounding of the product that gives the gradient of the input, and of the one that gives the weight's. Each call
  // takes another stream of random bits: to be called once for each product.
  OperandRounding input_gradient_rounding(Ops& ops);
  OperandRounding weight_gradient_rounding() { return gradient_rounding(grad_format); }
  // The next forward product and the next backward one add to rounding_counts the errors that rounding to `format`
  // makes in their operands (contracts/quantize.h) and outputs (contracts/measure_product.h), whatever they round to
  // themselves.
  void measure_next() { measures_forward_ = measures_gradient_ = rounding_counts.defined(); }
  // Whether the next one measures. It then needs the rows themselves, not only their codes.
  bool measures_forward() const { return measures_forward_; }
  bool measures_gradient() const { return measures_gradient_; }
  // Called by such a product before its own operation: `x` and `dy` as passed to it, for experts in groups by
  // `offsets`; `value` with the weights that are joined to it.
  void measure_forward(Ops& ops, const OperandRows& x, Tensor value, Tensor offsets = {});
  void measure_gradient(Ops& ops, const OperandRows& dy, Tensor value, Tensor offsets = {});
  // Memory for the codes of rows [N, width] that are multiplied with this weight; undefined if products use none.
  RowCodes push_codes(Arena& activations, int64_t num_rows, int64_t width) const;
  // Whether products currently use codes of rows.
  bool takes_codes() const { return codes.defined() && !in_act; }
  // Whether the weight's gradient currently uses codes of columns.
  bool rounds_gradient_in_fp8() const { return takes_codes() && grad_format == OperandFormat::kFp8; }
  // To be called before the first product of a step, or of a pass outside one: values may have changed.
  void restart_rounding();
  // The products that follow belong to this shard of the step's batch: shard m * W + i is the m-th microbatch of rank i
  // of W. Random bits depend on the shard, and so not on the number of ranks. If experts process the ranks' tokens
  // one rank after the other, `shard` is the first rank's, and part i is shard `shard` + i.
  void begin_microbatch(int64_t shard) { shard_ = shard, part_ = 0; }
  void begin_part(int64_t part) { part_ = part; }

  // Copies the values that this rank updates, as masters, from and to stat numbers in host memory. Overwrites
  // gradients, through whose memory masters pass. `host` may be reused, or has the values, as Device::upload() and
  // begin_download() say.
  void upload(Ops& ops, const void* host);
  void begin_download(Ops& ops, void* host) const;
  // Fills those values as spec says; overwrites gradients, as upload() does. They are drawn from a stream of their own,
  // keyed by seed and name, so that adding a layer changes no other weight.
  void initialise(Ops& ops, uint64_t seed, double truncation);

 private:
  OperandRounding gradient_rounding(OperandFormat format);
  const WeightCodes& codes_now(Ops& ops);
  void measure_rows(Ops& ops, Measured operand, const OperandRows& rows, Tensor offsets);

  std::vector<ElementRange> experts_;  // where those here are in the whole weight; empty: no stacked experts
  bool has_grad_ = false;
  int64_t shard_ = 0, part_ = 0;
  std::map<int64_t, uint64_t> num_rounded_;  // gradients in this step, by shard
  bool codes_are_current_ = false;
  bool measures_forward_ = false, measures_gradient_ = false;
};

// A bucket of weights that every rank of a domain has, as one flat tensor of values and one of gradients.
struct FlatWeights {
  Tensor values;
  Tensor grads;             // stat; what lies between weights is zero
  size_t first_weight = 0;  // index of the weight whose gradient is complete last
  ElementRange updated;     // the elements that this rank updates
  Tensor totals;            // stat: their gradients, summed over the ranks; undefined: those are in grads
};

// Weights that are neighbours in definition order.
struct WeightRange {
  size_t begin = 0, end = 0;
};

// Of BF16 weights. Training and drawing random values need the rest of a master (Weight::low).
enum class Masters { kWhole, kWithoutRest };

// All weights of a description, in its order; of stacked experts only this rank's. References to weights stay valid as
// long as the set lives.
class WeightSet {
 public:
  explicit WeightSet(std::vector<WeightSpec> specs, RankShare share = {});
  WeightSet(const WeightSet&) = delete;
  WeightSet& operator=(const WeightSet&) = delete;

  const RankShare& share() const { return share_; }
  Weight& at(std::string_view name) { return weights_[index_of(name)]; }
  size_t index_of(std::string_view name) const;
  // The end of the weights whose names begin like that, which are neighbours.
  size_t end_of(std::string_view prefix) const;
  std::deque<Weight>& all() { return weights_; }
  const std::deque<Weight>& all() const { return weights_; }

  // Gives every weight its storage, in the device's dtypes. The layout is the same on every rank.
  void allocate(Ops& ops, Arena& values, Arena& grads, Masters masters = Masters::kWhole);
  const std::vector<FlatWeights>& flat() const { return flat_; }
  // Initialises what this rank updates; the rest has to be fetched from the other ranks.
  void initialise(Ops& ops, uint64_t seed, double truncation);
  void begin_step();
  void begin_microbatch();
  // To be called before a pass outside a step.
  void restart_rounding();
  // A part says for each of its applications in a pass with backward which weights it uses, before its forward and when
  // its backward has enqueued what changes their gradients: these are complete after the last of them.
  void begin_application(const WeightRange& weights);
  void end_application(const WeightRange& weights);
  // The lowest index from which on all gradients are complete.
  size_t complete_from() const;
  // Checks that this step has written the gradient of every trained weight: another would keep the last step's.
  void check_grads() const;

 private:
  RankShare share_;
  int64_t microbatch_ = -1;        // of this step
  std::vector<int> applications_;  // of each weight in the microbatch, that have not ended
  std::deque<Weight> weights_;
  std::vector<FlatWeights> flat_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace nmoe
