// Regular expressions as Hugging Face's tokenizers write them (Oniguruma), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nmoe {

// Immutable and safe to share between threads.
class Regex {
 public:
  // Error (runtime) quoting a pattern that PCRE2 cannot compile, or that would have a different meaning in Oniguruma.
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Match {
    size_t begin;
    size_t end;
  };
  // The first match at or after `begin` that is not empty. `text` is valid UTF-8. Error (runtime) if the search takes
  // more steps than PCRE2 allows.
  std::optional<Match> find(std::string_view text, size_t begin) const;

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace nmoe
