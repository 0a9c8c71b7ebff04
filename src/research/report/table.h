// Tables of text that a terminal and Markdown have alike.
#pragma once

#include <string>
#include <vector>

namespace nmoe {

// The first row is the head. Cells are as wide as their columns, also in Markdown.
std::string table_text(const std::vector<std::vector<std::string>>& rows, bool markdown);

}  // namespace nmoe
