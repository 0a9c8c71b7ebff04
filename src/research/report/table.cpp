#include "research/report/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace nmoe {

std::string table_text(const std::vector<std::vector<std::string>>& rows, bool markdown) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line = markdown ? "|" : "";
    for (size_t c = 0; c < widths.size(); ++c) {
      line +=
          markdown ? fmt::format(" {:<{}} |", rows[r][c], widths[c]) : fmt::format("{:<{}}  ", rows[r][c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (!markdown || r > 0) continue;
    text += "|";
    for (const size_t width : widths) text += " " + std::string(width, '-') + " |";
    text += "\n";
  }
  return text;
}

}  // namespace nmoe
