// What every module needs while a microbatch is processed.
#pragma once

#include <cstddef>
#include <functional>
#include <map>

#include "config/config.h"
#include "model/batch.h"
#include "model/intermediate.h"
#include "model/keep.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace nmoe {

// The divisors of a whole optimizer step, with which losses of microbatches add up to means over the step.
struct StepScale {
  int64_t num_seqs = 1;
  int64_t num_tokens = 1;  // router z-loss
  // [objectives] f64: of each, what its token losses count: coefficient / divisor (model/heads/objective.h). Undefined
  // without backward.
  Tensor loss;
};

// Called several times in backward, each time with a lower index in definition order: the gradients of the weights from
// `first_weight` on will not be changed by anything enqueued later in this microbatch.
using GradientsReady = std::function<void(size_t first_weight)>;

// Who follows a pass, each of them only if it is set. With `inspect`, a loss that is not finite is traced to the first
// tensor that is not, at no cost to a normal step.
struct Watchers {
  Inspector inspect = {};
  Marker mark = {};
  GradientsReady gradients_ready = {};
};

// cos and sin of every (position, pair); YaRN's magnitude included. [max positions, rope_dim / 2] stat
struct RopeTable {
  Tensor cos;
  Tensor sin;
};
// One for each rope_dim in the model.
struct RopeTables {
  std::map<int64_t, RopeTable> by_dim;

  const RopeTable& of(int64_t rope_dim) const { return by_dim.at(rope_dim); }
};

// Activations are a stack: forward pushes what backward needs, backward pops it again.
struct Pass {
  Ops& ops;
  Arena& activations;
  const Batch& batch;
  const RopeTables& rope;
  Keep keep;  // what waits for backward
  StepScale scale = {};
  bool statistics = true;  // whether routers keep statistics, and add auxiliary losses
  Watchers watchers = {};

  // Whether it belongs to a step, so that backward follows.
  bool in_step() const { return scale.loss.defined(); }
  // For a forward of which nothing waits for backward.
  Pass alone() const {
    Pass pass = *this;
    pass.keep = keep.alone();
    return pass;
  }
  // For a forward that is made again, without statistics and watchers, and for the backward that follows it.
  Pass once_more() const {
    Pass pass = after_once_more();
    pass.statistics = false;
    pass.watchers = {};
    return pass;
  }
  Pass after_once_more() const {
    Pass pass = *this;
    pass.keep = keep.again();
    return pass;
  }

  Tensor push(Shape shape) const { return activations.allocate(ops.compute_dtype(), shape); }
  Tensor push_stat(Shape shape) const { return activations.allocate(ops.stat_dtype(), shape); }
  Tensor push_i32(Shape shape) const { return activations.allocate(DType::kI32, shape); }

  // The layout of a mixer's queries, keys and values in the batch.
  AttentionShape attention_shape(double softmax_scale, int64_t window) const {
    return {.num_seqs = batch.num_seqs,
            .seq_len = batch.seq_len,
            .scale = softmax_scale,
            .window = window,
            .cu_seqlens = batch.cu_seqlens};
  }
  // The rotation of x [T, H, head_size], or of its gradient, to the batch's positions.
  Rope rotation(Tensor x, int64_t rope_dim, RopeLayout layout, int64_t rope_offset = 0) const {
    const RopeTable& table = rope.of(rope_dim);
    return {.x = x,
            .positions = batch.positions,
            .cos = table.cos,
            .sin = table.sin,
            .rope_offset = rope_offset,
            .layout = layout};
  }

  // num_rows [1] i32: how many of value's rows are valid; undefined: all.
  void capture(Intermediate what, int64_t layer, Tensor value, Tensor num_rows = {}) const {
    if (watchers.inspect) watchers.inspect(what, layer, value, num_rows);
    if (watchers.mark) watchers.mark(what, layer);
  }
  void tell_ready(size_t first_weight) const {
    if (watchers.gradients_ready) watchers.gradients_ready(first_weight);
  }
};

}  // namespace nmoe
