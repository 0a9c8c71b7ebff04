// The model that a bench of generation takes: a checkpoint, or random weights of a configuration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe::cli {

struct BenchModel {
  std::string checkpoint;                      // "": random weights
  Config config;                               // of those, with their vocabulary
  std::shared_ptr<const Tokenizer> tokenizer;  // of those: the data's, or bytes
  std::string device;
};

// `model`: a checkpoint, a folder of them, or a .toml file, whose keys `overrides` change. `device` "": run.device of a
// configuration, else "cpu". Errors (usage): overrides of a checkpoint; a vocabulary that is not known, or smaller than
// the tokenizer's; those of configurations.
BenchModel read_bench_model(const std::string& model, const std::vector<std::string>& overrides,
                            const std::string& device);

}  // namespace nmoe::cli
