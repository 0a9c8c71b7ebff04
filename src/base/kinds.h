// Enumerations that configuration, operations and model files name alike.
#pragma once

namespace nmoe {

enum class Activation { kSwiGlu, kReluSquared, kClampedSwiGlu };
// Pre-activations of a hidden unit: a gate and what it gates, or one.
constexpr int activation_parts(Activation kind) { return kind == Activation::kReluSquared ? 1 : 2; }

enum class ScoreFunction { kSigmoid, kSoftmax };

// How the two halves of a rotated pair are laid out in a head.
enum class RopeLayout {
  kInterleaved,  // (x0, x1), (x2, x3), ...: DeepSeek
  kHalfSplit,    // (x0, xR/2), (x1, xR/2+1), ...: Llama, Qwen
};

// What the operands of a product are rounded to before it, in blocks that share a scale (tensor/low_precision.h).
enum class OperandFormat {
  kAct,    // nothing: as they are
  kFp8,    // E4M3 in blocks of 128, scales of powers of two
  kMxFp8,  // E4M3 in blocks of 32, scales of powers of two
  kNvFp4,  // E2M1 in blocks of 16, scales in E4M3, and one of the tensor
};

// What rows are while they travel between ranks, or wait for backward.
enum class RowFormat {
  kDevice,  // as they are
  kFp8,     // rounded to OperandFormat::kFp8: a byte a value, and one for each 128
};

// In what Muon's products are multiplied (ops/contracts/optimizer.h).
enum class MuonProducts {
  kDevice,  // fp32, or what the device makes of it
  kBf16,    // operands and results in bf16, sums in fp32
};

}  // namespace nmoe
