#include "data/prep/prep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "data/parquet_files.h"
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
  const std::string b = write("b.txt", "second\xC3\xA9\n");
  const std::string empty = write("empty.txt", "");
  const PrepReport report = prepare_dataset({.inputs = {b, empty, a}, .out = out()});
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"second\xC3\xA9\n", "first"}));
  EXPECT_FALSE(fs::exists(out() / "valid"));
  EXPECT_EQ(report.train.documents, 2);
  EXPECT_EQ(report.train.tokens, 16);
  EXPECT_EQ(report.train.bytes, 14);
  EXPECT_EQ(report.train.shards, 1);
  EXPECT_EQ(report.valid.documents, 0);
  EXPECT_EQ(report.dropped.at("empty").records, 1);
  EXPECT_FALSE(report.dropped.contains("bad record"));
  const TokenDataset dataset(out() / "train");
  EXPECT_EQ(dataset.manifest().tokenizer, "bytes");
  EXPECT_EQ(dataset.manifest().tokenizer_hash, byte_tokenizer()->hash());
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

// One long text, as tutorials have it: its end validates.
TEST_F(PrepTest, AFilesTailValidates) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("line {}\n", i);
  const std::string a = write("a.txt", text);
  const std::string b = write("b.txt", "left right");
  const PrepReport report = prepare_dataset({.inputs = {a, b}, .valid_tail = 0.1, .out = out()});
  const auto train = documents("train");
  const auto valid = documents("valid");
  ASSERT_EQ(train.size(), 2U);
  ASSERT_EQ(valid.size(), 2U);
  EXPECT_EQ(train[0] + valid[0], text);
  EXPECT_TRUE(valid[0].starts_with("line 90")) << valid[0].substr(0, 20);
  EXPECT_EQ(train[1] + "|" + valid[1], "left righ|t");
  EXPECT_EQ(report.records, 4);
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

std::string json_line(int i, const std::string& text) {
  return fmt::format("{{\"key\": {}, \"ask\": \"Q{} \", \"body\": \"{}\"}}\n", i, i, text);
}

TEST_F(PrepTest, FieldsAndMasks) {
  const std::string path = write("a.jsonl", json_line(7, "one") + json_line(8, "three"));
  prepare_dataset(
      {.inputs = {path}, .records = {.text_field = "body", .id_field = "key", .prompt_field = "ask"}, .out = out()});
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"Q7 one", "Q8 three"}));
  const TokenDataset dataset(out() / "train");
  std::vector<uint8_t> mask(static_cast<size_t>(dataset.num_tokens()));
  dataset.read_mask(0, mask);
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(dataset.total_bytes(), 14);
}

// Each rule drops what it is for, in the documented order, and all of it is told.
TEST_F(PrepTest, DropsAndTellsWhy) {
  std::string nearly;
  for (int i = 0; i < 60; ++i) nearly += fmt::format("word{} ", i * i);
  const std::string lines = json_line(0, "a good text") + json_line(1, "") + json_line(2, "x") +
                            json_line(3, "{{{}}} ++ ;;") + json_line(4, "l\\nl\\nl\\nl") + json_line(5, nearly) +
                            json_line(6, "a good text") + json_line(7, nearly + "more") +
                            json_line(8, "a text of too many tokens " + std::string(600, 'x')) +
                            json_line(9, "another text") + "no JSON\n";
  const std::string path = write("a.jsonl", lines);
  PrepOptions options{.inputs = {path},
                      .records = {.text_field = "body", .id_field = "key"},
                      .filters = {.min_chars = 2, .max_tokens = 600, .max_symbols = 0.5, .max_repeated_lines = 0.5},
                      .dedup = true,
                      .near_dedup = 0.82,
                      .out = out()};
  expect_error(ErrorKind::kRuntime, "a.jsonl', line 11: invalid JSON", [&] { prepare_dataset(options); });
  options.skip_bad = 1;
  const PrepReport report = prepare_dataset(options);
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"a good text", nearly, "another text"}));
  EXPECT_EQ(report.records, 11);
  std::map<std::string, int64_t> counts;
  for (const auto& [reason, count] : report.dropped) counts[reason] = count.records;
  EXPECT_EQ(counts, (std::map<std::string, int64_t>{{"bad record", 1},
                                                    {"empty", 1},
                                                    {"short", 1},
                                                    {"symbols", 1},
                                                    {"repeated lines", 1},
                                                    {"duplicate", 1},
                                                    {"near duplicate", 1},
                                                    {"long", 1}}));
  EXPECT_EQ(report.dropped.at("duplicate").bytes, 11);

  const std::string listed = read_file(out() / "dropped.jsonl");
  EXPECT_EQ(std::ranges::count(listed, '\n'), 8);
  EXPECT_TRUE(
      listed.starts_with(fmt::format("{{\"file\":\"{}\",\"record\":2,\"id\":\"1\",\"reason\":\"empty\"}}\n", path)))
      << listed;
  EXPECT_NE(listed.find("\"record\":4,\"id\":\"3\",\"reason\":\"symbols\",\"detail\":\"1.000\""), std::string::npos)
      << listed;
  const std::string told = read_file(out() / "report.json");
  EXPECT_NE(told.find("\"near duplicate\": {"), std::string::npos) << told;
  EXPECT_NE(told.find("line 11"), std::string::npos) << told;
}

