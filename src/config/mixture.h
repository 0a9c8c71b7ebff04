// A mixture: which sources a run reads, in which stages, in which shares. A TOML file of its own, so that runs of
// different models and lengths can share it:
//
//   [mixture]
//   temperature = 1.5                 # shares are proportional to weight^(1 / temperature)
//
//   [sources.web]
//   path = "${NMOE_DATA:-data}/web"   # folder that `n prep` wrote
//   max_epochs = 4                    # of this source in the whole run; 0: no limit
//
//   [stages.pretrain]                 # stages follow each other as the file lists them
//   tokens = "5.9T"
//   weights = { web = 0.8, code = 0.2 }
//
//   [stages.long]
//   source_tokens = { web = "30B", code = "20B" }   # instead: the budget is their sum, the weights are these counts
//   seq_len = 32768                   # tokens of a sequence, instead of data.seq_len; a step's tokens stay as many
//
//   [profiles.dev]                    # how much of it a run does; one key of three
//   tokens = "100M"                   # all stages together
//   [profiles.proxy]
//   tokens_per_active_parameter = 400
//   [profiles.full]
//   scale = 1
//
// A token count is an integer or a string such as "1.5T", "100M" or "250k". ${NMOE_NAME:-default} expands in paths.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

struct MixtureSource {
  std::string name;
  std::string path;
  // More passes than four over the same text were found to be worth little: Muennighoff et al., "Scaling
  // data-constrained language models" (arXiv 2305.16264).
  double max_epochs = 4.0;  // 0: no limit
};

struct MixtureStage {
  std::string name;
  int64_t tokens = 0;           // budget at scale 1
  std::vector<double> weights;  // by source, in the order of Mixture::sources; 0: not in this stage
  int64_t seq_len = 0;          // 0: data.seq_len
};

// Exactly one of the three is above 0.
struct MixtureProfile {
  std::string name;
  int64_t tokens = 0;
  double tokens_per_active_parameter = 0.0;
  double scale = 0.0;
};

struct Mixture {
  double temperature = 1.0;
  std::vector<MixtureSource> sources;
  std::vector<MixtureStage> stages;
  std::vector<MixtureProfile> profiles;
};

// Errors (usage) name file and line, the key and, for an unknown one, the nearest known.
Mixture load_mixture(const std::filesystem::path& path);
// The same from TOML text; `name` stands for the file in messages.
Mixture parse_mixture(std::string_view toml, std::string_view name);

}  // namespace nmoe
