#include "checkpoint/saved_config.h"

#include "config/load.h"

namespace nmoe {

Config saved_config(const CheckpointReader& reader) {
  return parse_config(reader.config_toml(), (reader.path() / "config.toml").string());
}

}  // namespace nmoe
