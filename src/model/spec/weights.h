// Descriptions of weights: name, shape, optimizer group and initialisation, without device or storage.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/layers.h"
#include "tensor/tensor.h"

namespace nmoe {

// Which [optim.*] section trains a weight.
enum class WeightGroup {
  kMatrices,  // 2-D weights of attention, dense MLPs and shared experts
  kExperts,   // routed experts, [E, out, in]
  kRouter,    // router weights, and those of the shared experts' gate
  kRest,      // embedding, head, norms, biases, sinks, what a recurrence has beside its projections
  kBuffer,    // state without a gradient: the router's selection bias
};

// Which part of a layer a weight's products belong to: [precision] has a key for each.
enum class WeightPart {
  kOther,    // routers, projections to experts' latent space, embedding, head, and what is in no product of a layer
  kMixer,    // a mixer's projections
  kDense,    // dense MLPs
  kShared,   // shared experts
  kExperts,  // routed experts
};

enum class InitKind {
  kZeros,
  kOnes,             // times scaling.spread
  kTruncatedNormal,  // of init_std
  // Of a number between init_low and init_high, of weights that are stat:
  kUniform,          // the number, uniform
  kLogOfUniform,     // its logarithm
  kInverseSoftplus,  // x with softplus(x) of it, whose logarithm is uniform
};

// By what a weight's settings are multiplied, of those that its group has: model/spec/scaling.h.
struct WeightScaling {
  double spread = 1.0;  // in init_std already; of gains, what they begin at
  double adamw_rate = 1.0, muon_rate = 1.0;
  double eps = 1.0;  // of AdamW

  double rate(OptimizerKind optimizer) const { return optimizer == OptimizerKind::kMuon ? muon_rate : adamw_rate; }
  // Rate and decay together are as they were.
  double decay(OptimizerKind optimizer) const { return 1.0 / rate(optimizer); }
  bool operator==(const WeightScaling&) const = default;
};

struct WeightSpec {
  std::string name;  // "layers.3.attention.out"
  Shape shape;       // linear layers are [out, in]
  WeightGroup group = WeightGroup::kMatrices;
  bool decay = true;          // whether weight decay applies
  bool is_stat = false;       // always of the device's stat dtype: norm gains, biases, sinks, buffers
  bool is_looked_up = false;  // used by row look-up only: an embedding that the head does not share
  bool per_expert = false;    // [E, rows, cols], one for each routed expert: ranks share it by experts
  InitKind init = InitKind::kTruncatedNormal;
  double init_std = 0.0;
  double init_low = 0.0, init_high = 0.0;
  double gain_offset = 0.0;  // of a norm's gain: what is added to it (contracts/norm.h)
  int64_t layer = kNoLayer;  // to which it belongs
  WeightPart part = WeightPart::kOther;
  bool joins_previous = false;  // whether it directly follows the one before in memory, as one matrix (JoinedLinear)
  int64_t num_passes = 1;       // how often a forward and backward pass uses it: more where depths share a module
  bool to_residual = false;     // whether what it gives is added to the residual stream
  bool scales_logits = false;   // whether attention's logits are in proportion to it, and to nothing beside it of q's
  PartKind mixer = PartKind::kGqa;  // then: whose
  WeightScaling scaling = {};
  int64_t num_matrices = 1;  // of equal height that [out, in] consists of, one under the other: 2 for gate and up

  bool is_trained() const { return group != WeightGroup::kBuffer; }
  // Whether it is a matrix of a product, or several: six FLOPs an element for each token that comes to it.
  bool is_multiplied() const { return is_trained() && shape.rank() > 1 && !is_stat && !is_looked_up; }
  // A rank's part, of shape `here`, as matrices [rows, in] of the architecture, of which an optimizer by matrices
  // (Muon) updates each by itself: as a stack of them, or as it is if it is one.
  Shape as_matrices(const Shape& here) const;
};

// The weights of a model in definition order, while they are described.
class WeightList {
 public:
  explicit WeightList(const ModelConfig& config);

  // A linear weight [out, in] of the `matrices` group with the configured standard deviation.
  WeightSpec matrix(const std::string& name, int64_t out, int64_t in) const;
  // The same for a projection back onto the residual stream, scaled with depth where configured.
  WeightSpec output(const std::string& name, int64_t out, int64_t in) const;
  // A gain of each of `dim` values, which begins at 1.
  static WeightSpec gain(const std::string& name, int64_t dim);
  // The same of an RMSNorm over vectors of `dim`, zero-centred where the model's are: then it begins at 0
  // and decays, as Qwen3-Next's do.
  WeightSpec norm_gain(const std::string& name, int64_t dim) const;
  // One that attention's logits are in proportion to, in `mixer`.
  static WeightSpec scaling_logits(WeightSpec weight, PartKind mixer);
  // The bias of a product with `dim` outputs, or those of several products.
  static WeightSpec bias(const std::string& name, const Shape& shape);
  // One that begins with numbers between `low` and `high`, as `init` says.
  static WeightSpec drawn(WeightSpec weight, InitKind init, double low, double high);
  // The bias of each of E experts, [E, 1, dim].
  static WeightSpec expert_bias(const std::string& name, int64_t num_experts, int64_t dim);

  // Weights added from now on belong to this layer, or to none (kNoLayer).
  void begin_layer(int64_t layer) { layer_ = layer; }
  // Matrices added from now on belong to this part.
  void begin_part(WeightPart part) { part_ = part; }
  // A pass uses weights that are added from now on so often.
  void count_passes(int64_t num_passes) { num_passes_ = num_passes; }
  void add(WeightSpec weight);
  // Matrices [out, in] with the same input, of the same group, which are also one matrix together (JoinedLinear).
  void add_joined(std::vector<WeightSpec> weights);
  std::vector<WeightSpec> take() { return std::move(weights_); }

 private:
  double std_, output_std_;
  bool zero_centred_norms_;
  int64_t layer_ = kNoLayer;
  WeightPart part_ = WeightPart::kOther;
  int64_t num_passes_ = 1;
  std::vector<WeightSpec> weights_;
};

}  // namespace nmoe