TEST_F(PrepTest, EveryKindOfFileGivesTheSameDocuments) {
  const std::string one = "{\"text\": \"one\"}";
  const std::string two = "{\"text\": \"two\"}";
  const std::vector<std::string> expected = {"one", "two"};
  for (const std::string& path : {write("a.jsonl", one + "\n" + two), write("a.json", "[" + one + "," + two + "]"),
                                  write("a.ndjson", "\n" + one + "\n\n" + two + "\n")}) {
    PrepOptions options{.inputs = {path}, .out = out()};
    options.force = true;
    prepare_dataset(options);
    EXPECT_EQ(documents("train"), expected) << path;
  }
  // A folder's files are taken by their kind; descriptions beside them are not.
  write("hub/data/b.jsonl", two);
  write("hub/a.txt", "one");
  write("hub/README.md", "not this");
  write("hub/dataset_info.json", "{}");
  PrepOptions options{.inputs = {(dir_ / "hub").string()}, .out = out()};
  options.force = true;
  prepare_dataset(options);
  EXPECT_EQ(documents("train"), expected);
}

// A row that DuckDB cannot read costs itself, and no more than --skip-bad allows.
TEST_F(PrepTest, UnreadableParquetRowsAreBadRecords) {
  const fs::path path = dir_ / "a.parquet";
  test::run_sql(
      fmt::format("COPY (SELECT CASE WHEN i % 2500 = 7 THEN 'broken row ' ELSE 'a good row ' END || i AS text "
                  "FROM range(10000) t(i)) TO '{}' (FORMAT parquet, COMPRESSION uncompressed)",
                  path.string()));
  std::string content = read_file(path);
  for (size_t place = 0; (place = content.find("broken row ", place)) != std::string::npos;) content[place] = '\xFF';
  write("a.parquet", content);
  PrepOptions options{.inputs = {path.string()}, .skip_bad = 3, .out = out()};
  expect_error(ErrorKind::kRuntime, "a.parquet', row 7508: the row cannot be read", [&] { prepare_dataset(options); });
  options.skip_bad = 4;
  const PrepReport report = prepare_dataset(options);
  EXPECT_EQ(report.train.documents, 9'996);
  EXPECT_EQ(report.dropped.at("bad record").records, 4);
}

// With every rule that looks across documents, as with none.
TEST_F(PrepTest, ThreadsDoNotMatterToDuplicates) {
  std::mt19937 random(9);
  std::string lines;
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    if (!texts.empty() && random() % 4 == 0) {
      text = texts[random() % texts.size()];
      if (random() % 2 == 0) text[random() % text.size()] = '#';
    } else {
      for (size_t words = 10 + random() % 60; words > 0; --words) text += fmt::format("{:x} ", random() % 99999);
    }
    texts.push_back(text);
    lines += json_line(i, text);
  }
  PrepOptions options{.inputs = {write("a.jsonl", lines)},
                      .valid_fraction = 0.1,
                      .records = {.text_field = "body"},
                      .filters = {.max_symbols = 0.01, .max_repeated_ngrams = 0.1},
                      .dedup = true,
                      .near_dedup = 0.7,
                      .out = out(),
                      .tokens_per_shard = 100'000};
  options.threads = 1;
  const PrepReport report = prepare_dataset(options);
  EXPECT_GT(report.dropped.at("duplicate").records, 100);
  EXPECT_GT(report.dropped.at("near duplicate").records, 100);
  const auto one = timeless(out());
  options.threads = 3;
  options.force = true;
  prepare_dataset(options);
  EXPECT_EQ(timeless(out()), one);
}

// A failure after a checkpoint keeps the work; the next call with the same options needs only the rest.
TEST_F(PrepTest, GoesOnAfterAFailure) {
  std::string lines;
  for (int i = 0; i < 40'000; ++i) lines += json_line(i, fmt::format("text {}", i * 7919 % 30'000));
  const std::string good = write("good.jsonl", lines);
  PrepOptions options{.inputs = {good},
                      .valid_fraction = 0.1,
                      .records = {.text_field = "body"},
                      .dedup = true,
                      .out = out(),
                      .tokens_per_shard = 100'000,
                      .threads = 1,
                      .checkpoint_seconds = 0};
  prepare_dataset(options);
  const auto expected = timeless(out());
  fs::remove_all(out());

  write("good.jsonl", lines + "broken\n");
  expect_error(ErrorKind::kRuntime, "line 40001", [&] { prepare_dataset(options); });
  ASSERT_TRUE(fs::exists(out() / ".prep/journal.json"));
  EXPECT_FALSE(fs::exists(out() / "train/manifest.json"));
  // Other options, and files that have changed, are another work.
  PrepOptions other = options;
  other.dedup = false;
  expect_error(ErrorKind::kUsage, "with another dedup: \"true\", now \"false\"", [&] { prepare_dataset(other); });
  const auto time = fs::last_write_time(good);
  fs::last_write_time(good, time + std::chrono::seconds(1));
  expect_error(ErrorKind::kUsage, "with another inputs", [&] { prepare_dataset(options); });
  fs::last_write_time(good, time);

  options.skip_bad = 1;
  options.threads = 2;
  const PrepReport report = prepare_dataset(options);
  EXPECT_GT(report.resumed_records, 0);
  EXPECT_EQ(report.records, 40'001);
  EXPECT_FALSE(fs::exists(out() / ".prep"));
  auto files = timeless(out());
  for (const auto& [name, content] : expected) {
    if (name.starts_with("train") || name.starts_with("valid")) {
      EXPECT_EQ(files[name], content) << name;
    }
  }

  // --force begins anew with other options.
  fs::remove_all(out());
  options.skip_bad = 0;
  expect_error(ErrorKind::kRuntime, "line 40001", [&] { prepare_dataset(options); });
  const fs::path journal = out() / ".prep/journal.json";
  const std::string good_journal = read_file(journal);
  for (std::string damaged : {std::string("{"), good_journal}) {
    const size_t record = damaged.find("\"record\": ");
    if (record != std::string::npos) damaged.insert(record + 10, "-");
    write_file_atomically(journal, damaged);
    expect_error(ErrorKind::kRuntime, "not a journal of a preparation", [&] { prepare_dataset(options); });
  }
  other.skip_bad = 1;
  other.force = true;
  EXPECT_EQ(prepare_dataset(other).resumed_records, 0);
  EXPECT_FALSE(fs::exists(out() / ".prep"));
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

TEST_F(PrepTest, FindsItselfDone) {
  const std::string a = write("a.txt", "first");
  const std::string b = write("b.txt", "second");
  PrepOptions options{.inputs = {a}, .valid_inputs = {b}, .out = out()};
  const PrepReport made = prepare_dataset(options);
  EXPECT_FALSE(made.was_there);
  const auto before = contents(out());
  const PrepReport found = prepare_dataset(options);
  EXPECT_TRUE(found.was_there);
  EXPECT_EQ(found.train.tokens, made.train.tokens);
  EXPECT_EQ(found.valid.tokens, made.valid.tokens);
  EXPECT_EQ(found.records, 2);
  EXPECT_EQ(contents(out()), before);

  write("a.txt", "changed");  // what is there is of other text
  expect_error(ErrorKind::kUsage, "manifest.json", [&] { prepare_dataset(options); });
  EXPECT_EQ(contents(out()), before);
  options.force = true;
  EXPECT_FALSE(prepare_dataset(options).was_there);
  options.force = false;
  EXPECT_TRUE(prepare_dataset(options).was_there);
  fs::remove(out() / "valid" / "manifest.json");
  expect_error(ErrorKind::kUsage, "manifest.json", [&] { prepare_dataset(options); });
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
  expect_usage({.inputs = {a}, .valid_inputs = {a}, .valid_fraction = 0.1}, "more than one of files");
  expect_usage({.inputs = {a}, .valid_tail = 1.5}, "tail of 1.5");
  expect_usage({.inputs = {a}, .valid_tail = 0.1, .records = {.split_on = "x"}}, "--split-on cuts them into many");
  expect_usage({.inputs = {write("a.jsonl", "{}")}, .valid_tail = 0.1}, "--valid-tail is for plain text");
  expect_usage({.inputs = {a}, .valid_inputs = {a}}, "no document is left for training");
  expect_usage({.inputs = {a}, .valid_fraction = 1e-9}, "no document is left for validation");
  expect_usage({.inputs = {a}, .dataset = "a/b"}, "'a/b' cannot name a dataset");
  expect_usage({.inputs = {a}, .tokens_per_shard = 1}, "1 tokens per shard");
  expect_usage({.inputs = {(dir_ / "*.md").string()}}, "*.md");
  const std::string notes = write("notes/a.md", "text");
  expect_usage({.inputs = {(dir_ / "notes").string()}},
               "notes' holds no .txt, .jsonl, .ndjson or .parquet file, but 1 of other kinds, such as '" + notes + "'");
}

TEST_F(PrepTest, FilesOfOtherKindsInFoldersAreReported) {
  const std::string a = write("x/a.txt", "text"), b = write("x/sub/b.md", "text"), c = write("x/sub/c.json", "{}");
  const InputPaths inputs = expand_inputs({(dir_ / "x").string(), (dir_ / "x/*/*.md").string()}, "text");
  EXPECT_EQ(inputs.files, (std::vector<fs::path>{a, b}));
  EXPECT_EQ(inputs.skipped, (std::vector<fs::path>{c}));
  EXPECT_EQ(describe_left_out({}), "");
  for (const bool again : {false, true}) {
    const PrepReport report = prepare_dataset({.inputs = {(dir_ / "x").string()}, .out = out()});
    EXPECT_EQ(report.was_there, again);
    EXPECT_EQ(report.left_out.skipped, (std::vector<fs::path>{b, c}));
    const std::string note = describe_left_out(report.left_out);
    EXPECT_TRUE(note.starts_with("skipped 2 files in folders")) << note;
    EXPECT_NE(note.find(b), std::string::npos) << note;
  }
}

TEST_F(PrepTest, EmptyFilesOfEveryKindAreNamedAndHoldNothing) {
  const std::string text = write("x/a.jsonl", "{\"text\": \"one\"}\n");
  std::vector<fs::path> empty;
  for (const char* name : {"x/b.jsonl", "x/b.jsonl.gz", "x/b.jsonl.zst", "x/b.parquet"})
    empty.push_back(write(name, ""));
  const PrepReport report = prepare_dataset({.inputs = {(dir_ / "x").string()}, .out = out()});
  EXPECT_EQ(report.train.documents, 1);
  EXPECT_EQ(report.left_out.empty, empty);
  EXPECT_EQ(describe_left_out(report.left_out),
            fmt::format("found nothing in 4 empty files: such as '{}'\n", empty.front().string()));
}

TEST_F(PrepTest, InputsAreSortedAndTakenOnce) {
  const std::string b = write("x/b.txt", "");
  const std::string a = write("x/sub/a.txt", "");
  const std::string bracket = write("[c].txt", "");
  const auto names = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> found;
    for (const fs::path& path : expand_inputs(arguments, "text").files) found.push_back(path.string());
    return found;
  };
  EXPECT_EQ(names({(dir_ / "x").string()}), (std::vector<std::string>{b, a}));
  EXPECT_EQ(names({a, (dir_ / "x").string(), b}), (std::vector<std::string>{a, b}));
  EXPECT_EQ(names({(dir_ / "x/*").string()}), (std::vector<std::string>{b, a}));
  EXPECT_EQ(names({bracket}), (std::vector<std::string>{bracket}));
}

}  // namespace
}  // namespace nmoe
