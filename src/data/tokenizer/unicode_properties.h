// Unicode's properties by the names that Oniguruma (Hugging Face's regular expressions) gives them.
#pragma once

#include <string_view>

#include "data/tokenizer/code_point_set.h"

namespace nmoe {

// The code points of a property, of one version of Unicode whatever library is installed; null for a name that is none
// of these:
//   general categories   "L", "Lu", "LC", "Letter", "Uppercase_Letter", ...
//   POSIX classes        "Alnum", "Alpha", "ASCII", "Blank", "Cntrl", "Digit", "Graph", "Lower", "Print", "Punct",
//                        "Space", "Upper", "XDigit", "Word", as Oniguruma's make_unicode_property_data.py defines them
//                        for Unicode: marks are word characters
//   binary properties    "Alphabetic", "Lowercase", "Uppercase", "White_Space", "Any", "Assigned"
//   scripts              "Han", "Hiragana", ...: a character's own, not those that it is used with too
// Letter case, spaces, hyphens and low lines in a name do not matter. The sets live as long as the program.
const CodePointSet* find_property(std::string_view name);

// Of [[:name:]], for the names of POSIX classes: the same, but that "punct" has symbols too.
const CodePointSet* find_posix_bracket(std::string_view name);

}  // namespace nmoe
