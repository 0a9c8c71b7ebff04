// The model's named weights: where they live, which optimizer group they belong to, how they start.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "config/config.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace nmoe {

// Which [optim.*] section trains a parameter.
enum class ParameterGroup {
  kMatrices,  // 2-D weights of attention, dense MLPs and shared experts
  kExperts,   // routed experts, [E, out, in]
  kRouter,    // router weights
  kRest,      // embedding, head, norms
  kBuffer,    // state without a gradient: the router's selection bias
};

enum class InitKind { kZeros, kOnes, kTruncatedNormal };

struct Parameter {
  std::string name;  // "layers.3.attn.out"
  Shape shape;
  ParameterGroup group = ParameterGroup::kMatrices;
  bool decay = true;     // whether weight decay applies
  bool is_stat = false;  // always of the device's stat dtype: norm gains, buffers
  InitKind init = InitKind::kTruncatedNormal;
  double init_std = 0.0;

  Tensor value;  // act, or stat where is_stat
  Tensor low;    // i16, the rest of the master weight (ops/ops.h); undefined where the value is stat
  Tensor grad;   // stat; undefined for buffers
};

// A parameter's values, or its master's, from and to stat numbers in host memory. Gradients are overwritten: where
// there is a master, it passes through them. `host` has the values when the device's begin_download() would have them.
void upload_parameter(Ops& ops, const Parameter& parameter, const void* host);
void begin_download_parameter(Ops& ops, const Parameter& parameter, void* host);

// All parameters in definition order. References stay valid for the set's life.
class ParameterSet {
 public:
  Parameter& add(Parameter parameter);

  // Gives every parameter its storage, in the device's compute dtype.
  void allocate(Ops& ops, Arena& values, Arena& grads);
  // Fills the values; gradients are overwritten, as by upload_parameter. Each is drawn from its own stream, keyed by
  // seed and name: adding a layer changes no other.
  void initialise(Ops& ops, uint64_t seed, double truncation);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  int64_t num_trained() const;  // elements of everything but buffers

 private:
  std::deque<Parameter> parameters_;
};

}  // namespace nmoe
