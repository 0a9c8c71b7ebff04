#include "data/prep/prep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "data/prep/inputs.h"
#include "data/shards/dataset.h"
#include "data/test_data.h"
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {
namespace {

class PrepTest : public FolderTest {
 protected:
  // The text of every document of a split.
  std::vector<std::string> documents(const std::string& split) const {
    const auto tokenizer = load_tokenizer((out() / "tokenizer.json").string());
    const TokenDataset dataset(out() / split);
    dataset.verify();
    std::vector<int32_t> ids(static_cast<size_t>(dataset.num_tokens()));
    dataset.read(0, ids);
    std::vector<std::string> texts;
    for (auto begin = ids.begin(); begin != ids.end();) {
      const auto end = std::find(begin, ids.end(), tokenizer->eos_id());
      texts.push_back(tokenizer->decode({begin, end}));
      begin = end + 1;
    }
    return texts;
  }

  // All that was written, without the times in it.
  static std::map<std::string, std::string> timeless(const fs::path& root) {
    auto files = contents(root);
    for (auto& [name, content] : files) {
      const size_t place = content.find("\"created_at\"");
      if (place != std::string::npos) content.erase(place, content.find('\n', place) - place);
    }
    return files;
  }

  // Hundreds of documents in a few files, some empty, some long.
  std::string write_corpus() {
    std::mt19937 random(7);
    for (int file = 0; file < 3; ++file) {
      std::string text;
      for (int i = 0; i < 200; ++i) {
        text += fmt::format("document {} of {}", i, file);
        for (int length = i * 7 % 911; length > 0; --length) text += "etaoinshr "[random() % 10];
        text += i % 50 == 0 ? "\n%%\n%%\n" : "\n%%\n";
      }
      write(fmt::format("corpus/{}.txt", file), text);
    }
    return (dir_ / "corpus").string();
  }

  fs::path out() const { return dir_ / "out"; }
};

TEST_F(PrepTest, FilesAreDocuments) {
  const std::string a = write("a.txt", "first");
  const std::string b = write("b.txt", "second\xFF\n");
  const std::string empty = write("empty.txt", "");
  expect_error(ErrorKind::kRuntime, "empty.txt': the file is empty", [&] {
    prepare_dataset({.inputs = {b, empty, a}, .out = out()});
  });
  const PrepReport report = prepare_dataset({.inputs = {b, empty, a}, .skip_bad = 1, .out = out()});
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"second\xFF\n", "first"}));
  EXPECT_FALSE(fs::exists(out() / "valid"));
  EXPECT_EQ(report.train.documents, 2);
  EXPECT_EQ(report.train.tokens, 15);
  EXPECT_EQ(report.train.bytes, 13);
  EXPECT_EQ(report.train.shards, 1);
  EXPECT_EQ(report.valid.documents, 0);
  EXPECT_EQ(report.dropped.at("bad record").records, 1);
  const TokenDataset dataset(out() / "train");
  EXPECT_EQ(dataset.manifest().tokenizer, "bytes");
  EXPECT_EQ(dataset.tokenizer_hash(), byte_tokenizer()->hash());
  EXPECT_EQ(dataset.manifest().dataset, "corpus");
}

TEST_F(PrepTest, ValidationFilesLeaveTheTrainingText) {
  write("books/a.txt", "A");
  const std::string b = write("books/b.txt", "B");
  write("books/deep/c.txt", "C");
  write("books/notes.md", "not text");
  const PrepReport report = prepare_dataset({.inputs = {(dir_ / "books").string()}, .valid_inputs = {b}, .out = out()});
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"A", "C"}));
  EXPECT_EQ(documents("valid"), (std::vector<std::string>{"B"}));
  EXPECT_EQ(report.valid.tokens, 2);
}

TEST_F(PrepTest, SeparatorLinesCutDocuments) {
  const std::string path = write("a.txt", "one\ntwo\n%%\n%%\r\n%%three\n %%\nfour %%\n%%\nlast line\n%%");
  prepare_dataset({.inputs = {path}, .records = {.split_on = "%%"}, .out = out()});
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"one\ntwo\n", "%%three\n %%\nfour %%\n", "last line\n"}));
}

TEST_F(PrepTest, ThreadsDoNotMatter) {
  const std::string corpus = write_corpus();
  const TrainedBpe bpe = train_bpe({.inputs = {corpus}, .vocab_size = 300});
  for (const std::string& tokenizer : {std::string("bytes"), write("bpe.json", bpe.tokenizer->json())}) {
    PrepOptions options{.inputs = {corpus},
                        .valid_fraction = 0.1,
                        .records = {.split_on = "%%"},
                        .tokenizer = tokenizer,
                        .out = out(),
                        .tokens_per_shard = 60'000,
                        .force = true};
    options.threads = 1;
    prepare_dataset(options);
    const auto one = timeless(out());
    options.threads = 3;
    const PrepReport report = prepare_dataset(options);
    EXPECT_EQ(timeless(out()), one);
    EXPECT_GT(report.train.shards, 1);
  }
}

