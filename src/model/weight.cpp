#include "model/weight.h"

#include <algorithm>

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

void Weight::initialise(Ops& ops, uint64_t seed, double truncation, const MasterRoom& room) {
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
  const auto flat = [](const Tensor& x) { return x.reshape({x.num_elements()}); };
  const auto draw = [&](const Tensor& master, int64_t offset) {  // elements from `offset` on, of the whole weight
    ops.fill_truncated_normal({.x = master,
                               .draws = {.seed = seed,
                                         .stream = fnv1a64(spec.name),
                                         .first = offset,
                                         .std = spec.init_std,
                                         .truncation = truncation}});
  };
  const bool in_parts = !low.defined() && mine.dtype() == DType::kBF16;
  NMOE_CHECK(!in_parts || room.master.defined(), "random values of {}, which has no master", spec.name);
  const Tensor master = in_parts ? room.master : flat(low.defined() ? shard.updated_of(grad) : mine);
  int64_t first = 0;
  for (const auto& [offset, extent] : shard.updated_elements()) {
    if (!in_parts) draw(master.rows(first, first + extent), offset);
    for (int64_t done = 0; in_parts && done < extent;) {
      const int64_t count = std::min(extent - done, room.master.num_elements());
      const Tensor part = master.rows(0, count);
      draw(part, offset + done);
      ops.split_weight(
          {.master = part, .w = flat(mine).rows(first + done, first + done + count), .low = room.low.rows(0, count)});
      done += count;
    }
    first += extent;
  }
  if (low.defined()) ops.split_weight({.master = master, .w = mine, .low = low});
}

}  // namespace nmoe
