// Mesh: the groups of ranks that parts of a run mean, each with its communicator. Nothing else says which ranks those
// are; work on devices asks Domain for the same groups (parallel/domain.h).
//
// One list of ranks is divided twice, differently for attention and for experts (parallel folding, arXiv 2504.14960):
//
//   data x context          attention, and all else that each rank computes of its own tokens: ranks of a data group
//                           read different sequences, those of a context group the parts of one
//   expert data x experts   stacked experts: ranks of an experts' group have different ones, those of an expert data
//                           group the same
//
// Today a sequence is on one rank, and the experts of a layer are shared by the ranks of a process, which reach each
// other's memory. Whoever changes that does so here.
#pragma once

#include "parallel/communicator.h"

namespace nmoe {

class Mesh {
 public:
  // A handle: `ranks`, the communicator of all ranks of the run, must outlive it.
  explicit Mesh(Communicator& ranks) : ranks_(&ranks) {}

  // Who stops, saves and fails together.
  Communicator& all() const { return *ranks_; }
  // Whose losses, targets and times add up to those of a step, of a validation, of an evaluation.
  Communicator& data() const { return *ranks_; }
  Communicator& context() const { return single_rank(); }
  Communicator& experts() const { return ranks_->process(); }
  Communicator& expert_data() const { return ranks_->counterparts(); }
  // The ranks that divide the update of weights that all have, each of which sends the rest its part (ZeRO stage 2,
  // arXiv 1910.02054), and those that have the same part.
  Communicator& shards() const { return ranks_->process(); }
  Communicator& shard_replicas() const { return ranks_->counterparts(); }
  // The ranks of one process, which share its threads, reach each other's memory and hear its signals.
  Communicator& process() const { return ranks_->process(); }

 private:
  Communicator* ranks_;
};

}  // namespace nmoe
