// Unicode normalization, for tokenizers that ask for it (Qwen's).
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// `text` in Unicode's normalization form C (UAX 15), as utf8proc has it. Bytes that are not valid UTF-8 stay as they
// are, and what is before and after them is normalized apart. `storage` holds the result where it differs from `text`;
// otherwise the result is `text`.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace nmoe
