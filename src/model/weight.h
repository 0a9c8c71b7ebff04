// One weight of the model: a parameter, this rank's shard of it, its quantised copies and its probe.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <utility>

#include "base/rng.h"
#include "model/gradient_sum.h"
#include "model/parameter.h"
#include "model/quantised_copies.h"
#include "model/rounding_probe.h"
#include "model/spec/weights.h"
#include "model/weight_shard.h"
#include "ops/ops.h"

namespace nmoe {

// Where masters of BF16 weights are drawn that are not kept: as many elements of both, stat and i16.
struct MasterRoom {
  Tensor master, low;
};

class Weight : public Parameter {
 public:
  // `shape_here`: the shape of this rank's part.
  Weight(WeightSpec description, const Shape& shape_here)
      : spec(std::move(description)),
        shard(spec.shape, shape_here),
        copies(fnv1a64(spec.name)),
        sum(fnv1a64("gradient." + spec.name)) {}
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  const WeightSpec spec;  // of the whole weight
  WeightShard shard;
  QuantisedCopies copies;
  RoundingProbe probe;
  GradientSum sum;  // of a gradient in BF16

  // The rounding of its products, as QuantisedCopies says.
  OperandRounding rounding(Ops& ops) { return copies.of_forward(ops); }
  OperandRounding input_gradient_rounding(Ops& ops) { return copies.of_input_gradient(ops, shard.expert_numbers); }
  OperandRounding weight_gradient_rounding() { return copies.of_weight_gradient(shard.expert_numbers); }
  // Of the next product that is added to a gradient in BF16.
  MomentRounding sum_rounding(bool accumulate) { return sum.next(copies.shard(), shard.expert_numbers, accumulate); }
  // Called by each product before its own operation, with its operands, as RoundingProbe says.
  void measure_forward(Ops& ops, const OperandRows& x, Tensor joined_value, Tensor offsets = {}) {
    probe.measure_forward(ops, copies.format, x, joined_value, offsets);
  }
  void measure_gradient(Ops& ops, const OperandRows& dy, Tensor joined_value, Tensor offsets = {}) {
    probe.measure_gradient(ops, copies.format, dy, joined_value, offsets);
  }

  // Copies `elements` of those that this rank updates, in the order in which it stores them, as masters, from and to
  // stat numbers in host memory. Overwrites gradients, through whose memory masters pass. `host` may be reused, or has
  // the values, as Device::upload() and begin_download() say.
  void upload(Ops& ops, ElementRange elements, const void* host);
  void begin_download(Ops& ops, ElementRange elements, void* host) const;
  // Fills those values as spec says; overwrites gradients, as upload() does. They are drawn from a stream of their own,
  // keyed by seed and name, so that adding a layer changes no other weight. Of a BF16 weight without the rest of a
  // master they are drawn in `room`, part by part.
  void initialise(Ops& ops, uint64_t seed, double truncation, const MasterRoom& room = {});

 private:
  void initialise_uniform(Ops& ops, uint64_t seed);
  // Some of the elements that this rank updates, flat, and room for their masters in the gradient's memory.
  struct MasterPart {
    ElementRange elements;
    Tensor value, low, master;
  };
  Tensor updated(ElementRange elements) const;  // the value of some of those, flat
  // Of `elements`, in order, with a low part: all at once, or as many as the gradient's memory has room for.
  template <class Fn>
  void for_each_master(const Ops& ops, ElementRange elements, const Fn& fn) const;
};

}  // namespace nmoe
