// The models of an engine: the one that writes, and what drafts for it.
#pragma once

#include <filesystem>
#include <memory>

#include "infer/engine.h"

namespace nmoe {

struct EngineModels {
  std::shared_ptr<CachedModel> model;
  DraftModels drafting;
};

// Of a checkpoint or the latest in a folder of them. Engines may be made over them one after the other: each begins
// with an empty cache. All memory is taken here. Errors: InferenceEngine's; those of check_draft_target before any
// weight is read.
EngineModels load_engine_models(const std::filesystem::path& checkpoint, const InferenceOptions& options);
// The same with random weights by config.run.seed; those of a drafting checkpoint are read. config.model.vocab_size is
// set.
EngineModels random_engine_models(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                  const InferenceOptions& options);

}  // namespace nmoe
