// n eval: a model that knows items by heart, evaluations that are killed, comparisons, what is refused.
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/rng.h"
#include "cli/cli_test.h"

namespace nmoe {
namespace {

constexpr int kNumItems = 50;

class EvalCommandTest : public CliTest {
 protected:
  // Keys like "c5" with a value of a number that nothing but the item tells.
  static std::string key(int i) {
    return fmt::format("{}{}", static_cast<char>('a' + i / 8 % 25), i % 8 + i / 200 * 10);
  }
  static std::string value(int i) {
    const uint64_t bits = Philox(5, "values").bits(static_cast<uint64_t>(i));
    return fmt::format("#### {}", 10 + bits % 90);
  }
  void write_tasks(int num_items) const {
    std::string greedy, choices, written;
    for (int i = 0; i < num_items; ++i) {
      const std::string right = value(i), wrong = value(i + 1) == right ? "#### 0" : value(i + 1);
      greedy += fmt::format("{{\"context\": \"{} is\", \"continuation\": \"{}\"}}\n", key(i), right);
      choices += fmt::format("{{\"query\": \"{} is\", \"choices\": [\"{}\", \"{}\"], \"gold\": {}}}\n", key(i),
                             i % 2 == 0 ? right : wrong, i % 2 == 0 ? wrong : right, i % 2);
      written += fmt::format("{{\"question\": \"{} is\", \"answer\": \"{}\"}}\n", key(i), right);
    }
    make_directories(dir_ / "tasks");
    write("tasks/greedy.jsonl", greedy);
    write("tasks/choices.jsonl", choices);
    write("tasks/written.jsonl", written);
    write("mine.toml", R"(mean = "MINE"
[tasks.greedy]
type = "language_modeling"
file = "greedy.jsonl"
[tasks.choices]
type = "multiple_choice"
file = "choices.jsonl"
baseline = 50
)");
    write("written.toml", R"([tasks.written]
type = "generation"
file = "written.jsonl"
max_tokens = 9
stop = "\n"
)");
  }
  std::vector<std::string> eval(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        "eval", "runs/checkpoints/tiny", "--tasks", "mine.toml,written.toml", "--data", "tasks", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  void make_random_model() const {
    prepare();
    output(train({"train.steps=1"}));
  }
  // Kills an evaluation again and again, `kills` times, and lets it end.
  void kill_and_resume(int kills) const {
    make_random_model();
    write_tasks(400);
    const std::vector<std::string> whole = {"--out", "whole", "--batch", "3"};
    output(eval(whole));
    const fs::path journal = dir_ / "parts/journal.jsonl";
    const auto written = [&] { return fs::exists(journal) ? fs::file_size(journal) : 0; };
    const uintmax_t all = fs::file_size(dir_ / "whole/journal.jsonl");
    int killed = 0;
    for (int i = 1; i <= kills; ++i) {
      std::vector<std::string> command = eval({"--out", "parts", "--batch", fmt::format("{}", 1 + i % 4)});
      command.insert(command.begin(), NMOE_PROGRAM);
      test::Program program(dir_, command);
      const uintmax_t enough = all * static_cast<uintmax_t>(i) / static_cast<uintmax_t>(kills + 1);
      while (written() < enough) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      program.send(SIGKILL);
      killed += program.wait().exit_code == 128 + SIGKILL ? 1 : 0;
    }
    EXPECT_GT(killed, kills / 2);
    output(eval({"--out", "parts"}));
    EXPECT_EQ(read_file(dir_ / "parts/items.jsonl"), read_file(dir_ / "whole/items.jsonl"));
    EXPECT_EQ(std::ranges::count(read_file(dir_ / "parts/items.jsonl"), '\n'), 1200);
    // Finished: nothing is scored again.
    const auto report = parse_json<nlohmann::json>(output(eval({"--out", "parts", "--json"})));
    EXPECT_EQ(report.at("tasks").at(0).at("computed_tokens"), 0);
    EXPECT_EQ(report.at("tasks").at(0).at("resumed"), 400);
  }
};

TEST_F(EvalCommandTest, AModelThatKnowsItemsByHeart) {
  std::string text;
  for (int i = 0; i < kNumItems; ++i) text += fmt::format("{} is {}\n\n", key(i), value(i));
  write("items.txt", text);
  write_tasks(kNumItems);
  output({"prep", "items.txt", "--split-on", "", "--out", "data", "--threads", "1"});
  output(
      train({"train.steps=350", "train.batch_seqs=16", "train.microbatch_seqs=16", "data.seq_len=32",
             "data.mask_documents=true", "data.shuffle=documents", "model.dim=64", "model.dense_dim=256",
             "train.log_every=250", "optim.schedule.warmup=10", "optim.schedule.hold=300", "optim.schedule.decay=40"}));
  const auto report = parse_json<nlohmann::json>(output(eval({"--json"})));
  ASSERT_EQ(report.at("tasks").size(), 3u);
  for (const auto& task : report.at("tasks")) {
    EXPECT_EQ(task.at("accuracy"), 1.0) << task.at("task");
    EXPECT_EQ(task.at("items"), kNumItems);
  }
  EXPECT_EQ(report.at("tasks").at(2).at("accuracy_flexible"), 1.0);
  EXPECT_EQ(report.at("means").at("MINE").at("value"), 1.0);
}

// NMOE_EVAL_KILLS: how often (CMakeLists.txt beside this file).
TEST_F(EvalCommandTest, GoesOnWhereItWasKilled) {
  const char* kills = ::getenv("NMOE_EVAL_KILLS");
  kill_and_resume(kills == nullptr ? 3 : std::stoi(kills));
}

TEST_F(EvalCommandTest, SameItemsForAnyBatchAndSharing) {
  make_random_model();
  write_tasks(40);
  output(eval({"--out", "a", "--batch", "1"}));
  output(eval({"--out", "b", "--batch", "9", "--no-shared-prefixes"}));
  EXPECT_EQ(read_file(dir_ / "a/items.jsonl"), read_file(dir_ / "b/items.jsonl"));
  const std::string table = output({"eval", "compare", "a", "b"});
  EXPECT_TRUE(contains(table, "mine/greedy"));
  EXPECT_TRUE(contains(table, "0/0"));
  EXPECT_TRUE(contains(table, "MINE"));
}

TEST_F(EvalCommandTest, AConfigurationHasRandomWeights) {
  prepare();
  write_tasks(10);
  std::vector<std::string> command = {"eval",  "tiny.toml", "--tasks", "mine.toml", "--data",
                                      "tasks", "--threads", "1",       "--json"};
  expect_error(n(command), 2, "a configuration without a tokenizer", "add --tokenizer FILE");
  command.insert(command.end(), {"--tokenizer", "data/tokenizer.json"});
  const auto report = parse_json<nlohmann::json>(output(command));
  ASSERT_EQ(report.at("tasks").size(), 2u);
  EXPECT_EQ(report.at("tasks").at(0).at("items"), 10);
  command.insert(command.end(), {"--out", "a"});
  expect_error(n(command), 2, "weights are random", "give a checkpoint");
}

// What is wrong with a later task is said before an earlier one is scored, which can take an hour.
TEST_F(EvalCommandTest, NothingIsScoredBeforeAllIsThere) {
  make_random_model();
  write_tasks(10);
  write("shots.toml", R"([tasks.free]
type = "language_modeling"
file = "greedy.jsonl"
[tasks.five]
type = "language_modeling"
file = "greedy.jsonl"
shots = 5
[tasks.seven]
type = "language_modeling"
file = "greedy.jsonl"
shots = 7
)");
  const auto refused = [&](std::vector<std::string> more, const std::string& what, const std::string& remedy) {
    std::vector<std::string> command = {"eval", "runs/checkpoints/tiny", "--data", "tasks"};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome outcome = n(command);
    expect_error(outcome, 2, what, remedy);
    EXPECT_FALSE(contains(outcome.err, " item ")) << outcome.err;  // progress
  };
  // The whole file is too short for none; the limit is, and one that suffices for all is named.
  refused({"--tasks", "shots.toml", "--limit", "5"},
          "--limit 5: too few items for task shots/seven, which puts 7 others",
          "raise it to at least 8, or to 0, for all items");
  refused({"--tasks", "core", "--limit", "10"}, "--limit 10: too few items for task core/", "raise it to at least 11");
  refused({"--tasks", "shots.toml,core/piqa"}, "there is no 'core/piqa.jsonl'", "--data");
}

TEST_F(EvalCommandTest, NamesThatWereProbablyMeant) {
  make_random_model();
  const std::string model = "runs/checkpoints/tiny";
  for (const auto& [given, meant] :
       std::vector<std::pair<std::string, std::string>>{{"arc_easy", "choices/arc_easy or core/arc_easy"},
                                                        {"arc-easy", "choices/arc_easy or core/arc_easy"},
                                                        {"HellaSwag", "choices/hellaswag or core/hellaswag"},
                                                        {"MMLU", "mmlu"},
                                                        {"human_eval", "humaneval"},
                                                        {"cores/piqa", "core/piqa"}}) {
    expect_error(n({"eval", model, "--tasks", given}), 2, "there are no tasks \"" + given + "\"",
                 "did you mean " + meant + "?");
  }
  expect_error(n({"eval", model, "--tasks", "entirely_else"}), 2, "there are no tasks", "name choices, core, ");
  make_directories(dir_ / "texts");
  expect_error(n({"eval", model, "--text", "data"}), 2, "--text data: that is a folder of tokens",
               "name the text that it was prepared from");
  write("texts/b.txt", "b");
  expect_error(n({"eval", model, "--text", "nowhere.txt"}), 2, "--text nowhere.txt: there is no such file",
               "check the path");
  write("texts/a.txt", "a");
  expect_error(n({"eval", model, "--text", "texts"}), 2, "--text texts: that is a folder",
               "each with an option of its own: --text texts/a.txt --text texts/b.txt");
}

// Short models cannot hold every answer: the option that lets them is named, before anything is written.
TEST_F(EvalCommandTest, ShortModelsAreToldOfTheContext) {
  make_random_model();
  write_tasks(10);
  write("long.toml", "[tasks.long]\ntype = \"generation\"\nfile = \"written.jsonl\"\nmax_tokens = 16\nstop = \"x\"\n");
  const std::vector<std::string> command = {"eval", "runs/checkpoints/tiny", "--tasks", "mine.toml,long.toml", "--data",
                                            "tasks"};
  const Outcome outcome = n(command);
  expect_error(outcome, 2, "task long/long has answers of up to 16 tokens, and this model's context is 16",
               "allow longer texts: --context 64");
  EXPECT_FALSE(contains(outcome.err, " item ")) << outcome.err;
  std::vector<std::string> longer = command;
  longer.insert(longer.end(), {"--context", "64"});
  output(longer);
}

TEST_F(EvalCommandTest, AnExportedModelIsJudgedAlike) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe.json"});
  output({"prep", "train.txt", "--tokenizer", "bpe.json", "--out", "data", "--threads", "1"});
  output(train({"train.steps=2"}));
  write_tasks(20);
  output({"export", "runs/checkpoints/tiny", "hf"});
  output(eval({"--out", "a"}));
  output({"eval", "hf", "--tasks", "mine.toml,written.toml", "--data", "tasks", "--threads", "1", "--out", "b",
          "--context", "16"});
  EXPECT_EQ(read_file(dir_ / "a/items.jsonl"), read_file(dir_ / "b/items.jsonl"));
}

TEST_F(EvalCommandTest, TextsAndTheRunsMetrics) {
  make_random_model();
  const auto report = parse_json<nlohmann::json>(
      output({"eval", "runs/checkpoints/tiny", "--text", "valid.txt", "--threads", "1", "--json"}));
  const double bits = report.at("tasks").at(0).at("bits_per_byte").get<double>();
  EXPECT_GT(bits, 2.0);  // one step of training
  EXPECT_LT(bits, 9.0);
  EXPECT_EQ(report.at("tasks").at(0).at("scored_bytes"), fs::file_size(dir_ / "valid.txt"));
}

// The texts of an imported model begin as its tokenizer's files say, in the middle of a run, too.
TEST_F(EvalCommandTest, AnImportedModelIsJudgedAlikeWhileTraining) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe.json"});
  output({"prep", "train.txt", "--tokenizer", "bpe.json", "--out", "data", "--threads", "1"});
  output(train({"train.steps=2"}));
  output({"export", "runs/checkpoints/tiny", "hf"});
  auto settings = parse_json<nlohmann::json>(read_file(dir_ / "hf/tokenizer_config.json"));
  settings["bos_token"] = "<|im_start|>";
  write("hf/tokenizer_config.json", settings.dump());
  output({"import", "hf", "imported"});
  make_directories(dir_ / "tasks");
  write("tasks/valid.jsonl", nlohmann::json{{"text", read_file(dir_ / "valid.txt").substr(0, 12)}}.dump() + "\n");
  write("texts.toml", "[tasks.valid]\ntype = \"text\"\nfile = \"valid.jsonl\"\n");
  write("tuned.toml", R"([model.init]
from = "imported"
[data]
path = "data"
seq_len = 16
[optim]
lr = 0
[train]
steps = 1
batch_seqs = 1
[eval]
every = 1
tasks = "texts.toml"
data_dir = "tasks"
)");
  const Outcome outcome = n({"train", "tuned.toml", "--set", "run.name=tuned"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto bits_of = [&](const std::string& model) {
    const auto report = parse_json<nlohmann::json>(output(
        {"eval", model, "--tasks", "texts.toml", "--data", "tasks", "--context", "16", "--threads", "1", "--json"}));
    return report.at("tasks").at(0).at("bits_per_byte").get<double>();
  };
  const double bits = bits_of("imported");
  EXPECT_TRUE(contains(outcome.err, fmt::format("step 1: texts/valid {:.4f} bits per byte", bits))) << outcome.err;
  EXPECT_GT(std::abs(bits - bits_of("runs/checkpoints/tiny")), 1e-3);  // whose texts begin in another way
}

// Evaluations in the middle of a run change none of its bits, and say what n eval says of the checkpoint.
TEST_F(EvalCommandTest, WhileTraining) {
  prepare();
  write_tasks(20);
  const std::vector<std::string> settings = {"train.steps=6", "run.name=plain"};
  output(train(settings));
  const std::vector<std::string> more = {"train.steps=6", "eval.every=2", "eval.tasks=mine.toml", "eval.data_dir=tasks",
                                         "eval.limit=15"};
  auto evaluated = more;
  evaluated.emplace_back("run.name=evaluated");
  const Outcome outcome = n(train(evaluated));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* step : {"step 2: MINE ", "step 4: MINE ", "step 6: MINE "}) EXPECT_TRUE(contains(outcome.err, step));
  EXPECT_EQ(weights("evaluated"), weights("plain"));

  const auto report =
      parse_json<nlohmann::json>(output({"eval", "runs/checkpoints/evaluated", "--tasks", "mine.toml", "--data",
                                         "tasks", "--limit", "15", "--threads", "1", "--json"}));
  const std::string value =
      fmt::format("step 6: MINE {:.4f} ", report.at("means").at("MINE").at("value").get<double>());
  EXPECT_TRUE(contains(outcome.err, value));

  // Answers, too, are written by the weights as they are between two steps.
  auto written = more;
  written.insert(written.end(), {"run.name=written", "eval.tasks=written.toml", "eval.limit=0"});
  const Outcome answered = n(train(written));
  ASSERT_EQ(answered.exit_code, 0) << answered.err;
  EXPECT_EQ(weights("written"), weights("plain"));
  for (const char* step : {"step 2: ", "step 4: ", "step 6: "}) {
    EXPECT_TRUE(contains(answered.err, std::string(step) + "written/written ")) << answered.err;
  }

  // Ranks divide the texts, which are packed as documents.
  std::vector<std::string> said;
  for (const int ranks : {1, 2}) {
    auto on_ranks = more;
    on_ranks.insert(on_ranks.end(), {fmt::format("run.name=r{}", ranks), fmt::format("parallel.ranks={}", ranks),
                                     "data.mask_documents=true", "train.steps=2", "parallel.logical_shards=4",
                                     "train.microbatch_seqs=2"});
    const Outcome divided = n(train(on_ranks));
    ASSERT_EQ(divided.exit_code, 0) << divided.err;
    const size_t begin = divided.err.find("step 2: MINE ");
    ASSERT_NE(begin, std::string::npos) << divided.err;
    said.push_back(divided.err.substr(begin, divided.err.find(" (", begin) - begin));
  }
  EXPECT_EQ(said[0], said[1]);
  expect_error(n(train({"eval.every=2", "eval.data_dir=nowhere"})), 2, "there is no 'core/hellaswag.jsonl'",
               "eval_data.sh");
}

TEST_F(EvalCommandTest, GpqaIsMadeOfItsFile) {
  write("gpqa.csv",
        "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
        "r1,\"Which, of\n these?\",right ,a,b,\"c, d\"\nr2,And?,right,e,f,g\n");
  const std::string script = std::string(NMOE_SOURCE_DIR) + "/scripts/eval_gpqa.py";
  ASSERT_EQ(test::Program(dir_, {"python3", script, "gpqa.csv", "data/gpqa/gpqa_main.jsonl"}).wait().exit_code, 0);
  const std::string lines = read_file(dir_ / "data/gpqa/gpqa_main.jsonl");
  const auto first = parse_json<nlohmann::json>(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(first.at("query"), "Which, of\n these?");
  EXPECT_EQ(first.at("choices"), nlohmann::json({"b", "a", "c, d", "right"}));  // as random.Random(42) shuffles
  EXPECT_EQ(first.at("gold"), 3);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 2);
  write("gpqa.csv", "Question\nWhy?\n");
  const Outcome outcome = test::Program(dir_, {"python3", script, "gpqa.csv", "out.jsonl"}).wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(contains(outcome.err, "no column 'Incorrect Answer 2'"));
}

TEST_F(EvalCommandTest, Refusals) {
  expect_error(n({"eval"}), 2, "n eval: a model is required", "n eval --help");
  expect_error(n({"eval", "x"}), 2, "--tasks or --text is required", "n eval --help");
  make_random_model();
  expect_error(n({"eval", "runs/checkpoints/tiny", "--tasks", "cor"}), 2, "there are no tasks \"cor\"", "core");
  expect_error(n({"eval", "runs/checkpoints/tiny", "--tasks", "core"}), 2, "there is no 'core/hellaswag.jsonl'",
               "scripts/eval_data.sh");
  write_tasks(3);
  expect_error(n({"eval", "nowhere", "--tasks", "written.toml", "--data", "tasks"}), 1, "nowhere", "");
  const auto writing = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"run.name=new", "eval.every=2", "eval.data_dir=tasks"});
    return n(train(settings));
  };
  expect_error(writing({"eval.tasks=written.toml", "parallel.ranks=2"}), 2,
               "answers to written/written are written, which a run of several ranks does not do", "n eval");
  expect_error(writing({"eval.tasks=written.toml", "data.seq_len=8"}), 2,
               "answers to written/written have up to 9 tokens, and data.seq_len is 8", "raise data.seq_len");
  expect_error(writing({"eval.tasks=humaneval"}), 2, "are programs, which a run that trains does not run", "n eval");
  expect_error(n({"eval", "compare", "a", "b"}), 2, "'a' is not a finished evaluation", "n eval --out");
}

}  // namespace
}  // namespace nmoe
