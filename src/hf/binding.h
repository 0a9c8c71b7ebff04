// A Hugging Face folder's tensors bound to the parameters of the model that its config.json describes. Every tensor is
// accounted for: it makes up a parameter, is carried along, or is an error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hf/config_json.h"
#include "hf/tensor_map.h"
#include "hf/weights.h"

namespace nmoe {

// The model that the folder's config.json describes; its weights need not be there. Error (runtime) as of
// from_config_json.
HfModel read_hf_model(const fs::path& dir);

// What becomes of layers behind the last, which predict further tokens.
enum class PredictionLayers {
  kCarried,  // they are no part of the model
  kTrained,  // they are modules of multi-token prediction (MtpConfig)
};

class HfBinding {
 public:
  // Reads config.json and the weights of `dir`. Errors: (runtime) that lists by name what is missing, unknown or of
  // another shape than config.json asks for; (usage) layers are to be trained that there are not, or of a type whose
  // layers nmoe has not.
  explicit HfBinding(const fs::path& dir, PredictionLayers predictions = PredictionLayers::kCarried);

  const HfModel& model() const { return model_; }
  const HfWeights& weights() const { return weights_; }
  const std::vector<MappedParameter>& parameters() const { return parameters_; }
  // Tensors that are no parameter: multi-token-prediction layers beyond the last layer, and rotation frequencies that
  // older checkpoints hold.
  const std::vector<std::string>& carried() const { return carried_; }
  int64_t num_prediction_layers() const { return num_prediction_layers_; }  // those of them that have tensors

  // The dtype of a parameter's tensors; F32 where they differ, or there are none.
  DType dtype_of(const MappedParameter& parameter) const;
  // The parameter's values, as `dtype`. Good while this object lives.
  TensorSource source(const MappedParameter& parameter, DType dtype) const;
  // A carried tensor as it is on the disk, or what it stands for when it is FP8.
  TensorSource carried_source(const std::string& name) const;

 private:
  HfModel model_;
  HfWeights weights_;
  std::vector<MappedParameter> parameters_;
  std::vector<std::string> carried_;
  int64_t num_prediction_layers_ = 0;
};

}  // namespace nmoe
