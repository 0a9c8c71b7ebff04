// Which Hugging Face tensors a model's parameters are made of: the one place that knows both sides' names and layouts.
// Import, export and parity all follow it.
//
// Both sides keep a linear layer as [out, in], row-major. They differ in what is one tensor: here gate and up
// projections are stacked, and so are the experts of a layer ([E, out, in]); there they are not, or are [E, in, out]
// with gate and up in turns (gpt-oss), and the latent of keys and values comes from one matrix with the shared rotated
// key. Where all models of a type pair the rows that rotate in a layout that is not the model's (only_rope_layout),
// rows of queries and keys are reordered: it then computes the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hf/config_json.h"
#include "model/spec/spec.h"

namespace nmoe {

// Consecutive elements of a parameter that are consecutive in a Hugging Face tensor, or spread there.
struct TensorPiece {
  std::string tensor;            // "model.layers.3.mlp.experts.7.gate_proj.weight"
  Shape tensor_shape;            // of all of it
  int64_t tensor_offset = 0;     // where the piece begins in it, in elements
  int64_t parameter_offset = 0;  // and in the parameter
  int64_t num_elements = 0;
  // Spread: rows of `width` elements, of which one begins row_step behind the other in the tensor, and an element lies
  // column_step behind the one before.
  int64_t width = 1, row_step = 1, column_step = 1;

  bool is_spread() const { return width != 1 || row_step != 1; }
  // Where element i of the piece is in the tensor.
  int64_t place_of(int64_t i) const { return tensor_offset + i / width * row_step + i % width * column_step; }
};

struct MappedParameter {
  std::string name;
  Shape shape;
  // By rising parameter_offset, covering the parameter without gap; none where the format has no such tensor: a
  // selection bias that is zero.
  std::vector<TensorPiece> pieces;
  // Further tensors that have all of the parameter's values, as its one piece has: each module of multi-token
  // prediction has the embedding and the head once more, but for nemotron_h's.
  std::vector<std::string> copies = {};
};

// Every parameter of the model, in definition order. obstacles_to finds nothing against it.
std::vector<MappedParameter> map_parameters(const ModelConfig& config, ModelType type);

// Whether models of this type may have modules of multi-token prediction in a form that this map knows: as layers
// behind the last, or (nemotron_h) one module in layers of its own, with the two halves of their projection as columns
// of one matrix.
bool predicts_further(ModelType type);

// Whether routers of this type have one.
bool has_selection_bias(ModelType type);

// Whether `tensor` is the router's selection bias, which stays F32 whatever the other weights are.
bool is_selection_bias(const std::string& tensor);

// The name of an expectation's gradient of `tensor`: what transformers' modules call it, if not as its files do.
std::string module_name(const std::string& tensor);

// The name under which transformers holds all experts of the layer of an expert's `tensor` in one,
// "model.layers.3.mlp.experts.gate_up_proj" [E, 2F, D] (of nemotron_h "... .up_proj" [E, F, D]) or "... .down_proj"
// [E, D, F]; "" for any other tensor, those
// included that are in one in files, too.
std::string fused_expert_name(const std::string& tensor);

}  // namespace nmoe
