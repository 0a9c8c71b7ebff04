#include "config/training_keys.h"

namespace nmoe {

void take_training_keys(ModelConfig& to, const ModelConfig& from) {
  to.init = from.init;
  to.scaling = from.scaling;
  to.moe.bias_rate = from.moe.bias_rate;
  to.moe.balance_loss = from.moe.balance_loss;
  to.moe.z_loss = from.moe.z_loss;
  to.mtp.loss_weight = from.mtp.loss_weight;
  to.mtp.later_from = from.mtp.later_from;
  to.mtp.later_loss_weight = from.mtp.later_loss_weight;
  to.mtp.detach = from.mtp.detach;
}

}  // namespace nmoe
