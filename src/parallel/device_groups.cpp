#include "parallel/device_groups.h"

#include "parallel/tensor_sums.h"

namespace nmoe {

void PeerGroup::all_reduce_sum(Ops& ops, std::span<const Tensor> tensors) const {
  if (alone()) return;
  ops.peer_barrier({peers_, {PeerWork::kSum}});
  for (const Tensor& tensor : tensors) {
    const RankPart part = part_of_rank(tensor, index(), count());
    ops.peer_sum({peers_, tensor, part.begin, part.end});
    ops.peer_spread({peers_, tensor, part.begin, part.end});
  }
  ops.peer_barrier({peers_, {PeerWork::kSum}});
}

void PeerGroup::reduce_sum(Ops& ops, std::span<const Part> parts, bool accumulate, int64_t max_blocks) const {
  ops.peer_barrier({peers_, {PeerWork::kSum}});
  for (const Part& part : parts) {
    ops.peer_sum({.peers = peers_,
                  .x = part.tensor,
                  .begin = part.begin,
                  .end = part.end,
                  .sum = part.sum,
                  .accumulate = accumulate,
                  .max_blocks = max_blocks});
  }
  ops.peer_barrier({peers_, {PeerWork::kSum}});
}

void PeerGroup::all_gather(Ops& ops, std::span<const Part> parts) const {
  if (alone()) return;
  ops.peer_barrier({peers_, {PeerWork::kGather}});
  for (const Part& part : parts) ops.peer_spread({peers_, part.tensor, part.begin, part.end});
  ops.peer_barrier({peers_, {PeerWork::kGather}});
}

void AcrossGroup::sum(Ops& ops, std::span<const Tensor> tensors) const {
  if (!alone()) ops.sum_across({across_, tensors});
}

}  // namespace nmoe
