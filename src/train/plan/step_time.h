// The time of a training step, predicted from shapes, bytes and a device's rates: to compare choices before any is run.
//
//   step = M (products + attention + memory) + update + exchange
//
// of M microbatches. Products take FLOPs over a rate of products alone, and what they read and write is added as bytes,
// since a GPU at its limit of power hides neither behind the other (docs/log/steps.md). Attention has a rate by FLOPs
// and a time for each exponential. The rest of forward and backward is bytes over the memory's rate; so is the update,
// with Newton-Schulz as FLOPs (optim/muon.h), or it is bounded by the host link where state lies in host memory.
// The exchange between ranks is docs/scale.md's, with the shares that it measured. Routing is as even as it is after
// some hundred steps.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "train/plan/device_rates.h"

namespace nmoe {

// Seconds of a step.
struct StepTime {
  double products = 0.0;   // of layers and head
  double attention = 0.0;  // between projections
  double memory = 0.0;     // what forward and backward read and write
  double repeated = 0.0;   // what train.recompute has backward compute again; in none of the above
  double update = 0.0;     // with transfers of state
  double exchange = 0.0;   // between ranks, as far as nothing hides it

  double total() const { return products + attention + memory + repeated + update + exchange; }
};

// Of `config` (model.vocab_size resolved), whose ranks are all of one host, at data.seq_len. `host_state_bytes`: of a
// rank's state in host memory (ArenaKind::kHostState).
StepTime predict_step_time(const Config& config, const DeviceRates& rates, int64_t host_state_bytes);

}  // namespace nmoe
