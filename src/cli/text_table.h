// A table of text: each column as wide as its widest cell, so that no name runs into the next column.
#pragma once

#include <string>
#include <vector>

namespace nmoe::cli {

class TextTable {
 public:
  enum Side { kLeft, kRight };
  struct Column {
    std::string title;
    Side side = kLeft;  // where its cells stand
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A cell for each column.
  void add(std::vector<std::string> cells);
  // Title and rows, two spaces between columns, none at the ends of lines.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nmoe::cli
