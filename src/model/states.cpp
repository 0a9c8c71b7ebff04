#include "model/states.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace nmoe {

void ModelStates::copy_pages(Ops& ops, int64_t from, int64_t to, int64_t count) const {
  NMOE_CHECK(from >= 0 && to >= 0 && count >= 0 && std::max(from, to) + count <= sizes.num_pages &&
                 (from + count <= to || to + count <= from),
             "{} pages from {} on to those from {} on, of {}", count, from, to, sizes.num_pages);
  for (const PartStates& part : parts) {
    for (const Tensor& tensor : part.by_position) {
      ops.copy({.source = tensor.rows(from, from + count), .destination = tensor.rows(to, to + count)});
    }
  }
}

void ModelStates::copy_fixed(Ops& ops, int64_t from, int64_t to) const {
  NMOE_CHECK(from >= 0 && from < sizes.num_slots && to >= 0 && to < sizes.num_slots && from != to,
             "slot {} to {}, of {}", from, to, sizes.num_slots);
  for (const PartStates& part : parts) {
    for (const Tensor& tensor : part.fixed) ops.copy({.source = tensor[from], .destination = tensor[to]});
  }
}

ModelStates make_states(std::span<const StateSpec> specs, const Ops& ops, Arena& arena, const StateSizes& sizes) {
  ModelStates states{.sizes = sizes,
                     .pages = arena.allocate(DType::kI32, {sizes.num_slots, sizes.num_blocks()}),
                     .goes_back = std::ranges::all_of(specs, &StateSpec::goes_back),
                     .parts = {}};
  if (sizes.num_pages == 0) states.sizes.num_pages = sizes.num_slots * sizes.num_blocks();
  for (const StateSpec& spec : specs) {
    PartStates& part = states.parts.emplace_back();
    part.pages = states.pages;
    for (const int64_t width : spec.widths) {
      part.by_position.push_back(arena.allocate(ops.compute_dtype(), {states.sizes.num_pages, kPagePositions, width}));
    }
    for (const FixedState& fixed : spec.fixed) {
      const DType dtype = fixed.is_stat ? ops.stat_dtype() : ops.compute_dtype();
      std::vector<int64_t> dims = {sizes.num_slots};
      dims.insert(dims.end(), fixed.shape.dims().begin(), fixed.shape.dims().end());
      part.fixed.push_back(arena.allocate(dtype, Shape(dims)));
    }
  }
  return states;
}

std::vector<int32_t> own_pages(const StateSizes& sizes) {
  std::vector<int32_t> pages(static_cast<size_t>(sizes.num_slots * sizes.num_blocks()));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

}  // namespace nmoe
