// How far a Hugging Face model computed here is from what transformers computed: logits, loss and gradients.
//
// B sequences, S positions, V vocabulary.
#pragma once

#include <cstdint>
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
  // A low one: operands of the layers' products are rounded to it first, on CUDA bf16 ones.
  Precision precision = Precision::kDevice;
  int num_threads = 0;  // of the CPU; 0: one per available CPU
};

// The part of a parameter's gradient that is furthest off.
struct GradientError {
  std::string parameter;
  std::string tensor;     // that part's name in Hugging Face's files
  double relative = 0.0;  // norm of the difference / norm of what is expected; infinite where that is 0
};

struct LogitError {
  double difference = 0.0;  // the largest absolute one
  int64_t sequence = 0;
  int64_t position = 0;
  int64_t token = 0;
};

// A NaN on either side makes its error NaN.
struct ParityReport {
  double loss = 0.0;
  double expected_loss = 0.0;
  LogitError logits;
  double logits_relative = 0.0;          // norm of all differences / norm of what is expected
  std::vector<GradientError> gradients;  // one for each trained parameter, worst first
  int64_t num_products = 0;              // with weights of layers, one behind the other from ids to logits

  double loss_error() const;
  double median_gradient() const;  // of the relative errors
};

// What rounding operands to a low precision is expected to cost of values that are behind so many products: relative,
// as norms. Each product adds an error of its own, independent of those before; operands have 31.5 dB each in
// E4M3, 20.4 in NVFP4 (normal values), so that a product has 3 dB less.
double expected_rounding_error(Precision precision, int64_t num_products);

// One forward and backward. Error (usage) when there is no such device; Error (runtime) when a file is damaged, or
// `expected` lacks a tensor, has one of another shape or dtype, or one that is no part of the model.
ParityReport compare_with_reference(const ParityOptions& options);

}  // namespace nmoe
