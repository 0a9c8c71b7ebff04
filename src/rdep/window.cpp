#include "rdep/window.h"

#include <numeric>
#include <vector>

#include "ops/rows.h"

namespace nmoe {

ExchangeWindow::ExchangeWindow(Transport& transport, Ops& ops, const ExchangeShape& shape, const ExchangeLimits& limits,
                               const ExchangeForm& form, Arena& state)
    : transport_(transport),
      num_slots_(shape.num_experts / transport.count()),
      max_tokens_(limits.max_tokens),
      width_(shape.width),
      received_(form.received),
      dispatch_format_(form.dispatch_format),
      expert_rows_(nmoe::expert_rows(shape, transport.count(), limits, form.received)) {
  const int64_t W = transport.count(), M = max_tokens_, D = shape.width, K = shape.top_k;
  Arena& window = transport.window();
  const bool apart = received_ == Received::kApart, coded = dispatch_format_ == RowFormat::kFp8;
  for (ExchangeInbox& inbox : inboxes_) {
    inbox = {.rows = coded ? Tensor() : window.allocate(ops.compute_dtype(), {W, M, D}),
             .slots = window.allocate(DType::kI32, {W, M, K}),
             .weights = window.allocate(ops.stat_dtype(), {W, M, K}),
             .counts = window.allocate(DType::kI32, {W}),
             .tokens = apart ? window.allocate(DType::kI32, {W, M}) : Tensor(),
             .codes = coded ? push_row_codes(window, W * M, D) : RowCodes()};
  }
  if (apart) {
    copies_ = {.rows = window.allocate(ops.compute_dtype(), {M, K, D}),
               .weights = window.allocate(ops.stat_dtype(), {M, K}),
               .row_of = state.allocate(DType::kI32, {M, K})};
    std::vector<int32_t> rows(static_cast<size_t>(M * K));
    std::iota(rows.begin(), rows.end(), 0);
    ops.device().upload(copies_.row_of, rows.data());
  } else {
    returns_ = {.rows = window.allocate(ops.compute_dtype(), {W, M, D}),
                .weights = window.allocate(ops.stat_dtype(), {W, M, K})};
  }
  if (expert_rows_.num_chunks > 0) loads_ = window.allocate(DType::kI32, {W});
  if (coded && form.gives_codes) row_codes_ = push_row_codes(state, expert_rows_.kept, D);
}

}  // namespace nmoe
