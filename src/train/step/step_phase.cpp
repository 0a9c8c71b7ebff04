#include "train/step/step_phase.h"

#include <array>

#include "base/error.h"
#include "track/tags/training.h"

namespace nmoe {

std::span<const StepPhase> step_phases() {
  static constexpr std::array kPhases = {StepPhase::kBegin,         StepPhase::kEmbedding,
                                         StepPhase::kMixerForward,  StepPhase::kFeedForwardForward,
                                         StepPhase::kHeadAndLoss,   StepPhase::kFeedForwardBackward,
                                         StepPhase::kMixerBackward, StepPhase::kUpdate};
  return kPhases;
}

std::string_view step_phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kBegin:
      return "begin";
    case StepPhase::kEmbedding:
      return "embedding";
    case StepPhase::kMixerForward:
      return "attention forward";
    case StepPhase::kFeedForwardForward:
      return "feed-forward forward";
    case StepPhase::kHeadAndLoss:
      return "head and loss";
    case StepPhase::kFeedForwardBackward:
      return "feed-forward backward";
    case StepPhase::kMixerBackward:
      return "attention backward";
    case StepPhase::kUpdate:
      return "update";
  }
  NMOE_CHECK(false, "no phase {}", static_cast<int>(phase));
}

const Metric& step_phase_metric(StepPhase phase) {
  switch (phase) {
    case StepPhase::kBegin:
      return tags::kPhaseBegin;
    case StepPhase::kEmbedding:
      return tags::kPhaseEmbedding;
    case StepPhase::kMixerForward:
      return tags::kPhaseAttentionForward;
    case StepPhase::kFeedForwardForward:
      return tags::kPhaseFeedForwardForward;
    case StepPhase::kHeadAndLoss:
      return tags::kPhaseHeadAndLoss;
    case StepPhase::kFeedForwardBackward:
      return tags::kPhaseFeedForwardBackward;
    case StepPhase::kMixerBackward:
      return tags::kPhaseAttentionBackward;
    case StepPhase::kUpdate:
      return tags::kPhaseUpdate;
  }
  NMOE_CHECK(false, "no phase {}", static_cast<int>(phase));
}

std::optional<StepPhase> phase_ending_with(Intermediate value) {
  switch (value) {
    case Intermediate::kEmbeddingOut:
      return StepPhase::kEmbedding;
    case Intermediate::kMixerOut:
      return StepPhase::kMixerForward;
    case Intermediate::kFeedForwardOut:
      return StepPhase::kFeedForwardForward;
    case Intermediate::kLosses:
      return StepPhase::kHeadAndLoss;
    case Intermediate::kFeedForwardGradient:
      return StepPhase::kFeedForwardBackward;
    case Intermediate::kMixerGradient:
      return StepPhase::kMixerBackward;
    default:
      return std::nullopt;
  }
}

}  // namespace nmoe
