// Unicode normalization, for tokenizers that ask for it (Qwen's).
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// `text` in Unicode's normalization form C (UAX 15). As Hugging Face's tokenizers do, by Unicode 9.0: a character that
// is newer stays as it is, and so do bytes that are not valid UTF-8; what is before and after them is normalized apart.
// `storage` holds the result where it differs from `text`; otherwise the result is `text`.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace nmoe
