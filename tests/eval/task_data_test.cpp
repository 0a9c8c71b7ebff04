#include "eval/task_data.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "data/parquet_files.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using Texts = std::vector<std::string>;

class TaskDataTest : public test::TempDirTest {
 protected:
  TaskData data(const std::string& keys, int64_t limit = 0) const {
    return {parse_task_suite("[tasks.t]\nfile = \"rows.jsonl\"\n" + keys, "t.toml").tasks.front(), dir_, limit};
  }
  void write(const std::string& name, std::string_view text) const { write_file_atomically(dir_ / name, text); }
};

TEST_F(TaskDataTest, EveryTypeHasItsTexts) {
  write("rows.jsonl", R"({"query": "1 + 1 =\n", "choices": ["two", "three"], "gold": 0}
{"query": "2 + 2 =", "choices": ["five ", "four"], "gold": 1}
)");
  // Shuffled, so that the second row comes first; nothing is stripped.
  const TaskData choice = data("type = \"multiple_choice\"\nshots = 1\n");
  ASSERT_EQ(choice.size(), 2);
  const int64_t first = choice.item(0).gold == 1 ? 0 : 1;
  EXPECT_EQ(choice.texts_of(first), (Texts{"1 + 1 =\n two\n\n2 + 2 = five ", "1 + 1 =\n two\n\n2 + 2 = four"}));

  write("rows.jsonl", R"({"context_options": ["a", "b"], "continuation": "c", "gold": 1})");
  EXPECT_EQ(data("type = \"schema\"\ndelimiter = \"-\"\n").texts_of(0), (Texts{"a-c", "b-c"}));

  write("rows.jsonl", "{\"context\": \" x\\u00a0y\\u001f\\n\", \"continuation\": \"z \"}");
  EXPECT_EQ(data("type = \"language_modeling\"\ndelimiter = \"\\nA: \"\n").texts_of(0),
            (Texts{"x\u00a0y\nA:", "x\u00a0y\nA: z "}));
}

TEST_F(TaskDataTest, ParquetHasTheSameRows) {
  write("rows.jsonl", R"({"query": "a \"b\"\n", "choices": ["c", "d \u00e9"], "gold": 1})");
  const TaskData json = data("type = \"multiple_choice\"\n");
  test::run_sql(fmt::format(
      "COPY (SELECT 'a \"b\"' || chr(10) AS query, ['c', 'd é'] AS choices, 1 AS gold) TO '{}' (FORMAT parquet)",
      (dir_ / "rows.parquet").string()));
  fs::remove(dir_ / "rows.jsonl");
  const TaskData parquet = data("type = \"multiple_choice\"\n");
  EXPECT_EQ(parquet.texts_of(0), json.texts_of(0));
  EXPECT_EQ(parquet.item(0).gold, 1);
}

TEST_F(TaskDataTest, TemplatesHeadersAndShotsOfTheGroup) {
  write("rows.jsonl", R"({"q": "Q2", "options": ["yes", "no"], "gold": 1, "subject": "b_c"})");
  write("dev.jsonl", R"({"q": "other", "options": ["x", "y"], "gold": 0, "subject": "a"}
{"q": "Q0", "options": ["u", "v", "w"], "gold": 2, "subject": "b_c"}
{"q": "Q1", "options": ["u", "v"], "gold": 0, "subject": "b_c"}
{"q": "too many", "options": ["u", "v"], "gold": 0, "subject": "b_c"}
)");
  const TaskData with_shots = data(R"(type = "multiple_choice"
header = "{{About}} {subject:spaces}.\n"
prompt = "{q}\n{options:lettered}\n="
choices = "options"
letters = true
group = "subject"
shots = 2
shots_file = "dev.jsonl"
)");
  EXPECT_EQ(with_shots.shots_of(0), (std::vector<int64_t>{1, 2}));
  const std::string before = "{About} b c.\nQ0\nA. u\nB. v\nC. w\n= C\n\nQ1\nA. u\nB. v\n= A\n\nQ2\nA. yes\nB. no\n= ";
  EXPECT_EQ(with_shots.texts_of(0), (Texts{before + "A", before + "B"}));
}

TEST_F(TaskDataTest, NamesWhatIsWrong) {
  const std::string choice = "type = \"multiple_choice\"\n";
  const Error missing = error_of([&] { data(choice); });
  EXPECT_EQ(missing.exit_code(), 2);
  EXPECT_TRUE(contains(missing.what(), "there is no 'rows.jsonl'"));
  EXPECT_TRUE(contains(missing.remedy(), "scripts/eval_data.sh"));

  const std::string good = R"({"query": "q", "choices": ["a", "b"], "gold": 0})";
  struct Case {
    std::string row, what;
  };
  for (const Case& c :
       {Case{R"({"query": "q", "choices": ["a", "b"]})", "rows.jsonl', line 2: no field \"gold\""},
        Case{R"({"query": "q", "choices": ["a", "b"], "gold": 2})", "\"gold\" is 2, with 2 choices"},
        Case{R"({"query": "q", "choices": ["a", 1], "gold": 0})", "\"choices\" is not a list of strings"},
        Case{R"({"query": "q", "choices": ["a"], "gold": 0})", "\"choices\" has one entry"},
        Case{R"({"query": 7, "choices": ["a", "b"], "gold": 0})", "\"query\" is not a string"}, Case{"{", "line 2"}}) {
    write("rows.jsonl", good + "\n" + c.row + "\n");
    EXPECT_TRUE(contains(error_of([&] { data(choice); }).what(), c.what));
  }
  // An item never is among its own shots: two items have one each, a single one has none.
  write("rows.jsonl", good + "\n" + good + "\n");
  EXPECT_EQ(data(choice + "shots = 1\n").shots_of(0), (std::vector<int64_t>{1}));
  EXPECT_TRUE(contains(error_of([&] { data(choice + "shots = 1\n", 1); }).what(), "1 items, too few for 1 shots"));
}

TEST_F(TaskDataTest, StripsWhatPythonDoes) {
  EXPECT_EQ(strip(" \t\x1c\u2003a \u3000b\u0085\n"), "a \u3000b");
  EXPECT_EQ(strip("\u200b x"), "\u200b x");  // no space
  EXPECT_EQ(strip(" \n"), "");
  EXPECT_EQ(strip(""), "");
}

}  // namespace
}  // namespace nmoe