TEST_F(PrepTest, FractionSplitsByDocument) {
  const PrepOptions options{
      .inputs = {write_corpus()}, .valid_fraction = 0.2, .records = {.split_on = "%%"}, .out = out()};
  const PrepReport report = prepare_dataset(options);
  EXPECT_EQ(report.train.documents + report.valid.documents, 600);
  // 600 draws with probability 0.2: 120 on average, standard deviation 10.
  EXPECT_NEAR(static_cast<double>(report.valid.documents), 120, 40);
  const auto valid = documents("valid");
  const std::set<std::string> held_out(valid.begin(), valid.end());
  for (const std::string& text : documents("train")) EXPECT_FALSE(held_out.contains(text));

  // A document's side depends on its text alone, so equal documents stay together.
  const std::string twice = write("twice.txt", valid[0] + "%%\n" + valid[0] + "%%\nother");
  PrepOptions again{.inputs = {twice}, .valid_fraction = 0.2, .records = {.split_on = "%%"}, .out = out()};
  again.force = true;
  EXPECT_EQ(prepare_dataset(again).valid.documents, 2);
}

TEST_F(PrepTest, ReportsProgress) {
  std::vector<PrepProgress> seen;
  PrepOptions options{.inputs = {write_corpus()}, .out = out()};
  options.progress = [&](const PrepProgress& progress) { seen.push_back(progress); };
  const PrepReport report = prepare_dataset(options);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().bytes, report.train.bytes);
  EXPECT_EQ(seen.back().total_bytes, report.train.bytes);
  EXPECT_EQ(seen.back().documents, report.train.documents);
  EXPECT_EQ(seen.back().tokens, report.train.tokens);
}

TEST_F(PrepTest, ReplacesADatasetOnlyByForce) {
  const std::string a = write("a.txt", "first");
  const std::string b = write("b.txt", "second");
  prepare_dataset({.inputs = {a, b}, .valid_inputs = {b}, .out = out()});
  write("out/train/notes.txt", "keep");
  const auto before = contents(out());
  PrepOptions options{.inputs = {b}, .dataset = "other", .out = out()};
  expect_error(ErrorKind::kUsage, "manifest.json", [&] { prepare_dataset(options); });
  EXPECT_EQ(contents(out()), before);

  options.force = true;
  prepare_dataset(options);
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"second"}));
  EXPECT_FALSE(fs::exists(out() / "valid" / "manifest.json"));
  EXPECT_EQ(contents(out() / "train").size(), 4U);  // and notes.txt
}

TEST_F(PrepTest, KeepsAForeignTokenizer) {
  const std::string a = write("a.txt", "first");
  write("out/tokenizer.json", "precious");
  expect_error(ErrorKind::kUsage, "another tokenizer", [&] { prepare_dataset({.inputs = {a}, .out = out()}); });
  EXPECT_EQ(contents(out()).size(), 1U);
}

TEST_F(PrepTest, FailureLeavesNothing) {
  const std::string a = write("a.txt", "text");
  const std::string big = write("b.txt", std::string(5000, 'x'));
  PrepOptions options{.inputs = {a, big}, .out = out(), .tokens_per_shard = 100};
  expect_error(ErrorKind::kUsage, "b.txt' has 5001 tokens", [&] { prepare_dataset(options); });
  EXPECT_FALSE(fs::exists(out()));

  prepare_dataset({.inputs = {a}, .out = out()});
  const auto before = contents(out());
  options.force = true;
  expect_error(ErrorKind::kUsage, "b.txt", [&] { prepare_dataset(options); });
  EXPECT_EQ(contents(out()), before);
}

TEST_F(PrepTest, OptionsThatCannotBeMet) {
  const std::string a = write("a.txt", "text");
  const auto expect_usage = [&](PrepOptions options, const std::string& part) {
    options.out = out();
    expect_error(ErrorKind::kUsage, part, [&] { prepare_dataset(options); });
    EXPECT_FALSE(fs::exists(out()));
  };
  expect_usage({}, "no text");
  expect_usage({.inputs = {a}, .valid_fraction = 1.0}, "fraction of 1");
  expect_usage({.inputs = {a}, .valid_inputs = {a}, .valid_fraction = 0.1}, "both");
  expect_usage({.inputs = {a}, .valid_inputs = {a}}, "no document is left for training");
  expect_usage({.inputs = {a}, .valid_fraction = 1e-9}, "no document is left for validation");
  expect_usage({.inputs = {a}, .dataset = "a/b"}, "'a/b' cannot name a dataset");
  expect_usage({.inputs = {a}, .tokens_per_shard = 1}, "1 tokens per shard");
  expect_usage({.inputs = {(dir_ / "*.md").string()}}, "*.md");
}

TEST_F(PrepTest, InputsAreSortedAndTakenOnce) {
  const std::string b = write("x/b.txt", "");
  const std::string a = write("x/sub/a.txt", "");
  const std::string bracket = write("[c].txt", "");
  const auto names = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> found;
    for (const fs::path& path : expand_inputs(arguments, "text")) found.push_back(path.string());
    return found;
  };
  EXPECT_EQ(names({(dir_ / "x").string()}), (std::vector<std::string>{b, a}));
  EXPECT_EQ(names({a, (dir_ / "x").string(), b}), (std::vector<std::string>{a, b}));
  EXPECT_EQ(names({(dir_ / "x/*").string()}), (std::vector<std::string>{b, a}));
  EXPECT_EQ(names({bracket}), (std::vector<std::string>{bracket}));
}

}  // namespace
}  // namespace nmoe
