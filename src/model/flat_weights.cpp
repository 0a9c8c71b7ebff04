#include "model/flat_weights.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/arena.h"

namespace nmoe {
namespace {

FlatRegion lay_out(std::span<const WeightSpec> specs, std::span<const size_t> chosen, DType values) {
  const int64_t alignment = Arena::kAlignment / static_cast<int64_t>(dtype_bytes(values));
  FlatRegion region{.places = {}, .values = values, .num_elements = 0, .bounds = {0}};
  for (const size_t spec : chosen) {
    region.places.push_back({spec, region.num_elements});
    region.num_elements += (specs[spec].shape.num_elements() + alignment - 1) / alignment * alignment;
  }
  return region;
}

FlatRegion cut_evenly(std::span<const WeightSpec> specs, std::span<const size_t> chosen, DType values,
                      int64_t num_ranks, DType stat) {
  FlatRegion region = lay_out(specs, chosen, values);
  std::vector<int64_t> edges;
  for (const FlatRegion::Place& place : region.places) {
    const TensorChunks chunks(stat, specs[place.spec].shape);
    for (int64_t i = 0; i < chunks.count(); ++i) edges.push_back(place.first + chunks[i].offset);
  }
  edges.push_back(region.num_elements);
  for (int64_t rank = 1; rank < num_ranks; ++rank) {
    const int64_t ideal = region.num_elements * rank / num_ranks;
    auto edge = std::ranges::lower_bound(edges, ideal);
    if (edge != edges.begin() && ideal - *(edge - 1) <= *edge - ideal) --edge;
    region.bounds.push_back(*edge);
  }
  region.bounds.push_back(region.num_elements);
  return region;
}

// An iteration is three products with the smaller side twice.
double cost_of_iteration(const Shape& shape) {
  const auto rows = static_cast<double>(shape[-2]), cols = static_cast<double>(shape[-1]);
  const double small = std::min(rows, cols), large = std::max(rows, cols);
  return small * small * (2 * large + small);
}

// The most costly first, each to the rank that has least to do.
FlatRegion deal_whole(std::span<const WeightSpec> specs, std::vector<size_t> chosen, DType values, int64_t num_ranks) {
  std::ranges::stable_sort(chosen, [&](size_t a, size_t b) {
    return cost_of_iteration(specs[a].shape) > cost_of_iteration(specs[b].shape);
  });
  std::vector<std::vector<size_t>> of_rank(static_cast<size_t>(num_ranks));
  std::vector<double> load(of_rank.size(), 0.0);
  for (const size_t spec : chosen) {
    const auto least = std::ranges::min_element(load) - load.begin();
    of_rank[static_cast<size_t>(least)].push_back(spec);
    load[static_cast<size_t>(least)] += cost_of_iteration(specs[spec].shape);
  }
  std::vector<size_t> in_order;
  std::vector<size_t> counts;
  for (const auto& mine : of_rank) {
    in_order.insert(in_order.end(), mine.begin(), mine.end());
    counts.push_back(in_order.size());
  }
  FlatRegion region = lay_out(specs, in_order, values);
  for (const size_t count : counts) {
    region.bounds.push_back(count == in_order.size() ? region.num_elements : region.places[count].first);
  }
  return region;
}

}  // namespace

ElementRange FlatRegion::part(int64_t rank) const {
  const auto at = static_cast<size_t>(rank);
  return {bounds[at], bounds[at + 1] - bounds[at]};
}

ElementRange FlatRegion::part_of(const Place& place, int64_t size, int64_t rank) const {
  const ElementRange mine = part(rank);
  const int64_t begin = std::clamp<int64_t>(mine.offset - place.first, 0, size);
  const int64_t end = std::clamp<int64_t>(mine.end() - place.first, begin, size);
  return {begin, end - begin};
}

std::vector<FlatRegion> deal_weights(std::span<const WeightSpec> specs, std::span<const WeightGroup> by_matrix,
                                     int64_t num_ranks, DType compute, DType stat) {
  std::vector<size_t> cut, cut_stat, whole;
  for (size_t i = 0; i < specs.size(); ++i) {
    const WeightSpec& spec = specs[i];
    if (!spec.is_trained() || spec.group == WeightGroup::kExperts) continue;
    if (std::ranges::find(by_matrix, spec.group) != by_matrix.end()) {
      NMOE_CHECK(!spec.is_stat && spec.shape.rank() == 2, "{} {} is updated as a matrix", spec.name, spec.shape);
      whole.push_back(i);
    } else {
      (spec.is_stat ? cut_stat : cut).push_back(i);
    }
  }
  std::vector<FlatRegion> regions;
  regions.push_back(cut_evenly(specs, cut, compute, num_ranks, stat));
  regions.push_back(cut_evenly(specs, cut_stat, stat, num_ranks, stat));
  regions.push_back(deal_whole(specs, std::move(whole), compute, num_ranks));
  std::erase_if(regions, [](const FlatRegion& region) { return region.num_elements == 0; });
  return regions;
}

}  // namespace nmoe
