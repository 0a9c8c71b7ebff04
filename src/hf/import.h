// A Hugging Face model as an nmoe checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "hf/binding.h"
#include "hf/config_json.h"
#include "tensor/dtype.h"

namespace nmoe {

// The configuration with which a model from the folder `source` is imported: its [model], and the defaults. Error
// (runtime) when it breaks a rule of configurations.
Config imported_config(const HfModel& model, const fs::path& source);

struct ImportOptions {
  fs::path source;             // the model's folder
  fs::path out;                // gets the checkpoint step_00000000
  std::optional<DType> dtype;  // of the weights, BF16 or F32; nothing: as they are, BF16 for FP8
  PredictionLayers predictions = PredictionLayers::kCarried;
  // The special token that ends documents; "": load_tokenizer (data/tokenizer/tokenizer.h) says which.
  std::string end_of_document = {};
  int num_threads = 0;  // 0: one per available CPU
  std::string version;  // nmoe's, for the manifest
  std::string commit;
};

struct ImportReport {
  fs::path checkpoint;
  HfModel model;
  int64_t num_parameters = 0;
  int64_t num_tensors = 0;    // that make up parameters
  int64_t num_files = 0;      // of weights
  int64_t num_bytes = 0;      // in them
  int64_t num_quantised = 0;  // FP8 tensors among them
  int64_t num_carried = 0;    // tensors carried along
  int64_t num_prediction_layers = 0;
  std::string no_tokenizer;  // why the tokenizer is of no use here; empty: it is
};

// Converts, verifies what it can and writes the checkpoint in one piece: on an Error nothing is left. Tensors are read
// and written in blocks, so that memory does not depend on the model's size. Beside the weights it keeps the model's
// other files, config.json and tokenizer among them, tensors that are not trained here and the scales of FP8 tensors,
// for an export. Errors (runtime): as of HfBinding, from_config_json and write_checkpoint; (usage) when `out` has
// checkpoints already.
ImportReport import_model(const ImportOptions& options);

}  // namespace nmoe
