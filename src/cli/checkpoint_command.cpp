#include <fmt/format.h>

#include "checkpoint/reader.h"
#include "cli/commands.h"

namespace nmoe::cli {

void checkpoint_info_command(const std::string& path) {
  const CheckpointReader reader = CheckpointReader::open(path);
  const CheckpointInfo& info = reader.info();
  fmt::print(
      "checkpoint     {}\nrun            {}\nstep           {}\ntokens         {}\nparameters     {}\nwritten        "
      "{}, by nmoe "
      "{} ({})\nconfig         {}\ndata           {}\nweights        {}\n",
      reader.path().string(), info.run_id, info.step, info.tokens, info.num_parameters, info.created_at,
      info.nmoe_version, info.nmoe_commit, info.config_fingerprint, info.data_fingerprint, reader.weights_sha256());
}

void checkpoint_verify_command(const std::string& path) {
  if (const auto fault = verify_checkpoint(path)) {
    throw runtime_error(*fault, "use another checkpoint of the same folder");
  }
  const CheckpointReader reader = CheckpointReader::open(path);
  fmt::print("{} is whole: {} tensors verified\n", reader.path().string(),
             reader.model().size() + reader.optimizer().size());
}

}  // namespace nmoe::cli
