// Attention: the interface both kinds share. T tokens, D model width.
#pragma once

#include <memory>

#include "config/config.h"
#include "model/kv_cache.h"
#include "model/parameters.h"
#include "model/pass.h"

namespace nmoe {

class Attention {
 public:
  virtual ~Attention() = default;
  // x [T, D] (normed), y [T, D] +=
  virtual void forward(const Pass& pass, Tensor x, Tensor y) = 0;
  // dy [T, D] is left alone, dx [T, D] =
  virtual void backward(const Pass& pass, Tensor dy, Tensor dx) = 0;

  // Storage for `num_slots` sequences of up to `capacity` positions.
  virtual LayerCache allocate_cache(Arena& arena, DType dtype, int64_t num_slots, int64_t capacity) const = 0;
  // As forward, but a row attends to what is cached of its slot, after its own keys and values have been added to that.
  // No backward can follow. slots [T] i32; positions are the batch's.
  virtual void cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots, Tensor y) = 0;
};

// Multi-head latent attention or grouped-query attention, by config.attention. `window` is the layer's own: 0 is
// full causal. `name` prefixes the parameters.
std::unique_ptr<Attention> make_attention(const ModelConfig& config, ParameterSet& parameters, const std::string& name,
                                          int64_t window);

// How many values of a head RoPE turns: the size of the angle tables.
int64_t rope_dim(const ModelConfig& config);

// A linear weight [out, in] of the `matrices` group with the configured standard deviation.
Parameter matrix_parameter(const ModelConfig& config, const std::string& name, int64_t out, int64_t in);
// The same for a projection back onto the residual stream, scaled with depth where configured.
Parameter output_parameter(const ModelConfig& config, const std::string& name, int64_t out, int64_t in);

}  // namespace nmoe
