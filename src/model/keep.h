// What forward leaves for backward, and in which form it waits there.
//
// A part asks by the *site* that rows are at, and nobody else decides: in forward put() gives the memory of what waits,
// in backward get() gives the rows, or memory to make them in again. train.recompute and precision.saved are how the
// answers are configured, for every layer. All memory is pushed on the activation stack, so a plan, which runs the same
// code against counting arenas, gets the same answers.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/kinds.h"
#include "config/config.h"
#include "ops/ops.h"
#include "ops/rows.h"
#include "tensor/arena.h"

namespace nmoe {

// Where rows that forward makes may wait for backward. Of a block, its input always waits, and of a router its
// decisions: rows go where they went.
enum class Site {
  kBlock,          // all that the parts of a block make
  kNormOutput,     // [T, D] what a part reads
  kExpertRows,     // [R, D] tokens as experts got them
  kPreActivation,  // [N, W] of an MLP or of experts
  kHidden,         // [N, F] of these
};

// As what they wait.
enum class KeptAs {
  kNothing,    // backward makes them again
  kValues,     // as they are
  kQuantised,  // in FP8 by rows: backward works on the values that these stand for
  kColumns,    // in FP8 by columns, as the gradient of a weight takes them
};

// Rows at a site, from forward to backward.
struct KeptRows {
  Site site = Site::kBlock;
  KeptAs as = KeptAs::kNothing;
  Shape shape = {};
  ColumnForm columns = {};
  Rows rows = {};  // what waits

  // Whether they do, in any form.
  bool wait() const { return as != KeptAs::kNothing; }
};

struct KeepOptions {
  Recompute recompute = Recompute::kNone;  // what does not wait; changes no result
  RowFormat saved = RowFormat::kDevice;    // in which form pre-activations do
};

// The policy of one pass, in each of its layers.
class Keep {
 public:
  // Of a pass without backward by default: everything waits as it is, until its memory is popped.
  Keep(Ops& ops, Arena& activations, const KeepOptions& options = {})
      : ops_(&ops), activations_(&activations), options_(options) {}

  // Begins a forward that backward follows, over a residual stream of that shape, [T, D], through layers with these
  // options, which must outlive the pass. `quantises`: whether any product takes rows of the stream in FP8, for which
  // memory is shared: quantised_norm() holds those of the last norm's output, quantised_gradient() those of the
  // stream's gradient. Undefined otherwise.
  void begin(const Shape& stream, std::span<const KeepOptions> layers, bool quantises);
  const RowCodes& quantised_norm() const { return quantised_norm_; }
  const RowCodes& quantised_gradient() const { return quantised_gradient_; }

  // As what rows at `site` wait. in_columns: whether backward takes them so, rather than as values.
  KeptAs form(Site site, bool in_columns = false) const;
  // Forward: memory for what waits of rows of that shape; all of it has to be pushed before what does not wait.
  KeptRows put(Site site, const Shape& shape, const ColumnForm& columns = {}) const;
  // The same for rows that are there already, as values: they wait, or will be popped (WaitingScope).
  KeptRows put(Site site, const Rows& rows) const { return {.site = site, .as = form(site), .rows = rows.values}; }
  // Forward: what waits and, if that has none, values: in memory that the caller's ArenaScope pops.
  Rows with_values(const KeptRows& kept) const;
  // Backward: the rows that wait or, if none do, memory to make them in again, in the form in which they would wait if
  // nothing were made again; of hidden units, which backward makes beside gradients, in that in which it takes them.
  Rows get(const KeptRows& kept) const;

  // Called around the forward of each layer, in their order, and before the backward of each, in reverse: its options
  // then are those that count, and before backward its memory is the top of the stack.
  void begin_forward() { options_ = layers_[ends_.size()]; }
  void end_forward() { ends_.push_back(activations_->mark()); }
  void before_backward();

  // The policy of a forward that backward makes again, and of the backward that follows it.
  Keep again() const;
  // The policy of a forward of which nothing waits.
  Keep alone() const;

 private:
  // As what get() wants rows that did not wait.
  KeptAs form_again(Site site, bool in_columns) const;
  Rows push(Site site, KeptAs as, const Shape& shape, const ColumnForm& columns) const;

  Ops* ops_;
  Arena* activations_;
  KeepOptions options_;  // of the layer
  std::span<const KeepOptions> layers_;
  Tensor norm_output_;  // [T, D]: where norms' outputs do not wait, shared by all
  RowCodes quantised_norm_, quantised_gradient_;
  std::vector<int64_t> ends_;  // of the stack, after the forwards of layers
};

// What is pushed while this lives is popped at its end if it does not wait at `site`.
class WaitingScope {
 public:
  WaitingScope(const Keep& keep, Arena& activations, Site site)
      : activations_(activations), mark_(activations.mark()), waits_(keep.form(site) != KeptAs::kNothing) {}
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;
  ~WaitingScope() {
    if (!waits_) activations_.rewind(mark_);
  }

 private:
  Arena& activations_;
  int64_t mark_;
  bool waits_;
};

}  // namespace nmoe
