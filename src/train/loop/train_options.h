// How a run is to be trained, beside its configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace nmoe {

class Engine;
class StopSignal;

struct TrainOptions {
  bool resume = false;  // continue from the latest checkpoint, if there is one
  std::string version;  // of the program, recorded in checkpoints
  std::string commit;
  // Heard from before the call on; null: from the call on.
  const StopSignal* stop = nullptr;
  // The ids around texts of a checkpoint's model, where files that came with it say so (chat/checkpoint_settings.h);
  // nothing: as documents begin and end here. Null: no checkpoint says so.
  std::function<std::optional<TextIds>(const std::filesystem::path& checkpoint, const Tokenizer& tokenizer)>
      text_ids_of = {};
  // Called by the thread of each rank before it computes a step, counted from 1. What it throws ends the run.
  std::function<void(Engine& engine, int64_t step)> before_step = {};
};

}  // namespace nmoe
