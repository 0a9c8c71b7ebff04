// What a configuration's layers of experts exchange between ranks (rdep/).
#pragma once

#include <vector>

#include "config/config.h"
#include "rdep/cost.h"
#include "tensor/dtype.h"

namespace nmoe {

ExchangeShape exchange_shape(const ModelConfig& config);
// The form of exchanges in training, as far as the configuration says: not whether experts get codes.
ExchangeForm exchange_form(const Config& config);
// Of that layer, with activations of dtype `act`, among `num_ranks` ranks that share the experts equally.
ExchangeCost exchange_cost(const Config& config, DType act, int64_t num_ranks, int64_t layer);
// Of all layers of the model, those without experts included.
std::vector<ExchangeCost> exchange_costs(const Config& config, DType act, int64_t num_ranks);

}  // namespace nmoe
