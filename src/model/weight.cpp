#include "model/weight.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random_math.h"
#include "model/upload_reals.h"

namespace nmoe {
namespace {

// What spec.init makes of a uniform number in (0, 1).
double uniform_value(const WeightSpec& spec, double u) {
  const double low = spec.init_low, high = spec.init_high;
  if (spec.init == InitKind::kUniform) return low + u * (high - low);
  if (spec.init == InitKind::kLogOfUniform) return std::log(low + u * (high - low));
  const double x = std::exp(std::log(low) + u * (std::log(high) - std::log(low)));
  return x + std::log(-std::expm1(-x));
}

}  // namespace

Tensor Weight::updated(ElementRange elements) const {
  return shard.updated_of(value).reshape({shard.updated.extent}).rows(elements.offset, elements.end());
}

template <class Fn>
void Weight::for_each_master(const Ops& ops, ElementRange elements, const Fn& fn) const {
  const int64_t size = shard.updated.extent;
  const auto flat = [&](const Tensor& x) { return x.reshape({size}); };
  const Tensor values = flat(shard.updated_of(value)), room = shard.updated_of(grad), rest = flat(low);
  for (const ElementRange& part : parts_in(room.num_bytes(), ops.stat_dtype(), elements.extent)) {
    const auto [begin, end] = std::pair(elements.offset + part.offset, elements.offset + part.end());
    fn(MasterPart{{begin, part.extent},
                  values.rows(begin, end),
                  rest.rows(begin, end),
                  Tensor(room.raw(), ops.stat_dtype(), {part.extent})});
  }
}

void Weight::upload(Ops& ops, ElementRange elements, const void* host) {
  if (elements.extent == 0) return;
  Device& device = ops.device();
  if (!low.defined()) return device.upload(updated(elements), host);
  const auto* from = static_cast<const std::byte*>(host);
  for_each_master(ops, elements, [&](const MasterPart& part) {
    device.upload(part.master, from);
    ops.split_weight({.master = part.master, .w = part.value, .low = part.low});
    from += part.master.num_bytes();
  });
}

void Weight::begin_download(Ops& ops, ElementRange elements, void* host) const {
  if (elements.extent == 0) return;
  Device& device = ops.device();
  if (!low.defined()) return device.begin_download(host, updated(elements));
  auto* to = static_cast<std::byte*>(host);
  for_each_master(ops, elements, [&](const MasterPart& part) {
    ops.join_weight({.w = part.value, .low = part.low, .master = part.master});
    device.begin_download(to, part.master);
    to += part.master.num_bytes();
  });
}

void Weight::initialise_uniform(Ops& ops, uint64_t seed) {
  NMOE_CHECK(spec.is_stat, "{} is initialised as statistics are", spec.name);
  if (ops.counting()) return;
  std::vector<double> values;
  for (const auto& [offset, extent] : shard.updated_elements()) {
    for (int64_t i = offset; i < offset + extent; ++i) {
      const double u = random::to_unit(random::bits(seed, fnv1a64(spec.name), static_cast<uint64_t>(i)));
      values.push_back(uniform_value(spec, u));
    }
  }
  upload_reals(ops, shard.updated_of(value), values);
}

void Weight::initialise(Ops& ops, uint64_t seed, double truncation, const MasterRoom& room) {
  if (shard.updated.extent == 0) return;
  const Tensor mine = shard.updated_of(value);
  switch (spec.init) {
    case InitKind::kZeros:
      return ops.fill({.x = mine, .value = 0.0});
    case InitKind::kOnes:
      return ops.fill({.x = mine, .value = spec.scaling.spread});
    case InitKind::kUniform:
    case InitKind::kLogOfUniform:
    case InitKind::kInverseSoftplus:
      return initialise_uniform(ops, seed);
    case InitKind::kTruncatedNormal:
      break;
  }
  // Those of `elements`, counted as this rank stores what it updates, into `master`.
  const auto draw = [&](ElementRange elements, const Tensor& master) {
    int64_t first = 0;
    for (const auto& [offset, extent] : shard.updated_elements()) {
      const int64_t begin = std::max(first, elements.offset), end = std::min(first + extent, elements.end());
      if (begin < end) {
        ops.fill_truncated_normal({.x = master.rows(begin - elements.offset, end - elements.offset),
                                   .draws = {.seed = seed,
                                             .stream = fnv1a64(spec.name),
                                             .first = offset + begin - first,
                                             .std = spec.init_std,
                                             .truncation = truncation}});
      }
      first += extent;
    }
  };
  const int64_t size = shard.updated.extent;
  const Tensor values = mine.reshape({size});
  if (!low.defined() && mine.dtype() == DType::kBF16) {
    NMOE_CHECK(room.master.defined(), "random values of {}, which has no master", spec.name);
    for (const ElementRange& elements : parts_in(room.master.num_bytes(), ops.stat_dtype(), size)) {
      const Tensor master = room.master.rows(0, elements.extent);
      draw(elements, master);
      ops.split_weight({.master = master,
                        .w = values.rows(elements.offset, elements.end()),
                        .low = room.low.rows(0, elements.extent)});
    }
    return;
  }
  if (!low.defined()) return draw({0, size}, values);
  for_each_master(ops, {0, size}, [&](const MasterPart& part) {
    draw(part.elements, part.master);
    ops.split_weight({.master = part.master, .w = part.value, .low = part.low});
  });
}

}  // namespace nmoe
