#include "hf/import.h"

#include <algorithm>

#include "base/bounded_file.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "config/load.h"
#include "config/validate.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/files.h"

namespace nmoe {
namespace {

std::vector<CarriedFile> carried_files(const fs::path& dir) {
  std::vector<CarriedFile> files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (!entry.is_regular_file() || !is_carried_by_import(entry.path().filename().string())) continue;
    if (const uint64_t bytes = entry.file_size(); bytes > kMaxSideFile) {
      throw runtime_error(fmt::format("'{}' has {}, and files beside the weights are carried along up to {} each",
                                      entry.path().string(), human_bytes(static_cast<int64_t>(bytes)),
                                      human_bytes(static_cast<int64_t>(kMaxSideFile))),
                          "move it to another folder");
    }
    files.push_back({entry.path().filename().string(), entry.path(), ""});
  }
  std::ranges::sort(files, {}, &CarriedFile::name);
  return files;
}

// The tokenizer in nmoe's own words, or "" and the reason.
std::pair<std::string, std::string> read_tokenizer(const ImportOptions& options, const HfModel& model) {
  const fs::path path = options.source / "tokenizer.json";
  if (!fs::exists(path)) return {"", "there is no tokenizer.json"};
  const std::string& end = options.end_of_document;
  check_file_up_to(path, kMaxListFile);  // one that cannot be read is not one that nmoe does not know
  try {
    const auto tokenizer = load_tokenizer(end.empty() ? path.string() : fmt::format("{}@{}", path.string(), end));
    if (tokenizer->vocab_size() > model.config.vocab_size) {
      return {"",
              fmt::format("tokenizer.json has {} ids, the model {}", tokenizer->vocab_size(), model.config.vocab_size)};
    }
    return {tokenizer->json(), ""};
  } catch (const Error& error) {
    if (!end.empty()) throw;  // it was asked for
    return {"", error.what()};
  }
}

}  // namespace

Config imported_config(const HfModel& model, const fs::path& source) {
  Config config;
  config.model = model.config;
  config.run.name = "imported";
  config.data.seq_len = std::min(config.data.seq_len, config.model.max_positions);
  if (const auto issues = find_issues(config); !issues.empty()) {
    const Issue& issue = issues.front();
    throw runtime_error(fmt::format("'{}': as nmoe's configuration, {}", (source / "config.json").string(), issue.what),
                        issue.remedy);
  }
  return config;
}

ImportReport import_model(const ImportOptions& options) {
  if (options.source.empty() || options.out.empty()) {
    throw usage_error("a folder to import from or to has no name",
                      "name the model's folder and one for the checkpoint");
  }
  const HfBinding binding(options.source, options.predictions);
  const CheckpointFolder folder(options.out);
  if (const auto present = latest_checkpoint(options.out)) {
    throw usage_error(
        fmt::format("'{}' holds the checkpoint {} already", options.out.string(), present->filename().string()),
        "import to another folder, or remove that one first");
  }
  ImportReport report;
  report.model = binding.model();
  report.num_files = static_cast<int64_t>(binding.weights().num_files());
  report.num_bytes = binding.weights().num_bytes();
  report.num_carried = static_cast<int64_t>(binding.carried().size());
  report.num_prediction_layers = binding.num_prediction_layers();
  report.num_tensors = static_cast<int64_t>(binding.weights().tensors().size()) - report.num_carried;
  report.num_quantised = binding.weights().num_quantised();

  const Config config = imported_config(binding.model(), options.source);
  CheckpointHead head;
  head.config_toml = print_config(config);
  head.carried = carried_files(options.source);
  head.info.config_fingerprint = config_fingerprint(config);
  head.info.nmoe_version = options.version;
  head.info.nmoe_commit = options.commit;
  std::tie(head.tokenizer_json, report.no_tokenizer) = read_tokenizer(options, binding.model());

  std::vector<TensorSource> model, carried;
  for (const MappedParameter& parameter : binding.parameters()) {
    const bool stays_f32 = parameter.pieces.empty() || is_selection_bias(parameter.pieces.front().tensor);
    const DType own = binding.dtype_of(parameter);
    model.push_back(binding.source(parameter, stays_f32 ? own : options.dtype.value_or(own)));
    if (!stays_f32) head.info.num_parameters += parameter.shape.num_elements();
  }
  for (const std::string& name : binding.carried()) carried.push_back(binding.carried_source(name));
  for (const auto& [name, tensor] : binding.weights().tensors()) {
    if (tensor.is_quantised()) carried.push_back(tensor.scales());  // for an export in the same format
  }

  ThreadPool pool(options.num_threads);
  report.num_parameters = head.info.num_parameters;
  report.checkpoint = write_checkpoint(options.out, head, model, carried, pool);
  return report;
}

}  // namespace nmoe
