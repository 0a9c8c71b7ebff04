#include "chat/prompt.h"

namespace nmoe {

std::vector<int32_t> encode_prompt(const CheckpointSettings& settings, const InferenceEngine& engine,
                                   std::string_view text) {
  if (!settings.imported) return engine.encode_prompt(text);
  std::vector<int32_t> ids = settings.begin_ids;
  engine.tokenizer().encode(text, ids);
  if (ids.empty()) ids.push_back(engine.tokenizer().eos_id());
  return ids;
}

}  // namespace nmoe
