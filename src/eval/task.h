// What is evaluated, as data: a suite is a TOML file with a section for each task.
//
//   mean = "CORE"                # optional: the mean of the tasks' centred accuracies is reported under this name
//
//   [tasks.NAME]
//   type = "multiple_choice"     # or "schema", "language_modeling", "text"
//   file = "core/piqa.jsonl"     # below the folder of data; .jsonl, .json or .parquet, compressed or not
//   prompt = "{query}\nAnswer:"  # the text before the delimiter, and
//   answer = "{continuation}"    # the one after it, unless that is a choice
//   choices = "choices"          # the field with the list to choose from: answers or, in a schema, prompts
//   letters = false              # the choices are "A", "B", ...: as many as the list has entries
//   gold = "gold"                # the field with the index of the right one, from 0
//   delimiter = " "
//   shots = 0                    # examples with answers before each item
//   shots_file = ""              # take its first rows, in order; else they are drawn from the task's other items
//   group = ""                   # a field: shots_file's rows are of the item's group, and groups have means
//   header = ""                  # goes before the first shot
//   score = "token"              # what decides: nats per "token", their "sum", or nats per "character" of the choice
//   baseline = 25                # accuracy of guessing, in per cent
//   baseline_v2 = 25             # by DCLM's correction of 2025; the same unless given
//
// and of answers that the model writes (type = "generation"):
//   metric = "strict"            # right is: "strict", the number behind the first "#### "; "flexible", the last number
//                                # (eval/answer_number.h); "code", a function that passes the row's tests
//                                # (sandbox/code_task.h, whose stop strings end it)
//   max_tokens = 256             # of an answer
//   stop = "Question:"           # ends an answer, and is not part of it
//   samples = 1                  # answers per item
//   temperature = 0              # 0: always the likeliest token
//   top_p = 1
//
// In prompt, answer and header {field} is a field of the row; {field:spaces} has spaces for its underscores;
// {field:lettered} is a list as lines "A. first", "B. second"; {{ and }} are braces.
//
// Every task has type and file. A key that has no effect in a task is an error. Unless given, by type:
//   multiple_choice     prompt = "{query}", choices = "choices"
//   schema              choices = "context_options", answer = "{continuation}"
//   language_modeling   prompt = "{context}", answer = "{continuation}"
//   text                prompt = "{text}", which is one field
//   generation          prompt = "{question}", answer = "{answer}"; with metric "code" "{prompt}" and
//                       "{canonical_solution}"
// and of all else what the members below begin with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

enum class TaskKind {
  kMultipleChoice,    // the likeliest answer to a prompt
  kSchema,            // the prompt that makes one answer likeliest
  kLanguageModeling,  // an answer that greedy decoding gives exactly
  kText,              // bits per byte of documents
  kGeneration,        // an answer that the model writes
};

// Of several answers, the one with the smallest of these is chosen, the first of equals.
enum class ChoiceScore { kToken, kSum, kCharacter };
inline constexpr int kNumChoiceScores = 3;
std::string_view choice_score_name(ChoiceScore score);  // "token", "sum", "character"

// What makes a written answer right.
enum class AnswerMetric { kStrict, kFlexible, kCode };
std::string_view answer_metric_name(AnswerMetric metric);  // "strict", "flexible", "code"

struct GenerationSpec {
  AnswerMetric metric = AnswerMetric::kStrict;
  int64_t max_tokens = 256;
  std::string stop;  // "": none
  int64_t samples = 1;
  double temperature = 0.0;
  double top_p = 1.0;

  std::vector<std::string> stops() const;
};
// The k of pass@k that reports have: of 1, 10 and 100 those that there are samples for.
std::vector<int64_t> pass_counts(const GenerationSpec& spec);

struct Task {
  std::string name;
  TaskKind kind = TaskKind::kMultipleChoice;
  std::string file;
  std::string prompt, answer, choices, gold = "gold";
  bool letters = false;
  std::string delimiter = " ";
  int64_t shots = 0;
  std::string shots_file;
  std::string group;
  std::string header;
  ChoiceScore score = ChoiceScore::kToken;
  double baseline = 0.0;  // a share, as is
  double baseline_v2 = 0.0;
  GenerationSpec generation;

  bool is_generated() const { return kind == TaskKind::kGeneration; }
  bool chooses() const { return kind == TaskKind::kMultipleChoice || kind == TaskKind::kSchema; }
};

struct TaskSuite {
  std::string name;
  std::string mean;  // "": none is told
  std::vector<Task> tasks;
};

// `file` names the text in messages, its stem the suite. Error (usage) with file and line.
TaskSuite parse_task_suite(std::string_view toml, std::string_view file);

// "core", "mmlu", ...: those that come with the program (configs/eval).
std::vector<std::string> task_suite_names();

// One of these, one task of it as "core/piqa", or a file ending in .toml. Error (usage) when it names nothing.
TaskSuite find_task_suite(const std::string& what);
// Those of a list, separated by commas.
std::vector<TaskSuite> find_task_suites(std::string_view list);

// Error (usage) if `limit` items (0: all) of each task are too few for one whose examples are other items; `what` is
// what sets the limit, as "--limit".
void check_limit(std::span<const TaskSuite> suites, int64_t limit, std::string_view what);

}  // namespace nmoe
