// What configurations of runs have in common and what not, key by key.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// Every key of a configuration (JSON) with its value: "optim.matrices.lr", "0.02". JsonError where it is none.
std::map<std::string, std::string> config_keys(const std::string& config);

// Whether a key says where a run is or what it is called, and not what it is: run.name, run.dir, run.experiment.
bool is_place(std::string_view key);

struct ConfigDifference {
  std::string key;                  // "optim.matrices.lr"
  std::vector<std::string> values;  // of each run, JSON; "" of one that has no such key
};
// By key, without places. `configs` are JSON.
std::vector<ConfigDifference> config_differences(std::span<const std::string> configs);

}  // namespace nmoe
