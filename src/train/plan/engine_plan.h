// What an engine needs (train/step/engine.h), found by running it against arenas that only count.
//
// Threads: any, with plans of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "ops/storage.h"
#include "rdep/capacity.h"

namespace nmoe {

// The storage that a step of each length, a validation and a checkpoint's ring need on each of config.parallel.ranks
// ranks, of which `in_domain` share the experts; 0: all. Where parts of layers may leave their formats
// (precision.fallback = "act") it is enough whichever have. `part`: if run.device is "cuda", a kind of GPU, which need
// not be in this machine. `seq_lens`: as for an engine.
StoragePlan plan_engine_storage(const Config& config, int64_t in_domain = 0, const std::optional<GpuPart>& part = {},
                                std::span<const int64_t> seq_lens = {});

// The rows of a layer's experts on each rank in the largest microbatch; all zero if experts are not shared.
ExpertRows plan_expert_rows(const Config& config, int64_t in_domain = 0, std::span<const int64_t> seq_lens = {});

// Of a run with fallback: every state of its checks, given as one of them (Engine::precision), that may need the most
// of some arena. Activations are a stack: at its highest, in some layer, all layers below keep what they keep, and this
// one works. In which of its formats a part keeps more is the same for all layers of which the same waits
// (train.recompute, precision.saved), in which one it works with more is not the same question: so all states of that
// one layer, above layers of which all that are alike in what waits have left altogether or not at all. The last of
// layers of the same kind stands highest.
std::vector<std::vector<PrecisionRole>> most_demanding_states(const Config& config,
                                                              std::span<const PrecisionRole> state);
// What one rank needs with its checks in that state; empty: as at the beginning.
StoragePlan plan_rank_storage(const Config& config, std::span<const PrecisionRole> state, int64_t rank = 0,
                              int64_t in_domain = 0, const std::optional<GpuPart>& part = {},
                              std::span<const int64_t> seq_lens = {});

}  // namespace nmoe
