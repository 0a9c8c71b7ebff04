// The phases into which a step's time is divided.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/metric.h"
#include "model/intermediate.h"

namespace nmoe {

// In the order in which they first occur; phases of layers recur for each layer and microbatch.
enum class StepPhase {
  kBegin,  // router statistics and the loss at zero
  kEmbedding,
  kMixerForward,
  kFeedForwardForward,
  kHeadAndLoss,
  kFeedForwardBackward,
  kMixerBackward,
  kUpdate,  // the rest of the gradients' sums, clipping, weights and router biases
};

// The time of a phase of a layer, or kNoLayer, in a step.
struct PhaseTime {
  StepPhase phase;
  int64_t layer;
  double ms;
};

std::span<const StepPhase> step_phases();
std::string_view step_phase_name(StepPhase phase);  // "attention forward"
const Metric& step_phase_metric(StepPhase phase);   // "phase/attention_forward"

// The phase that ends when this intermediate has been computed.
std::optional<StepPhase> phase_ending_with(Intermediate value);

}  // namespace nmoe
