// Values as text for spreadsheets and scripts.
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// A field that holds `text` (RFC 4180). What a spreadsheet would take for a formula, for names are others' to choose,
// has an apostrophe in front.
std::string csv_field(std::string_view text);

}  // namespace nmoe
