// Tasks to complete the code of a Python function, as HumanEval has them (arXiv 2107.03374), and what a completion is
// worth: whether the task's own checks, run in a sandbox, get to their end.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "sandbox/sandbox.h"

namespace nmoe {

struct CodeTask {
  std::string id;                  // "HumanEval/0"
  std::string prompt;              // to be completed as it is: imports, the function's head and its documentation
  std::string entry_point;         // the function's name
  std::string test;                // defines check(candidate), which raises for a wrong candidate
  std::string canonical_solution;  // a completion that passes
};

// One line of HumanEval.jsonl. Error (runtime) naming `where` ("file.jsonl, line 3") and the member that is missing or
// no text; the entry point must be a name.
CodeTask parse_code_task(std::string_view json, std::string_view where);

// A completion ends before the first of these (arXiv 2107.03374, section 2.2): stop strings for generation.
inline constexpr std::array<std::string_view, 5> kCodeStops{"\nclass", "\ndef", "\n#", "\nif", "\nprint"};

// The prompt, the completion as the model wrote it (its first blanks are indentation), the task's test and the call of
// it, and then the output of a line `proof`.
std::string code_program(const CodeTask& task, std::string_view completion, std::string_view proof);

struct CodeVerdict {
  bool passed = false;
  // Else why not, in some words: "time limit", "output limit", "ended early", "signal 11", or the last line that Python
  // said ("AssertionError").
  std::string why;
  double seconds = 0;
};

// Passed when the program ends with status 0 and has said a random proof, which comes behind the checks: a completion
// that ends the program before them, whatever its status, has not. Any thread. Errors: Sandbox::run's.
CodeVerdict judge_completion(const Sandbox& sandbox, const CodeTask& task, std::string_view completion);

// The unbiased estimate of the probability that one of `k` completions passes, from `num_passed` of `num_samples` that
// did: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374, equation 1). 1 <= k <= num_samples.
double pass_at_k(int64_t num_samples, int64_t num_passed, int64_t k);

}  // namespace nmoe
