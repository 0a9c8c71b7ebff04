// The folder of a prepared corpus: {train, valid, tokenizer.json}, and files beside them that describe it.
#pragma once

#include <filesystem>
#include <string_view>

namespace nmoe {

// Error (usage) if a new corpus with this tokenizer would replace something: a split, or another tokenizer.json.
void check_corpus_folder(const std::filesystem::path& root, std::string_view tokenizer_json);

}  // namespace nmoe
