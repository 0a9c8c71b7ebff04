// A mixer by itself, as a layer of a model has it, for n bench ops. Letters as in ops/ops.h.
#pragma once

#include <memory>
#include <vector>

#include "bench/workbench.h"
#include "model/parts/moe.h"
#include "model/parts/part_kinds.h"

namespace nmoe {

// Everything between a layer's norm and its residual sum: projections and what is between them. Of kinds that rotate
// nothing. B sequences of S tokens, each one document.
struct MixerLayer {
  MixerLayer(Workbench& w, const ModelConfig& config, PartKind kind, int64_t B, int64_t S)
      : model(config),
        weights(weights_of(part_of(model, kind))),
        part(make_part(part_of(model, kind), weights, routing)),
        x(w.act({B * S, config.dim})),
        residual(w.act({B * S, config.dim})),
        y(w.act({B * S, config.dim})),
        dx(w.empty({B * S, config.dim})),
        batch{.num_seqs = B, .seq_len = S, .tokens = {}, .positions = {}},
        pass{.ops = w.ops(), .activations = w.arena(), .batch = batch, .rope = rope, .keep = Keep(w.ops(), w.arena())} {
    weights.allocate(w.ops(), w.arena(), w.arena());
    weights.initialise(w.ops(), 1, 3.0);
  }

  void forward() {
    weights.begin_step();
    applied = part->forward(pass, {OperandRows(x), {}}, residual, y);
  }
  void backward() { part->backward(pass, applied, x, {OperandRows(y), {}}, dx); }

  static LayerPart part_of(const ModelConfig& config, PartKind kind) {
    return {.config = config, .spec = {.kind = kind}, .prefix = ""};
  }

  ModelConfig model;
  WeightSet weights;
  std::vector<Moe*> routing;  // none
  std::unique_ptr<Part> part;
  // The residual's is not where y goes: a product in place takes a slower kernel, for its rounding (vendor/linear.cpp).
  Tensor x, residual, y, dx;
  Batch batch;
  RopeTables rope;
  Pass pass;
  Application applied;
};

}  // namespace nmoe
