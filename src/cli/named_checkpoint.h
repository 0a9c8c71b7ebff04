// Folders of checkpoints where users name something that lies in a checkpoint.
#pragma once

#include <string>

namespace nmoe::cli {

// `named`, or where it is a folder of checkpoints the last of these. What comes behind an @ is kept, as in a
// tokenizer's source (data/tokenizer/tokenizer.h). Error (usage) if `named` is a folder of checkpoints whose last has
// no tokenizer.
std::string tokenizer_source(const std::string& named);
// The same for --chat-template, which takes no @.
std::string template_source(const std::string& named);

}  // namespace nmoe::cli
