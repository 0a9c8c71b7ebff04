// Answers that a run's model writes between two steps, from the weights that it trains.
#include "train/loop/in_loop_evaluation.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "infer/load_model.h"
#include "support/temp_dir.h"
#include "train/tiny_engine.h"

namespace nmoe::test {
namespace {

class InLoopEvaluationTest : public TempDirTest {
 protected:
  InLoopEvaluationTest() {
    std::string rows;
    for (int i = 0; i < 12; ++i)
      rows += fmt::format("{{\"question\": \"{} is\", \"answer\": \"#### {}\"}}\n", i * i, i);
    write_file_atomically(dir_ / "written.jsonl", rows);
    write_file_atomically(dir_ / "written.toml", R"([tasks.written]
type = "generation"
file = "written.jsonl"
max_tokens = 11
samples = 2
temperature = 0.9
)");
  }
  Config config() const {
    return config_on("cpu", "fp32",
                     {"data.seq_len=24", "eval.every=1", "eval.tasks=" + (dir_ / "written.toml").string(),
                      "eval.data_dir=" + dir_.string()});
  }
};

// Each answer of a task, by item.
std::vector<std::string> answers_of(const EvalReport& report) {
  std::vector<std::string> texts;
  for (const ItemOutcome& outcome : report.tasks.at(0).outcomes) {
    for (const WrittenAnswer& answer : outcome.result.answers) texts.push_back(answer.text);
  }
  return texts;
}

// They are those of n eval, and the step behind them has the bits that it has without.
TEST_F(InLoopEvaluationTest, WritesWhatTheEngineOfGenerationDoes) {
  const Config config = this->config();
  ReadyEngine ready(config), plain(config);
  const auto evaluation = InLoopEvaluation::make(config, byte_tokenizer(), {});
  const EvalReport report = evaluation->run(ready.engine, config);
  ASSERT_EQ(report.tasks.size(), 1u);
  EXPECT_EQ(report.tasks[0].items, 12);
  const std::vector<std::string> written = answers_of(report);
  ASSERT_EQ(written.size(), 24u);

  InferenceEngine engine(random_cached_model(config, byte_tokenizer(), {.cached = {.num_slots = 3, .capacity = 24}}));
  const TokenRules rules{.tokenizer = byte_tokenizer().get(), .begin_ids = {}, .max_tokens = config.data.seq_len};
  ThreadPool pool(1);
  const EvalReport expected =
      evaluate({.scorer = {}, .engine = [&]() -> InferenceEngine& { return engine; }}, rules,
               {.suites = find_task_suites(config.eval.tasks), .data_dir = config.eval.data_dir}, pool, nullptr);
  EXPECT_EQ(written, answers_of(expected));
  EXPECT_GT(std::ranges::count_if(written, [](const std::string& text) { return !text.empty(); }), 12);

  // Of other weights, other answers.
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(random_step(ready.engine, config, step).loss(kNextToken),
              random_step(plain.engine, config, step).loss(kNextToken));
  }
  EXPECT_TRUE(differences(snapshot(ready.engine), snapshot(plain.engine)).empty());
  EXPECT_NE(answers_of(evaluation->run(ready.engine, config)), written);
}

}  // namespace
}  // namespace nmoe::test
