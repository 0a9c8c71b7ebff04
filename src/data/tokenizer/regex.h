// Regular expressions as Hugging Face's tokenizers write them (Oniguruma), run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nmoe {

// Immutable and safe to share between threads.
class Regex {
 public:
  // Error (runtime) quoting a pattern that PCRE2 cannot compile, or that cannot be given the meaning it has in
  // Oniguruma (data/tokenizer/oniguruma.h).
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Match {
    size_t begin;
    size_t end;
  };
  // What searching one text has taken so far. A step is a part of the pattern that is tried, or a byte passed over.
  struct Effort {
    int64_t steps = 0;
  };
  // The first match at or after `begin`, which may be empty. `text` is valid UTF-8, and `effort` that of earlier
  // searches in it. Error (runtime) if they take more steps together than kMaxSteps and kMaxStepsPerByte allow: about a
  // second for 100 kB, where a pattern goes through the text again and again.
  std::optional<Match> find(std::string_view text, size_t begin, Effort& effort) const;

  static constexpr int64_t kMaxSteps = 100'000'000;
  static constexpr int64_t kMaxStepsPerByte = 1000;

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace nmoe
