// Unicode normalization, for tokenizers that need it (Qwen's).
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// `text` in Unicode's normalization form C (UAX 15). By Unicode 9.0, as in Hugging Face's tokenizers: newer characters
// are not changed, nor are bytes that are not valid UTF-8; the text before and after these is normalized separately.
// `storage` holds the result if it differs from `text`; otherwise the result is `text`.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace nmoe
