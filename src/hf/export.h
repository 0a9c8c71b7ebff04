// An nmoe checkpoint as a Hugging Face model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "hf/config_json.h"
#include "tensor/dtype.h"

namespace nmoe {

// How a model's conversations are written, and what ends its replies.
struct ConversationForm {
  std::string chat_template;      // Jinja; "": it is not known to hold any
  std::vector<int32_t> stop_ids;  // beside those that the model has anyway
};

struct ExportOptions {
  fs::path checkpoint;
  fs::path out;                         // created; may not exist with anything in it
  std::optional<DType> dtype;           // of the weights, BF16 or F32; nothing: as the checkpoint has them
  bool keep_format = false;             // what was imported from FP8 is FP8 again (kept_format.h), whatever `dtype`
  int64_t shard_bytes = 5'000'000'000;  // a file ends before the tensor that would make it larger
  int num_threads = 0;                  // 0: one per available CPU
  ConversationForm conversations;       // for what reads the export: tokenizer_config.json, generation_config.json
};

struct ExportReport {
  fs::path checkpoint;
  ModelType type = ModelType::kDeepseekV3;
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
  int64_t num_files = 0;
  int64_t num_carried = 0;    // tensors that training left alone
  int64_t num_unchanged = 0;  // with keep_format: quantised tensors that are the source's bytes
  int64_t num_changed = 0;    // and those that were quantised anew
  bool has_tokenizer = false;
};

// Writes config.json, the weights under Hugging Face's names (in several files with an index where they are large), the
// tokenizer, generation_config.json and README.md, how conversations are written (chat_template.jinja, and in
// tokenizer_config.json, for programs that look there) and end (generation_config.json), then reads the weights back:
// config.json must describe the tensors found, and each must have the bytes that were meant. Only then does `out` get
// its name. The model of an imported checkpoint has its own files beside it again; where it was trained further its
// README.md is README.base.md. A StopSignal (base/signals.h) exists meanwhile: a signal leaves nothing behind. Error
// (usage) when `out` is in use, no format expresses the configuration, or there is no format to keep; (runtime) when
// the checkpoint is damaged, the disk returns something else than was written, or on a signal.
ExportReport export_model(const ExportOptions& options);

}  // namespace nmoe
