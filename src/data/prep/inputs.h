// The text files that a command's arguments mean.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace nmoe {

// Each argument is a file, a folder (every *.txt below it) or a glob (*, ?, [...]) of either. Files
// come in the order of the arguments, those of one argument sorted by path, each file once.
// Error (usage) when an argument names nothing; `what` says what the arguments are for.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& arguments, const std::string& what);

}  // namespace nmoe
