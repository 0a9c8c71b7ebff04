// Recognises what a file contains, independently of its name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/prep/record.h"

namespace nmoe {

// Why a reader cannot use something, and the remedy.
struct ContentFault {
  std::string what;
  std::string remedy;
};

// The number of first bytes by which content is recognised.
inline constexpr size_t kContentHeadBytes = 4096;

// Nothing for what may be text in UTF-8. Otherwise what it is: an archive, a document, a program, text in UTF-16, or
// bytes that do not occur in text. `head`: the first kContentHeadBytes of the content, decompressed, or all of it.
std::optional<ContentFault> binary_content(std::string_view head);

// If a record's text or prompt is not valid UTF-8, sets that fault, naming the first such byte. Keeps other faults.
void check_utf8(Record& record);

}  // namespace nmoe
