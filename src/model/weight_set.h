// The model's named weights, and the memory in which they lie.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/rank_share.h"
#include "model/spec/flat_weights.h"
#include "model/spec/weights.h"
#include "model/weight.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace nmoe {

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

// Of BF16 weights. Training needs the rest of a master (Parameter::low), which an optimizer gives to weights that are
// without (optim/optimizer.h).
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

  // Gives every weight its storage, in the device's dtypes, and gradients of stacked experts in `experts`. The layout
  // is the same on every rank.
  void allocate(Ops& ops, Arena& values, Arena& grads, Masters masters = Masters::kWhole,
                GradientFormat experts = GradientFormat::kFp32);
  const std::vector<FlatWeights>& flat() const { return flat_; }
  // Initialises what this rank updates; the rest has to be fetched from the other ranks.
  void initialise(Ops& ops, uint64_t seed, double truncation, const MasterRoom& room = {});
  void begin_step();
  // Of gradients in BF16, as GradientSum says: `key`, for good, and the number of products that give each of them in
  // the steps from here on, of a weight that a pass uses once.
  void set_gradient_key(Tensor key);
  void set_gradient_products(int64_t count);
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
