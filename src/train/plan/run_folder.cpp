#include "train/plan/run_folder.h"

namespace nmoe {

fs::path checkpoint_dir(const Config& config) { return fs::path(config.run.dir) / "checkpoints" / config.run.name; }

fs::path runs_path(const Config& config) { return fs::path(config.run.dir) / "experiments.db"; }

}  // namespace nmoe
