// product_table.jsonl, as it is compiled into the program.
#pragma once

#include <string_view>

namespace nmoe {

extern const std::string_view kProductTableText;

}  // namespace nmoe
