// Keys of [model] that say how a model is trained, and not what its weights compute.
#pragma once

#include "config/config.h"

namespace nmoe {

// Gives `to` those of `from`: initial values, the rule by which rates follow sizes, the routers' bias rate and losses,
// and the losses of further tokens.
void take_training_keys(ModelConfig& to, const ModelConfig& from);

}  // namespace nmoe
