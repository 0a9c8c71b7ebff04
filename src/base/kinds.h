// Enumerations that configuration, operations and model files name alike.
#pragma once

namespace nmoe {

enum class Activation { kSwiGlu, kReluSquared };

enum class ScoreFunction { kSigmoid, kSoftmax };

// How the two halves of a rotated pair are laid out in a head.
enum class RopeLayout {
  kInterleaved,  // (x0, x1), (x2, x3), ...: DeepSeek
  kHalfSplit,    // (x0, xR/2), (x1, xR/2+1), ...: Llama, Qwen
};

}  // namespace nmoe
