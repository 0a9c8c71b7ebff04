// Mixer: the part of a layer in which positions see each other; the interface of its kinds. T tokens, D model width.
//
// A kind is a class derived from Mixer and a function that describes its weights, both in one file pair, named in
// mixer.cpp.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <memory>
#include <string>

#include "model/application.h"
#include "model/kv_cache.h"
#include "model/pass.h"
#include "model/spec/spec.h"
#include "model/weight.h"

namespace nmoe {

// What names of a mixer's weights begin with.
inline std::string attention_prefix(const Layer& layer) { return layer.name + "attention."; }

class Mixer {
 public:
  virtual ~Mixer() = default;
  // y [T, D] = residual [T, D], which may be y, plus the output for x [T, D] (normed). Returns what backward needs
  // besides x.
  virtual Application forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) const = 0;
  // Of that application, for the same x: dx [T, D] =; dy [T, D] is not changed.
  virtual void backward(const Pass& pass, const Application& of, Tensor x, const CodedRows& dy, Tensor dx) const = 0;
  // Whether codes of x and dy are used.
  virtual bool takes_codes() const = 0;
  // As forward, but each row is added to the cache of its slot and then sees what is cached there. No backward can
  // follow. slots [T] i32; positions are the batch's.
  virtual void cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots, Tensor residual,
                              Tensor y) const = 0;
};

// Adds the weights of a layer's mixer and returns its other properties.
MixerSpec describe_mixer(const Layer& layer, WeightList& weights);
// Makes the mixer, with the weights so described. The layer's configuration must outlive it.
std::unique_ptr<Mixer> make_mixer(const Layer& layer, WeightSet& weights);

}  // namespace nmoe
