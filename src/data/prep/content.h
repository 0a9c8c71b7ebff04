// What is in a file, whatever its name says.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/prep/records.h"

namespace nmoe {

// Why something is not what a reader can take, and how that is mended.
struct ContentFault {
  std::string what;
  std::string remedy;
};

// How much of a content's beginning tells what it is.
inline constexpr size_t kContentHeadBytes = 4096;

// Nothing for what may be text in UTF-8. Else what it is: an archive, a document, a program, text in UTF-16; or bytes
// that no text has. `head` are the first kContentHeadBytes of the content, decompressed, or all of it.
std::optional<ContentFault> binary_content(std::string_view head);

// Gives a record whose text or prompt is no UTF-8 that fault, naming the first such byte. Leaves other faults.
void check_utf8(Record& record);

}  // namespace nmoe
