// How a run is to be trained, beside its configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace nmoe {

class Engine;
class StopSignal;

struct TrainOptions {
  bool resume = false;  // continue from the latest checkpoint, if there is one
  std::string version;  // of the program, recorded in checkpoints
  std::string commit;
  // Heard from before the call on; null: from the call on.
  const StopSignal* stop = nullptr;
  // Called by the thread of each rank before it computes a step, counted from 1. What it throws ends the run.
  std::function<void(Engine& engine, int64_t step)> before_step = {};
};

}  // namespace nmoe
