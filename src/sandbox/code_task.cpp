#include "sandbox/code_task.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/json.h"

namespace nmoe {
namespace {

// Nobody can guess it.
std::string random_proof() {
  std::array<uint64_t, 2> bits{};
  NMOE_CHECK(::getrandom(bits.data(), sizeof(bits), 0) == sizeof(bits), "getrandom: errno {}", errno);
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && is_letter(text.front()) &&
         std::ranges::all_of(text, [&](char c) { return is_letter(c) || is_digit(c); });
}

std::string_view last_line(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

}  // namespace

CodeTask parse_code_task(std::string_view json, std::string_view where) {
  const auto broken = [&](std::string_view what) {
    return runtime_error(fmt::format("{}: {}", where, what),
                         "each line is an object with task_id, prompt, entry_point, test and canonical_solution, as in "
                         "HumanEval.jsonl");
  };
  nlohmann::json object;
  try {
    object = parse_json<nlohmann::json>(json);
  } catch (const JsonError& error) {
    throw broken(error.what());
  }
  const auto text = [&](const char* name) {
    if (!object.is_object() || !object.contains(name) || !object[name].is_string()) {
      throw broken(fmt::format("there is no text '{}'", name));
    }
    return object[name].get<std::string>();
  };
  CodeTask task{.id = text("task_id"),
                .prompt = text("prompt"),
                .entry_point = text("entry_point"),
                .test = text("test"),
                .canonical_solution = text("canonical_solution")};
  if (!is_name(task.entry_point)) throw broken("entry_point is not the name of a function");
  return task;
}

std::string code_program(const CodeTask& task, std::string_view completion, std::string_view proof) {
  // Not print(): a completion may have a function of that name, and may have exchanged sys.stdout.
  return fmt::format("{}{}\n{}\ncheck({})\n__import__(\"os\").write(1, b\"\\n{}\\n\")\n", task.prompt, completion,
                     task.test, task.entry_point, proof);
}

CodeVerdict judge_completion(const Sandbox& sandbox, const CodeTask& task, std::string_view completion) {
  const std::string proof = random_proof();
  const SandboxResult result = sandbox.run(code_program(task, completion, proof));
  CodeVerdict verdict{.passed = false, .why = {}, .seconds = result.seconds};
  switch (result.end) {
    case SandboxEnd::kTimeLimit:
      verdict.why = "time limit";
      break;
    case SandboxEnd::kOutputLimit:
      verdict.why = "output limit";
      break;
    case SandboxEnd::kSignalled:
      verdict.why = fmt::format("signal {}", result.status);
      break;
    case SandboxEnd::kExited:
      if (result.status == 0 && result.out.find("\n" + proof + "\n") != std::string::npos) {
        verdict.passed = true;
      } else {
        verdict.why = result.status == 0 || result.err.empty() ? "ended early" : std::string(last_line(result.err));
      }
      break;
  }
  return verdict;
}

double pass_at_k(int64_t num_samples, int64_t num_passed, int64_t k) {
  NMOE_CHECK(k >= 1 && k <= num_samples && num_passed >= 0 && num_passed <= num_samples, "pass@{} of {} in {}", k,
             num_passed, num_samples);
  if (num_samples - num_passed < k) return 1.0;
  double none = 1.0;  // that none of k drawn without return has passed
  for (int64_t i = num_samples - num_passed + 1; i <= num_samples; ++i) {
    none *= 1.0 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1.0 - none;
}

}  // namespace nmoe
