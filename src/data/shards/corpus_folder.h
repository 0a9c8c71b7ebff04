// The folder of a prepared corpus: {train, valid, tokenizer.json}, and other files beside them that describe it.
#pragma once

#include <filesystem>
#include <string_view>

namespace nmoe {

// How the conversations of a corpus are written, where it has some. A checkpoint that was trained on them has it under
// the same name in its folder huggingface.
inline constexpr std::string_view kChatTemplateFile = "chat_template.jinja";

// Error (usage) if a new corpus with this tokenizer would replace something: a split, or another tokenizer.json.
void check_corpus_folder(const std::filesystem::path& root, std::string_view tokenizer_json);

}  // namespace nmoe
