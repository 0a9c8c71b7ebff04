#include "train/loop/run_config.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "config/load.h"
#include "train/plan/run_folder.h"

namespace nmoe {
namespace {

ModelText starting_model(const Config& config) {
  const fs::path from = config.model.init.from;
  const std::optional<fs::path> own = latest_checkpoint(checkpoint_dir(config));
  if (!fs::is_directory(from) && !own) {
    throw usage_error(fmt::format("model.init.from = \"{}\": there is no such folder", from.string()),
                      "name a checkpoint (step_...) or the folder it is in: a run's, or what `n import` wrote");
  }
  const CheckpointReader reader = CheckpointReader::open(fs::is_directory(from) ? from : *own);
  return {reader.config_toml(), (reader.path() / "config.toml").string()};
}

}  // namespace

Config load_run_config(const fs::path& path, std::span<const std::string> overrides) {
  Config config = load_config(path, overrides, starting_model);
  // What a checkpoint says may be anyone's; nothing of it is run.
  const bool is_own =
      std::ranges::any_of(overrides, [](const std::string& text) { return text.starts_with("track."); });
  if (!config.track.alert_command.empty() && !is_own && fs::exists(path.parent_path() / "manifest.json")) {
    throw usage_error(fmt::format("{} is a checkpoint's configuration, and has track.alert_command", path.string()),
                      "copy it elsewhere, look at what it would run, and train with the copy");
  }
  return config;
}

}  // namespace nmoe
