// Order, shots and prompts of CORE against ../shared/evals/core/reference.json, which was made without this program.
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "eval/task_data.h"
#include "support/program.h"

namespace nmoe {
namespace {

const fs::path kData = fs::path(NMOE_SOURCE_DIR).parent_path() / "shared" / "evals";

std::string joined(const std::vector<int64_t>& numbers) { return fmt::format("{}", fmt::join(numbers, " ")); }

class EveryCoreTask : public testing::TestWithParam<Task> {};

TEST_P(EveryCoreTask, IsTheReference) {
  const fs::path file = kData / "core" / "reference.json";
  if (!fs::exists(file)) GTEST_SKIP() << "no evaluation data beside the repository: " << file;
  const auto all = parse_json<nlohmann::json>(read_file(file));
  const auto& expected = all.at(GetParam().name);
  const TaskData data(GetParam(), kData, /*limit=*/0);
  ASSERT_EQ(data.size(), expected.at("examples").get<int64_t>());
  EXPECT_EQ(sha256_hex(joined(data.order())), expected.at("shuffle_sha256").get<std::string>());
  EXPECT_EQ(data.shots_of(0), expected.at("shots_of_0").get<std::vector<int64_t>>());

  Sha256 shots, prompts;
  int64_t sequences = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    shots.update(joined(data.shots_of(i)) + "\n");
    const std::vector<std::string> texts = data.texts_of(i);
    sequences += data.task().kind == TaskKind::kLanguageModeling ? 1 : std::ssize(texts);
    for (const std::string& text : texts) {
      const uint64_t size = text.size();  // little-endian, as this machine is
      prompts.update(&size, sizeof size);
      prompts.update(text);
    }
  }
  EXPECT_EQ(sequences, expected.at("sequences").get<int64_t>());
  EXPECT_EQ(shots.finish(), expected.at("shots_sha256").get<std::string>());
  EXPECT_EQ(prompts.finish(), expected.at("prompts_sha256").get<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Core, EveryCoreTask, testing::ValuesIn(find_task_suite("core").tasks),
                         [](const auto& task) { return task.param.name; });

// What the shared table says of each task is what the program's own description says.
TEST(CoreSuite, IsTheSharedTable) {
  const fs::path file = kData / "core" / "tasks.json";
  if (!fs::exists(file)) GTEST_SKIP() << "no evaluation data beside the repository: " << file;
  const auto table = parse_json<nlohmann::json>(read_file(file));
  const TaskSuite core = find_task_suite("core");
  EXPECT_EQ(core.mean, "CORE");
  ASSERT_EQ(core.tasks.size(), table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const Task& task = core.tasks[i];
    EXPECT_EQ(task.name, table[i].at("label").get<std::string>());
    EXPECT_EQ("core/" + table[i].at("file").get<std::string>(), task.file + ".zst");
    EXPECT_EQ(task.shots, table[i].at("shots").get<int64_t>()) << task.name;
    EXPECT_EQ(task.delimiter, table[i].at("delimiter").get<std::string>()) << task.name;
    EXPECT_DOUBLE_EQ(task.baseline, table[i].at("baseline_v1").get<double>() / 100) << task.name;
    EXPECT_DOUBLE_EQ(task.baseline_v2, table[i].at("baseline_v2").get<double>() / 100) << task.name;
  }
}

// Every row of both has what its task needs; examples stand before the question, with their answers.
TEST(WrittenAnswers, HaveTheirData) {
  if (!fs::exists(kData / "gsm8k")) GTEST_SKIP() << "no evaluation data beside the repository: " << kData;
  const TaskData gsm8k(find_task_suite("gsm8k").tasks.front(), kData, /*limit=*/0);
  EXPECT_EQ(gsm8k.size(), 1319);
  const std::string prompt = gsm8k.texts_of(0).front();
  EXPECT_TRUE(prompt.starts_with("Question: Natalia sold clips to 48 of her friends in April"));
  EXPECT_NE(prompt.find("\n#### 72\n\nQuestion: Weng earns"), std::string::npos);
  EXPECT_TRUE(prompt.ends_with("\nAnswer:"));
  const TaskData humaneval(find_task_suite("humaneval").tasks.front(), kData, /*limit=*/0);
  EXPECT_EQ(humaneval.size(), 164);
  EXPECT_EQ(humaneval.texts_of(3).front(), humaneval.item(3).code->prompt);
}

}  // namespace
}  // namespace nmoe
