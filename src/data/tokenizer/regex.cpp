#include "data/tokenizer/regex.h"

#include <stdexcept>

#include "base/error.h"
#include "data/tokenizer/oniguruma.h"
#include "data/tokenizer/pcre2_code.h"

namespace nmoe {
namespace {

// What a callout has to know.
struct Budget {
  int64_t left;
  size_t place;
};

// PCRE2 calls this before each part of the pattern that it tries.
int spend(pcre2_callout_block* block, void* data) {
  auto& budget = *static_cast<Budget*>(data);
  const size_t place = block->current_position;
  budget.left -= 1 + static_cast<int64_t>(place > budget.place ? place - budget.place : budget.place - place);
  budget.place = place;
  return budget.left < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

// A thread's own. One pair of offsets, as groups do not matter here.
struct Workplace {
  Workplace()
      : match(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kStack, kMaxStack, nullptr)) {
    NMOE_CHECK(match != nullptr && context != nullptr, "PCRE2 has no memory");
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  // A repeated group needs some bytes for each time.
  static constexpr size_t kStack = 32 << 10;
  static constexpr size_t kMaxStack = 64 << 20;
  const Pcre2MatchData match;
  const Pcre2MatchContext context;
  const Pcre2JitStack stack;
};

}  // namespace

struct Regex::Compiled {
  explicit Compiled(const std::string& pattern) try
      : code(pcre2_compile_utf(oniguruma_to_pcre2(pattern), PCRE2_AUTO_CALLOUT)) {
  } catch (const std::invalid_argument& error) {
    throw runtime_error(fmt::format("cannot use the split pattern '{}': {}", pattern, error.what()),
                        "use a tokenizer with another pattern, or ask for support of this one");
  }

  Pcre2Code code;
};

Regex::Regex(const std::string& pattern) : pattern_(pattern), compiled_(std::make_unique<const Compiled>(pattern)) {}
Regex::~Regex() = default;

std::optional<Regex::Match> Regex::find(std::string_view text, size_t begin, Effort& effort) const {
  thread_local const Workplace workplace;
  const int64_t allowed = kMaxSteps + kMaxStepsPerByte * static_cast<int64_t>(text.size());
  Budget budget{.left = allowed - effort.steps, .place = begin};
  pcre2_set_callout(workplace.context.get(), spend, &budget);
  const int result = pcre2_match(compiled_->code.get(), pcre2_text(text), text.size(), begin, PCRE2_NO_UTF_CHECK,
                                 workplace.match.get(), workplace.context.get());
  effort.steps = allowed - budget.left;
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    const std::string reason = result == PCRE2_ERROR_CALLOUT ? fmt::format("it would take more than {} steps", allowed)
                                                             : pcre2_message(result);
    throw runtime_error(fmt::format("the split pattern '{}' gives up at byte {} of a text of {}: {}", pattern_, begin,
                                    text.size(), reason),
                        "use a tokenizer with one of the patterns that are known, or cut the text into shorter "
                        "documents");
  }
  const auto [first, last] = pcre2_span(workplace.match.get());
  return Match{first, last};
}

}  // namespace nmoe
