#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/model_evaluation.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

namespace {

void print_task(const TaskReport& task) {
  if (task.has_accuracy()) {
    std::string others;
    if (task.task.chooses()) {
      others = fmt::format("{:>8.2f}{:>8.2f}{:>8.2f}", 100 * task.accuracy_by(ChoiceScore::kToken),
                           100 * task.accuracy_by(ChoiceScore::kSum), 100 * task.accuracy_by(ChoiceScore::kCharacter));
    }
    print("{:<38}{:>7}{:>9.2f}{:>7.2f}{:>9.4f}{:>24}", task.name(), task.items, 100 * task.accuracy(),
          100 * task.standard_error(), task.centred(), others);
  } else {
    print("{:<38}{:>7}{:>33}{:>16}", task.name(), task.items, "bits per byte",
          fmt::format("{:.4f}", task.bits_per_byte()));
  }
  print("{:>9}{:>10}{:>9}\n", task.cropped, human_count(static_cast<double>(task.tokens)), human_seconds(task.seconds));
}

void print_answers(const TaskReport& task) {
  const GenerationSpec& spec = task.task.generation;
  std::string text;
  if (spec.metric != AnswerMetric::kCode) {
    text = fmt::format("strict {:.2f} %, flexible {:.2f} %", 100 * task.accuracy_by(AnswerMetric::kStrict),
                       100 * task.accuracy_by(AnswerMetric::kFlexible));
  }
  for (const int64_t k : pass_counts(spec)) {
    if (spec.metric != AnswerMetric::kCode && spec.samples == 1) break;
    text += fmt::format("{}pass@{} {:.2f} %", text.empty() ? "" : ", ", k, 100 * task.pass_at(k));
  }
  print("  {}; {} of {} answers cut at {} tokens\n", text, task.cut, task.texts, spec.max_tokens);
}

void print_report(const EvalReport& report) {
  print("{:<38}{:>7}{:>9}{:>7}{:>9}{:>8}{:>8}{:>8}{:>9}{:>10}{:>9}\n", "task", "items", "correct%", "+-", "centred",
        "token", "sum", "char", "cropped", "tokens", "time");
  for (const TaskReport& task : report.tasks) {
    print_task(task);
    if (task.task.is_generated()) print_answers(task);
    if (!task.groups.empty()) {
      print("  macro average over {} groups {:.2f} %\n", task.groups.size(), 100 * task.macro_accuracy());
    }
  }
  if (std::ranges::any_of(report.tasks, [](const TaskReport& task) { return task.cropped > 0; })) {
    print("cropped: texts that lost their beginning, being longer than the context; --context allows longer ones\n");
  }
  for (const SuiteMean& mean : report.means) {
    print("{} {:.4f} +- {:.4f}; with the baselines of 2025 (v2) {:.4f} +- {:.4f}\n", mean.name, mean.value,
          mean.standard_error, mean.value_v2, mean.standard_error_v2);
  }
}

}  // namespace

void eval_command(const EvalArguments& arguments) {
  const EvalReport report = evaluate_model(arguments);
  if (arguments.json) {
    print("{}", report_json(report));
  } else {
    print_report(report);
  }
}

}  // namespace nmoe::cli
