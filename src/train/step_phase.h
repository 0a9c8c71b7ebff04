// The parts of a step that its time is told apart by.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/intermediate.h"

namespace nmoe {

// In the order of their first turns: those of layers take turns by layer and microbatch.
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

// What a phase of a layer, or kNoLayer, took in a step.
struct PhaseTime {
  StepPhase phase;
  int64_t layer;
  double ms;
};

std::span<const StepPhase> step_phases();
std::string_view step_phase_name(StepPhase phase);  // "attention forward"
std::string step_phase_tag(StepPhase phase);        // "phase/attention_forward", of metrics

// The phase that is over when this value is there.
std::optional<StepPhase> phase_ending_with(Intermediate value);

}  // namespace nmoe
