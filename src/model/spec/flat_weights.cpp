#include "model/spec/flat_weights.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "tensor/arena.h"

namespace nmoe {
namespace {

FlatRegion lay_out(std::span<const WeightSpec> specs, std::span<const size_t> chosen, DType values) {
  const int64_t alignment = Arena::kAlignment / static_cast<int64_t>(dtype_bytes(values));
  FlatRegion region{.places = {}, .values = values, .num_elements = 0, .bounds = {0}};
  if (!chosen.empty()) region.first_spec = std::ranges::min(chosen);
  const auto align = [&] { region.num_elements = (region.num_elements + alignment - 1) / alignment * alignment; };
  for (const size_t spec : chosen) {
    if (!specs[spec].joins_previous) align();
    region.places.push_back({spec, region.num_elements});
    region.num_elements += specs[spec].shape.num_elements();
  }
  align();
  return region;
}

// Cut so that ranks have equally much of this region and those before it: what rounding to an edge takes from a rank
// the next region gives back. first_of [W + 1]: elements of those regions that the ranks before one have; += this
// region's.
FlatRegion cut_evenly(std::span<const WeightSpec> specs, std::span<const size_t> chosen, DType values, DType narrowest,
                      std::vector<int64_t>& first_of) {
  FlatRegion region = lay_out(specs, chosen, values);
  const auto num_ranks = static_cast<int64_t>(first_of.size()) - 1;
  std::vector<int64_t> edges;
  for (const FlatRegion::Place& place : region.places) {
    const TensorChunks chunks(narrowest, specs[place.spec].shape);
    for (int64_t i = 0; i < chunks.count(); ++i) edges.push_back(place.first + chunks[i].offset);
  }
  edges.push_back(region.num_elements);
  const int64_t all = first_of.back() + region.num_elements;
  for (int64_t rank = 1; rank < num_ranks; ++rank) {
    const int64_t ideal = std::clamp(all * rank / num_ranks - first_of[static_cast<size_t>(rank)], region.bounds.back(),
                                     region.num_elements);
    auto edge = std::ranges::lower_bound(edges, ideal);
    if (edge != edges.begin() && ideal - *(edge - 1) <= *edge - ideal) --edge;
    region.bounds.push_back(*edge);
  }
  region.bounds.push_back(region.num_elements);
  for (size_t rank = 0; rank < first_of.size(); ++rank) first_of[rank] += region.bounds[rank];
  return region;
}

// An iteration is, for each matrix, three products with the smaller side twice.
double cost_of_iteration(const WeightSpec& spec) {
  const Shape shape = spec.as_matrices(spec.shape);
  const auto rows = static_cast<double>(shape[-2]), cols = static_cast<double>(shape[-1]);
  const double small = std::min(rows, cols), large = std::max(rows, cols);
  return static_cast<double>(spec.num_matrices) * small * small * (2 * large + small);
}

// For each of the specs the rank that updates it, if it is one of the chosen, which are in definition order: the most
// costly first, each to the rank that has least to do. Joined ones go together.
std::vector<size_t> deal_by_cost(std::span<const WeightSpec> specs, std::span<const size_t> chosen, int64_t num_ranks) {
  std::vector<size_t> first;  // of those that go together
  std::vector<double> cost(specs.size(), 0.0);
  for (const size_t spec : chosen) {
    if (!specs[spec].joins_previous) first.push_back(spec);
    cost[first.back()] += cost_of_iteration(specs[spec]);
  }
  std::ranges::stable_sort(first, [&](size_t a, size_t b) { return cost[a] > cost[b]; });
  std::vector<size_t> rank_of(specs.size());
  std::vector<double> load(static_cast<size_t>(num_ranks), 0.0);
  for (const size_t spec : first) {
    const auto least = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
    rank_of[spec] = least;
    load[least] += cost[spec];
  }
  for (const size_t spec : chosen) {
    if (specs[spec].joins_previous) rank_of[spec] = rank_of[spec - 1];
  }
  return rank_of;
}

FlatRegion keep_whole(std::span<const WeightSpec> specs, std::span<const size_t> chosen, DType values,
                      int64_t num_ranks, std::span<const size_t> rank_of) {
  std::vector<size_t> in_order;
  std::vector<size_t> counts;
  for (size_t rank = 0; rank < static_cast<size_t>(num_ranks); ++rank) {
    std::ranges::copy_if(chosen, std::back_inserter(in_order), [&](size_t spec) { return rank_of[spec] == rank; });
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
                                     int64_t num_ranks, int64_t bucket_bytes, DType compute, DType stat,
                                     DType narrowest) {
  std::vector<size_t> bucketed, cut_stat, whole;
  const auto is_whole = [&](size_t i) { return std::ranges::find(by_matrix, specs[i].group) != by_matrix.end(); };
  for (size_t i = 0; i < specs.size(); ++i) {
    const WeightSpec& spec = specs[i];
    if (!spec.is_trained() || spec.per_expert) continue;
    if (is_whole(i)) {
      NMOE_CHECK(!spec.is_stat && spec.shape.rank() == 2, "{} {} is updated as a matrix", spec.name, spec.shape);
      whole.push_back(i);
    }
    (spec.is_stat ? cut_stat : bucketed).push_back(i);
  }
  const std::vector<size_t> rank_of = deal_by_cost(specs, whole, num_ranks);
  std::vector<FlatRegion> regions;
  std::vector<int64_t> first_of(static_cast<size_t>(num_ranks) + 1, 0);
  for (size_t end = bucketed.size(); end > 0;) {
    size_t begin = end;
    for (int64_t bytes = 0; begin > 0 && (bytes < bucket_bytes || specs[bucketed[begin]].joins_previous);) {
      bytes += specs[bucketed[--begin]].shape.num_elements() * static_cast<int64_t>(dtype_bytes(stat));
    }
    const auto bucket = std::span(bucketed).subspan(begin, end - begin);
    const auto rest = std::ranges::stable_partition(bucket, [&](size_t i) { return !is_whole(i); });
    const std::span<const size_t> cut(bucket.begin(), rest.begin());
    regions.push_back(cut_evenly(specs, cut, compute, narrowest, first_of));
    regions.push_back(keep_whole(specs, std::span<const size_t>(rest), compute, num_ranks, rank_of));
    end = begin;
  }
  regions.push_back(cut_evenly(specs, cut_stat, stat, narrowest, first_of));
  std::erase_if(regions, [](const FlatRegion& region) { return region.num_elements == 0; });
  return regions;
}

}  // namespace nmoe
