#include "data/tokenizer/pcre2_code.h"

#include <array>

#include "base/error.h"

namespace nmoe {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer;
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

Pcre2Code pcre2_compile_utf(std::string_view pattern, uint32_t options) {
  const Pcre2CompileContext context(pcre2_compile_context_create(nullptr));
  NMOE_CHECK(context != nullptr && pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF) == 0, "pcre2_set_newline");
  int error = 0;
  size_t offset = 0;
  Pcre2Code code(pcre2_compile(pcre2_text(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | options,
                               &error, &offset, context.get()));
  if (!code) throw std::invalid_argument(pcre2_message(error));
  // Without a JIT (a system that forbids writable code) matching is slower, the words the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace nmoe
