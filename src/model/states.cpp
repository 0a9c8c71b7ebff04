#include "model/states.h"

#include <algorithm>

#include "base/error.h"

namespace nmoe {

void ModelStates::copy_slot(Ops& ops, int64_t from, int64_t to) const {
  NMOE_CHECK(from >= 0 && from < num_slots && to >= 0 && to < num_slots && from != to, "slot {} to {}, of {}", from, to,
             num_slots);
  for (const PartStates& part : parts) {
    for (const std::vector<Tensor>* tensors : {&part.by_position, &part.fixed}) {
      for (const Tensor& tensor : *tensors) ops.copy({.source = tensor[from], .destination = tensor[to]});
    }
  }
}

ModelStates make_states(std::span<const StateSpec> specs, const Ops& ops, Arena& arena, int64_t num_slots,
                        int64_t capacity) {
  ModelStates states{.num_slots = num_slots,
                     .capacity = capacity,
                     .goes_back = std::ranges::all_of(specs, &StateSpec::goes_back),
                     .parts = {}};
  for (const StateSpec& spec : specs) {
    PartStates& part = states.parts.emplace_back();
    for (const int64_t width : spec.widths) {
      part.by_position.push_back(arena.allocate(ops.compute_dtype(), {num_slots, capacity, width}));
    }
    for (const FixedState& fixed : spec.fixed) {
      const DType dtype = fixed.is_stat ? ops.stat_dtype() : ops.compute_dtype();
      std::vector<int64_t> dims = {num_slots};
      dims.insert(dims.end(), fixed.shape.dims().begin(), fixed.shape.dims().end());
      part.fixed.push_back(arena.allocate(dtype, Shape(dims)));
    }
  }
  return states;
}

}  // namespace nmoe
