// PCRE2's objects, owned, and its calls on C++'s text.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace nmoe {

template <class Object, void (*free)(Object*)>
struct Pcre2Deleter {
  void operator()(Object* object) const { free(object); }
};
using Pcre2Code = std::unique_ptr<pcre2_code, Pcre2Deleter<pcre2_code, pcre2_code_free>>;
using Pcre2MatchData = std::unique_ptr<pcre2_match_data, Pcre2Deleter<pcre2_match_data, pcre2_match_data_free>>;
using Pcre2MatchContext =
    std::unique_ptr<pcre2_match_context, Pcre2Deleter<pcre2_match_context, pcre2_match_context_free>>;
using Pcre2JitStack = std::unique_ptr<pcre2_jit_stack, Pcre2Deleter<pcre2_jit_stack, pcre2_jit_stack_free>>;
using Pcre2CompileContext =
    std::unique_ptr<pcre2_compile_context, Pcre2Deleter<pcre2_compile_context, pcre2_compile_context_free>>;

// Valid as long as the text.
inline PCRE2_SPTR pcre2_text(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// What PCRE2 calls an error.
std::string pcre2_message(int code);

// Of UTF-8, with ^ and $ at line ends and "\n" alone as one, by the JIT where the system lets it. `options` are further
// ones of PCRE2's. std::invalid_argument, with PCRE2's message, for what it cannot compile.
Pcre2Code pcre2_compile_utf(std::string_view pattern, uint32_t options = 0);

// Where the last match begins and ends.
inline std::pair<size_t, size_t> pcre2_span(pcre2_match_data* match) {
  const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(match);
  return {span[0], span[1]};
}

}  // namespace nmoe
