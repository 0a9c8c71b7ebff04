// How far a Hugging Face model computed here is from what transformers computed: logits, loss and gradients.
//
// B sequences, S positions, V vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/config.h"

namespace nmoe {

struct ParityOptions {
  fs::path model;  // a Hugging Face folder; weights are taken as F32, FP8 for what it means (hf/weights.h)
  // Safetensors: input_ids [B, S + 1] i32; logits [B, S, V] of the first S ids, loss [1] (mean cross-entropy of the B*S
  // next ids, nats) and grad.<tensor>, dloss / d<tensor> for every trained tensor of the model, all F32. The experts of
  // a layer may be one tensor as transformers holds them (fused_expert_name) or a tensor each. scripts/hf_fixture.py
  // writes such files.
  fs::path expected;
  std::string device = "cpu";  // where it is computed here, in fp32: "cpu" or "cuda"
  // kBf16: on CUDA in bf16 in place of fp32. A low one: operands of the layers' products are rounded to it first, on
  // CUDA bf16 ones.
  Precision precision = Precision::kDevice;
  int num_threads = 0;  // of the CPU; 0: one per available CPU
};

// The part of a parameter's gradient that is furthest off.
struct GradientError {
  std::string parameter;
  std::string tensor;     // that part's name in Hugging Face's files
  double relative = 0.0;  // norm of the difference / norm of what is expected; infinite where that is 0
  // Both norms are below kRoundingOfGradients of that of all expected gradients: a derivative that is 0, as a router's
  // of one expert whose weight is always 1, of which either side has the rounding of what cancels. `relative` is then
  // 0.
  bool is_rounding = false;
};
inline constexpr double kRoundingOfGradients = 0x1p-20;

struct LogitError {
  double difference = 0.0;  // the largest absolute one
  int64_t sequence = 0;
  int64_t position = 0;
  int64_t token = 0;
};

// How far values are off, relative, as norms: of all logits, and the median of trained parameters' gradients.
struct RelativeErrors {
  double logits = 0.0;
  double gradients = 0.0;
};

// What a low precision costs, beside what it should. Routers decide: where an expert is chosen by a hair's breadth,
// rounding may choose another, and no small error is to be expected from there on. So errors are those with the
// routers' logits of fp32 in place of their own.
struct LowPrecisionReport {
  RelativeErrors found;
  // By first order: what errors of the products' operands do to this model on this text. In fp32, with the same
  // routers' logits, all weights that would be rounded get random errors of a sixteenth of what rounding costs a
  // product; the consequences are multiplied by 16. Operands are taken for normal values (31.5 dB in E4M3; NVFP4: 20.4
  // in rows, 19.1 in tiles). A gradient that is itself a product of rounded operands has that error, too.
  RelativeErrors expected;
  int64_t choices = 0, other_choices = 0;  // of experts; those that are others with the routers' own logits

  // One draw of errors, and their first order, say no more than to a factor of two.
  bool as_expected() const;  // false: a NaN, too
};

// A NaN on either side makes its error NaN.
struct ParityReport {
  double loss = 0.0;
  double expected_loss = 0.0;
  LogitError logits;
  double largest_logit = 0.0;            // of those expected, in magnitude
  std::vector<GradientError> gradients;  // one for each trained parameter, worst first
  double all_gradients = 0.0;            // relative, of all of them as one vector
  RelativeErrors relative;
  std::optional<LowPrecisionReport> low;  // with a low ParityOptions::precision

  double loss_error() const;
};

// What rounding both operands costs a product, relative.
double rounding_error_of_product(Precision precision);

// One forward and backward, in a low precision four. Error (usage) when there is no such device, or none with bf16;
// Error (runtime) when a file is damaged, or `expected` lacks a tensor, has one of another shape or dtype, or one that
// is no part of the model.
ParityReport compare_with_reference(const ParityOptions& options);

}  // namespace nmoe
