#include "rdep/cost.h"

#include <algorithm>

#include "base/error.h"
#include "ops/contracts/quantize.h"

namespace nmoe {

ExchangeCost::ExchangeCost(const ExchangeShape& shape, const ExchangeForm& form, const ForwardTransfers& forward,
                           DType act, int64_t num_ranks)
    : row_bytes_(static_cast<double>(shape.width) * static_cast<double>(dtype_bytes(act))),
      sent_row_bytes_(row_bytes_),
      slot_bytes_(static_cast<double>(dtype_bytes(DType::kI32))),
      weight_bytes_(static_cast<double>(dtype_bytes(act == DType::kF64 ? DType::kF64 : DType::kF32))),
      apart_(form.received == Received::kApart),
      forward_(forward),
      top_k_(static_cast<double>(shape.top_k)) {
  if (form.dispatch_format == RowFormat::kFp8) sent_row_bytes_ = static_cast<double>(row_code_bytes(shape.width));
  const auto experts = static_cast<double>(shape.num_experts), others = static_cast<double>(num_ranks - 1);
  const double on_a_rank = experts / static_cast<double>(num_ranks);
  double misses = 1.0;  // the chance that none of a token's choices is on a certain rank
  for (double k = 0; k < top_k_; ++k) misses *= std::max(0.0, experts - on_a_rank - k) / (experts - k);
  rows_per_token_ = others * (1.0 - misses);
  copies_per_token_ = top_k_ * others / static_cast<double>(num_ranks);
}

double ExchangeCost::bytes(Transfer transfer, double rows, double copies) const {
  switch (transfer) {
    case Transfer::kDispatch: {
      const double of_choices = top_k_ * (slot_bytes_ + weight_bytes_);
      return rows * (sent_row_bytes_ + of_choices + (apart_ ? slot_bytes_ : 0.0));
    }
    case Transfer::kCombineBackward:
      return rows * sent_row_bytes_;
    case Transfer::kCombine:
      return (apart_ ? copies : rows) * row_bytes_;
    case Transfer::kDispatchBackward:
      return apart_ ? copies * (row_bytes_ + weight_bytes_) : rows * (row_bytes_ + top_k_ * weight_bytes_);
  }
  NMOE_CHECK(false, "no transfer {}", static_cast<int>(transfer));
}

int64_t ExchangeCost::times(Transfer transfer) const {
  if (transfer == Transfer::kDispatch) return forward_.dispatches;
  return transfer == Transfer::kCombine ? forward_.combines : 1;
}

double ExchangeCost::bytes_per_token() const {
  double sum = 0.0;
  for (const Transfer transfer : kTransfers) {
    sum += static_cast<double>(times(transfer)) * bytes(transfer, rows_per_token_, copies_per_token_);
  }
  return sum;
}

}  // namespace nmoe
