#include <fmt/format.h>

#include "base/version.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {
namespace {

// Hashes say that it is as it was written, not that anything can be done with it.
void check_config(const CheckpointReader& reader) {
  try {
    saved_config(reader);
  } catch (const Error& error) {
    throw runtime_error(fmt::format("the configuration in it is none of this program's: {}", error.what()),
                        "use another checkpoint of the same folder, or the program that wrote it");
  }
}

}  // namespace

void checkpoint_info_command(const std::string& path) {
  const CheckpointReader reader = CheckpointReader::open(path);
  const CheckpointInfo& info = reader.info();
  print(
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
  check_config(reader);
  print("{} is whole: {} tensors verified\n", reader.path().string(),
        reader.model().size() + reader.optimizer().size());
}

void checkpoint_merge_command(MergeOptions options) {
  options.version = std::string(version());
  options.commit = std::string(commit());
  const MergeReport report = merge_checkpoints(options);
  for (const MergeReport::Part& part : report.parts) print("{:.6f} of {}\n", part.weight, part.checkpoint.string());
  print("checkpoint {}: {} tensors, without optimizer state\n", report.checkpoint.string(), report.num_tensors);
}

}  // namespace nmoe::cli
