// The weights of a model on a device of their own, with storage that has been planned for them and for whoever runs
// them. This is the one way in which a model is planned and made outside of training, whose ranks have devices and
// storage anyway (train/plan/engine_plan.h).
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/weight_set.h"
#include "ops/storage.h"

namespace nmoe {

struct WeightsPlace {
  DeviceOptions device;
  // Whether there are gradients, and whole masters of BF16 weights; else nothing may be done that needs them.
  bool has_gradients = false;
  // Of the Error where memory is too little: what needs so much ("generation"), and what to lower.
  std::string work = "the model";
  std::function<std::string(const StoragePlan& plan)> remedy = [](const StoragePlan&) { return "free some memory"; };
};

class PlacedWeights {
 public:
  // `rehearse` makes what will run the weights, as it will be made on storage(), with its largest passes; it is called
  // once, on a storage that counts. Takes all memory; values are yet to be given. config.vocab_size is set. Error
  // (usage) with what to lower where the device has too little memory, or there is no such device.
  PlacedWeights(const ModelConfig& config, const WeightsPlace& place,
                const std::function<void(WeightSet& weights, Storage& storage)>& rehearse);

  Device& device() const { return *device_; }
  Storage& storage() const { return *storage_; }
  WeightSet& weights() { return weights_; }

  // Gives a weight its values, from the host's F32; of a weight in BF16 no rest of the master is kept. Needs no
  // gradients.
  void set(Weight& weight, const float* values);
  // Random values.
  void initialise(uint64_t seed, double truncation);

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Storage> storage_;
  WeightSet weights_;
  std::vector<uint16_t> halves_;  // of a weight on its way
};

}  // namespace nmoe
