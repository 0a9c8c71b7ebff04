#include "model/weight.h"

namespace nmoe {

void Weight::upload(Ops& ops, const void* host) {
  if (shard.updated.extent == 0) return;
  Device& device = ops.device();
  const Tensor mine = shard.updated_of(value);
  if (!low.defined()) return device.upload(mine, host);
  const Tensor master = shard.updated_of(grad);
  device.upload(master, host);
  ops.split_weight({.master = master, .w = mine, .low = low});
}

void Weight::begin_download(Ops& ops, void* host) const {
  if (shard.updated.extent == 0) return;
  Device& device = ops.device();
  const Tensor mine = shard.updated_of(value);
  if (!low.defined()) return device.begin_download(host, mine);
  const Tensor master = shard.updated_of(grad);
  ops.join_weight({.w = mine, .low = low, .master = master});
  device.begin_download(host, master);
}

void Weight::initialise(Ops& ops, uint64_t seed, double truncation) {
  if (shard.updated.extent == 0) return;
  const Tensor mine = shard.updated_of(value);
  switch (spec.init) {
    case InitKind::kZeros:
      return ops.fill({.x = mine, .value = 0.0});
    case InitKind::kOnes:
      return ops.fill({.x = mine, .value = 1.0});
    case InitKind::kTruncatedNormal:
      break;
  }
  const Tensor master = low.defined() ? shard.updated_of(grad) : mine;
  int64_t first = 0;
  for (const auto& [offset, extent] : shard.updated_elements()) {
    ops.fill_truncated_normal({.x = master.reshape({master.num_elements()}).rows(first, first + extent),
                               .draws = {.seed = seed,
                                         .stream = fnv1a64(spec.name),
                                         .first = offset,
                                         .std = spec.init_std,
                                         .truncation = truncation}});
    first += extent;
  }
  if (low.defined()) ops.split_weight({.master = master, .w = mine, .low = low});
}

}  // namespace nmoe
