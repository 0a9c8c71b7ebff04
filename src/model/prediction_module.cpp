#include "model/prediction_module.h"

#include "model/spec/spec.h"

namespace nmoe {

PredictionModule::PredictionModule(int64_t module, std::span<const std::vector<LayerPart>> layers, WeightSet& weights,
                                   std::vector<Moe*>& routing)
    : weights_(weights),
      inputs_range_{weights.index_of(prediction_prefix(module) + "embedding_norm"),
                    weights.index_of(prediction_prefix(module) + "projection_hidden") + 1},
      final_norm_range_{weights.index_of(prediction_prefix(module) + "final_norm"),
                        weights.index_of(prediction_prefix(module) + "final_norm") + 1},
      embedding_{Norm(weights, prediction_prefix(module) + "embedding_norm", layers.front().front().config.norm_eps),
                 Linear(weights, prediction_prefix(module) + "projection_embedding")},
      hidden_{Norm(weights, prediction_prefix(module) + "hidden_norm", layers.front().front().config.norm_eps),
              Linear(weights, prediction_prefix(module) + "projection_hidden")},
      final_norm_(weights, prediction_prefix(module) + "final_norm", layers.front().front().config.norm_eps),
      first_layer_(layers.front().front().layer),
      last_layer_(layers.back().front().layer) {
  for (const std::vector<LayerPart>& parts : layers) {
    blocks_.push_back(std::make_unique<Block>(parts, weights, routing));
    num_parts_.push_back(parts.size());
  }
}

void PredictionModule::forward(const Pass& pass, Weight& embedding, Tensor tokens, Tensor hidden, Tensor room,
                               Kept& kept) const {
  weights_.begin_application(inputs_range_);
  weights_.begin_application(final_norm_range_);
  const Shape stream = hidden.shape();
  const Tensor embedded = pass.push(stream);
  Tensor x = pass.push(stream);
  pass.ops.embedding_forward({.ids = tokens, .table = embedding.value, .y = embedded});
  // Where outputs of norms do not wait, both have the same memory: one is read before the other is made.
  kept.embedded = pass.keep.put(Site::kNormOutput, stream);
  const Rows first = pass.keep.with_values(kept.embedded);
  kept.embedding_norm = embedding_.norm.forward(pass, embedded, first);
  embedding_.projection.forward(pass.ops, first, room);
  kept.hidden = pass.keep.put(Site::kNormOutput, stream);
  const Rows second = pass.keep.with_values(kept.hidden);
  kept.hidden_norm = hidden_.norm.forward(pass, hidden, second);
  hidden_.projection.forward(pass.ops, second, x, room);
  pass.capture(Intermediate::kPredictionIn, first_layer_, x);

  kept.blocks.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->forward(pass, x, kept.blocks[i]);
  kept.out = pass.push(stream);
  kept.final_norm = final_norm_.forward(pass, x, kept.out);
  pass.capture(Intermediate::kFinalNormOut, last_layer_, kept.out);
}

void PredictionModule::cached_forward(const Pass& pass, const Weight& embedding, Tensor tokens, Tensor hidden,
                                      std::span<const PartStates> states, Tensor slots) const {
  const Shape stream = hidden.shape();
  const Tensor normed = pass.push(stream);
  Tensor x = pass.push(stream), room = pass.push(stream);
  pass.ops.embedding_forward({.ids = tokens, .table = embedding.value, .y = x});
  embedding_.norm.forward(pass, x, normed);
  embedding_.projection.forward(pass.ops, normed, room);
  hidden_.norm.forward(pass, hidden, normed);
  hidden_.projection.forward(pass.ops, normed, x, room);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->cached_forward(pass, x, room, states.first(num_parts_[i]), slots);
    states = states.subspan(num_parts_[i]);
  }
  final_norm_.forward(pass, x, hidden);
}

void PredictionModule::backward(const Pass& pass, const Kept& kept, Weight* embedding, Tensor tokens, Tensor dout,
                                Tensor dhidden) const {
  const auto gradient = [&](bool quantised) {
    return Rows(dout, quantised ? pass.keep.quantised_gradient() : RowCodes{});
  };
  Rows dx = gradient(blocks_.back()->takes_codes(pass.ops));
  final_norm_.backward(pass, kept.final_norm, dout, dx);
  weights_.end_application(final_norm_range_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    const bool leaves_codes = i > 0 && blocks_[i - 1]->takes_codes(pass.ops);
    blocks_[i]->backward(pass, kept.blocks[i], dx, leaves_codes);
    dx = gradient(leaves_codes);
  }
  const ArenaScope scope(pass.activations);
  backward_input(pass, hidden_, kept.hidden_norm, kept.hidden, dout, dhidden, /*accumulate=*/true);
  const Tensor dembedded = embedding != nullptr ? pass.push(dout.shape()) : Tensor();
  backward_input(pass, embedding_, kept.embedding_norm, kept.embedded, dout, dembedded, /*accumulate=*/false);
  if (embedding != nullptr) {
    pass.ops.embedding_backward({.ids = tokens, .dy = dembedded, .dtable = embedding->grad_to_add_to(pass.ops)});
  }
  weights_.end_application(inputs_range_);
}

void PredictionModule::backward_input(const Pass& pass, const Input& input, const Norm::Kept& norm,
                                      const KeptRows& kept, Tensor dy, Tensor dx, bool accumulate) {
  const ArenaScope scope(pass.activations);
  const Tensor dnormed = pass.push(dy.shape()), normed = pass.keep.get(kept).tensor();
  if (!kept.wait()) input.norm.forward_again(pass, norm, normed);
  input.projection.backward(pass.ops, normed, dy, dnormed);
  const bool is_wanted = dx.defined();
  input.norm.backward(pass, norm, dnormed, is_wanted ? dx : dnormed, is_wanted && accumulate);
}

}  // namespace nmoe
