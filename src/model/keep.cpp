#include "model/keep.h"

#include <algorithm>

#include "base/error.h"

namespace nmoe {

void Keep::begin(const Shape& stream, std::span<const KeepOptions> layers, bool quantises) {
  layers_ = layers;
  // Where a whole block is made again, its norms' outputs are there until its backward has ended.
  const auto shares_norm_output = [&](const KeepOptions& options) {
    const Keep layer(*ops_, *activations_, options);
    return layer.form(Site::kNormOutput) == KeptAs::kNothing && layer.form(Site::kBlock) != KeptAs::kNothing;
  };
  if (std::ranges::any_of(layers, shares_norm_output)) {
    norm_output_ = activations_->allocate(ops_->compute_dtype(), stream);
  }
  if (!quantises) return;
  quantised_norm_ = push_row_codes(*activations_, stream[0], stream[1]);
  quantised_gradient_ = push_row_codes(*activations_, stream[0], stream[1]);
}

KeptAs Keep::form(Site site, bool in_columns) const {
  const auto waits_at = [&](Recompute dropped_from) { return options_.recompute < dropped_from; };
  const bool in_fp8 = options_.saved == RowFormat::kFp8;
  switch (site) {
    case Site::kBlock:
      return waits_at(Recompute::kBlocks) ? KeptAs::kValues : KeptAs::kNothing;
    case Site::kNormOutput:
      return waits_at(Recompute::kNorms) ? KeptAs::kValues : KeptAs::kNothing;
    case Site::kExpertRows:
      return waits_at(Recompute::kExperts) ? KeptAs::kValues : KeptAs::kNothing;
    case Site::kPreActivation:
      if (!waits_at(Recompute::kExperts)) return KeptAs::kNothing;
      return in_fp8 ? KeptAs::kQuantised : KeptAs::kValues;
    case Site::kHidden:
      // Backward makes them of pre-activations, beside the gradients of these: from FP8 the same that those stand for.
      if (in_fp8 || !waits_at(Recompute::kExperts)) return KeptAs::kNothing;
      if (in_columns) return KeptAs::kColumns;
      return waits_at(Recompute::kNorms) ? KeptAs::kValues : KeptAs::kNothing;
  }
  NMOE_CHECK(false, "no site {}", static_cast<int>(site));
}

Rows Keep::push(Site site, KeptAs as, const Shape& shape, const ColumnForm& columns) const {
  switch (as) {
    case KeptAs::kNothing:
      return site == Site::kNormOutput && norm_output_.defined() ? Rows(norm_output_) : Rows();
    case KeptAs::kValues:
      return activations_->allocate(ops_->compute_dtype(), shape);
    case KeptAs::kQuantised:
      return {{}, push_row_codes(*activations_, shape[0], shape[1])};
    case KeptAs::kColumns:
      return {{}, {}, push_column_codes(*activations_, columns, shape[1])};
  }
  NMOE_CHECK(false, "rows kept as {}", static_cast<int>(as));
}

KeptRows Keep::put(Site site, const Shape& shape, const ColumnForm& columns) const {
  const KeptAs as = form(site, columns.num_groups > 0);
  return {.site = site, .as = as, .shape = shape, .columns = columns, .rows = push(site, as, shape, columns)};
}

Rows Keep::with_values(const KeptRows& kept) const {
  Rows rows = kept.rows;
  if (!rows.has_values()) rows.values = activations_->allocate(ops_->compute_dtype(), kept.shape);
  return rows;
}

Rows Keep::get(const KeptRows& kept) const {
  if (kept.wait() || kept.rows.has_values()) return kept.rows;
  return push(kept.site, form_again(kept.site, kept.columns.num_groups > 0), kept.shape, kept.columns);
}

KeptAs Keep::form_again(Site site, bool in_columns) const {
  const Keep all(*ops_, *activations_, {.saved = options_.saved});
  if (site != Site::kHidden) return all.form(site);
  // From pre-activations that wait in FP8, backward makes them as it takes them.
  return in_columns && all.form(Site::kPreActivation) == KeptAs::kQuantised ? KeptAs::kColumns : KeptAs::kValues;
}

void Keep::before_backward() {
  NMOE_CHECK(!ends_.empty(), "more layers backward than forward");
  activations_->rewind(ends_.back());
  ends_.pop_back();
  options_ = layers_[ends_.size()];
}

Keep Keep::again() const {
  Keep all = *this;
  all.options_.recompute = Recompute::kNone;
  all.norm_output_ = {};
  return all;
}

Keep Keep::alone() const {
  Keep none = again();
  none.options_.saved = RowFormat::kDevice;
  return none;
}

}  // namespace nmoe
