#include "hf/files.h"

#include <algorithm>
#include <iterator>

namespace nmoe {

bool is_carried_by_import(std::string_view name) {
  if (name.starts_with('.') || name.ends_with(".index.json")) return false;
  constexpr std::string_view kWeights[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"};
  return std::ranges::none_of(kWeights, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

bool is_tokenizer_file(std::string_view name) {
  constexpr std::string_view kNames[] = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "tiktoken.model",
                                         "chat_template.jinja",
                                         "generation_config.json"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

}  // namespace nmoe
