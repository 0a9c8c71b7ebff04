// A layer of experts by itself, for n bench ops. Letters as in ops/ops.h.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/workbench.h"
#include "model/parts/moe.h"

namespace nmoe {

// A whole layer of routed experts, as the model has it: router, plan, dispatch, experts, combine.
struct MoeLayer {
  struct Sizes {
    int64_t T, D, F, E, K;
    int64_t latent = 0;  // width of the experts' latent space; 0: that is D
    Activation activation = Activation::kSwiGlu;

    int64_t travelling() const { return latent > 0 ? latent : D; }
    Sizes of_experts() const { return {T, travelling(), F, E, K, 0, activation}; }  // without projections
    int64_t matrices() const { return activation_parts(activation) + 1; }           // [F, travelling] of an expert
  };

  // format: of the experts' products, but of those that make their weights' gradients.
  MoeLayer(Workbench& w, const Sizes& size, OperandFormat format)
      : model(config_of(size)),
        weights(weights_of(part())),
        moe(part(), weights),
        x(w.act({size.T, size.D})),
        y(w.act({size.T, size.D})),
        dx(w.empty({size.T, size.D})),
        batch{.num_seqs = 1, .seq_len = size.T, .tokens = {}, .positions = {}},
        pass{.ops = w.ops(), .activations = w.arena(), .batch = batch, .rope = rope, .keep = Keep(w.ops(), w.arena())} {
    weights.allocate(w.ops(), w.arena(), w.arena());
    weights.initialise(w.ops(), 1, 3.0);
    for (Weight* weight : moe.expert_weights()) {
      weight->copies.format = format;
      allocate_weight_codes(*weight, w.ops(), w.arena());
    }
    if (moe.takes_codes(w.ops())) codes = push_row_codes(w.arena(), size.T, size.D);
    moe.keep_stats({.counts = w.arena().allocate(DType::kI32, {size.E}),
                    .aux_loss = w.arena().allocate(DType::kF64, {2}),
                    .entropy = w.arena().allocate(DType::kF64, {1})});
  }
  static ModelConfig config_of(const Sizes& size) {
    ModelConfig config;
    config.dim = size.D;
    config.activation = size.activation;
    config.moe.num_experts = size.E;
    config.moe.top_k = size.K;
    config.moe.expert_dim = size.F;
    config.moe.latent_dim = size.latent;
    config.moe.num_shared_experts = 0;
    return config;
  }

  // grad_format: of products that will make gradients of the experts' weights, for which forward may leave operands.
  void forward(OperandFormat grad_format) {
    for (Weight* weight : moe.expert_weights()) weight->copies.grad_format = grad_format;
    weights.begin_step();  // codes of weights are made, gradients written, as in a step of one microbatch
    applied = moe.forward(pass, coded(x), y, y);
  }
  void backward() { moe.backward(pass, applied, x, coded(y), dx); }
  // With their codes, where there are any: as norms leave them in a model.
  Rows coded(Tensor rows) {
    if (codes.defined()) pass.ops.quantize(quantize_rows(rows, codes));
    return {OperandRows(rows), codes};
  }

  LayerPart part() const {
    return {.config = model, .spec = {.kind = PartKind::kMoe, .hidden = model.moe.expert_dim}, .prefix = ""};
  }

  ModelConfig model;
  WeightSet weights;
  Moe moe;
  Tensor x, y, dx;
  RowCodes codes = {};
  Batch batch;
  RopeTables rope;
  Pass pass;
  Application applied;
};

}  // namespace nmoe
