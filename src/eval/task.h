// What is evaluated, as data: a suite is a TOML file with a section for each task.
//
//   mean = "CORE"                # optional: the mean of the tasks' centred accuracies is told under this name
//
//   [tasks.NAME]
//   type = "multiple_choice"     # or "schema", "language_modeling", "text"
//   file = "core/piqa.jsonl"     # below the folder of data; .jsonl, .json or .parquet, compressed or not
//   prompt = "{query}\nAnswer:"  # what stands before the delimiter, and
//   answer = "{continuation}"    # what behind it, where that is not a choice
//   choices = "choices"          # the list among which is chosen: answers, or in a schema prompts
//   letters = false              # the choices are "A", "B", ...: as many as the list has entries
//   gold = "gold"                # which of them is right, from 0
//   delimiter = " "
//   shots = 0                    # examples with answers before each item
//   shots_file = ""              # from here: its first rows, in order; else drawn among the task's other items
//   group = ""                   # a field: shots_file's rows are of the item's group, and groups have means
//   header = ""                  # stands before the first shot
//   score = "token"              # what decides: nats per "token", their "sum", or per "character" of the choice
//   baseline = 25                # accuracy of a guess, in per cent
//   baseline_v2 = 25             # by DCLM's correction of 2025; the same unless given
//
// In prompt, answer and header {field} is a field of the row; {field:spaces} has spaces for its underscores;
// {field:lettered} is a list as lines "A. first", "B. second"; {{ and }} are braces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

enum class TaskKind {
  kMultipleChoice,    // the likeliest answer to a prompt
  kSchema,            // the prompt that makes one answer likeliest
  kLanguageModeling,  // an answer that greedy decoding gives exactly
  kText,              // bits per byte of documents
};

// Of several answers the one with the least of this is chosen, the first of equals.
enum class ChoiceScore { kToken, kSum, kCharacter };
inline constexpr int kNumChoiceScores = 3;
std::string_view choice_score_name(ChoiceScore score);  // "token", "sum", "character"

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

}  // namespace nmoe
