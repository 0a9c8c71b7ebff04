// Preparation as a user meets it: killed, short of space, and looked into afterwards.
#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <thread>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class PrepCommandTest : public CliTest {
 protected:
  // Two files of short documents, some of them equal or nearly so, some bad: a dozen batches.
  void write_corpus() const {
    std::mt19937 random(4);
    std::vector<std::string> recent;
    for (const char* name : {"a.jsonl", "b.jsonl"}) {
      std::string lines;
      for (int i = 0; i < 60'000; ++i) {
        std::string text;
        if (recent.size() < 10 || random() % 10 != 0) {
          for (size_t words = 4 + random() % 9; words > 0; --words) text += fmt::format("{:x} ", random() % 999'999);
          recent.push_back(text);
          if (recent.size() > 300) recent.erase(recent.begin(), recent.begin() + 150);
        } else {
          text = recent[random() % recent.size()];
          if (random() % 2 == 0) text.back() = '.';
        }
        lines += fmt::format("{{\"id\": {}, \"prompt\": \"{:x}?\", \"text\": \"{}\"}}\n", i, i % 3, text);
        if (i == 33'333) lines += "{\"id\": 5}\n";
      }
      write(name, lines);
    }
  }

  static std::vector<std::string> prep(const std::string& out) {
    return {"prep",
            "a.jsonl",
            "b.jsonl",
            "--out",
            out,
            "--valid-fraction",
            "0.1",
            "--id-field",
            "id",
            "--dedup",
            "--near-dedup",
            "--near-dedup-threshold",
            "0.9",
            "--tokens-per-shard",
            "1000000",
            "--skip-bad",
            "2",
            "--threads",
            "2",
            "--prompt-field",
            "prompt",
            "--min-chars",
            "20",
            "--checkpoint-every",
            "0"};
  }

  // Every file below a folder, without the times in it.
  std::map<std::string, std::string> written(const fs::path& out) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / out)) {
      if (!entry.is_regular_file()) continue;
      std::string& content = files[fs::relative(entry.path(), dir_ / out).string()];
      content = read_file(entry.path());
      const size_t place = content.find("\"created_at\"");
      if (place != std::string::npos) content.erase(place, content.find('\n', place) - place);
    }
    return files;
  }

  std::string journal() const {
    const fs::path path = dir_ / "killed/.prep/journal.json";
    try {
      return fs::exists(path) ? read_file(path) : "";
    } catch (const Error&) {
      return "";  // gone in between
    }
  }
};

// kill -9 after every checkpoint, at a moment of its own each time, then once more to the end.
TEST_F(PrepCommandTest, AKilledPreparationGoesOn) {
  write_corpus();
  output(prep("straight"));
  const auto expected = written("straight");
  EXPECT_GE(expected.size(), 20U);  // several shards, each with index and mask

  // Killed when all but the end is done, it is let run: otherwise it might never get there.
  const fs::path manifest = dir_ / "killed/train/manifest.json";
  int kills = 0;
  int resumed = 0;
  std::string before;
  for (bool ended = false; !ended; ++kills) {
    std::vector<std::string> command = prep("killed");
    command.insert(command.begin(), NMOE_PROGRAM);
    const bool was_placed = fs::exists(manifest);
    test::Program program(dir_, command);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(300);
    while (journal() == before && !fs::exists(manifest)) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!was_placed) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kills * 7 % 20));
      program.send(SIGKILL);
    }
    const Outcome outcome = program.wait();
    EXPECT_TRUE(outcome.exit_code == 128 + SIGKILL || outcome.exit_code == 0) << outcome.err;
    before = journal();
    ended = before.empty() && fs::exists(manifest);
    resumed += before.empty() ? 0 : 1;
  }
  EXPECT_GE(kills, 4);
  EXPECT_GE(resumed, 3);
  fs::remove_all(dir_ / "killed/.prep");  // what was left when it was killed at the very end
  const auto found = written("killed");
  for (const auto& [name, content] : expected) EXPECT_TRUE(found.contains(name) && found.at(name) == content) << name;
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_TRUE(contains(output({"data", "verify", "killed"}), "killed/train is whole"));
  // Who was killed behind the last step of all may be called again.
  EXPECT_TRUE(contains(output(prep("killed")), "killed holds what these files and options make"));
}

TEST_F(PrepCommandTest, NoSpaceLeft) {
  write_corpus();
  output(prep("straight"));
  // As a full disk: files cannot grow beyond 20 MB, which the signatures of the third batch would need.
  std::vector<std::string> limited = {"sh", "-c", "trap '' XFSZ; ulimit -f 40000; exec \"$0\" \"$@\"", NMOE_PROGRAM};
  for (const std::string& argument : prep("limited")) limited.push_back(argument);
  const Outcome outcome = test::Program(dir_, limited).wait();
  expect_error(outcome, 1, "cannot write 'limited/", "the same command goes on from there");
  EXPECT_FALSE(fs::exists(dir_ / "limited/train/manifest.json"));
  EXPECT_TRUE(contains(output(prep("limited")), "went on after record "));
  EXPECT_TRUE(written("limited") == written("straight"));
}

TEST_F(PrepCommandTest, TwoAtOnce) {
  write_corpus();
  std::vector<std::string> command = prep("killed");
  command.insert(command.begin(), NMOE_PROGRAM);
  test::Program program(dir_, command);
  while (journal().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(SIGSTOP);
  expect_error(n(prep("killed")), 1, "another process is at work on 'killed/.prep'", "wait for it");
  program.send(SIGCONT);
  EXPECT_EQ(program.wait().exit_code, 0);
}

TEST_F(PrepCommandTest, BadRecordsAreToldAndCounted) {
  write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": 1}\n{}\n");
  expect_error(n({"prep", "a.jsonl", "--out", "data"}), 1, "'a.jsonl', line 2: \"text\" is a number, not a string",
               "--skip-bad");
  expect_error(n({"prep", "a.jsonl", "--out", "data", "--skip-bad", "1"}), 1, "'a.jsonl', line 3: no field \"text\"",
               "more than the 1 bad records");
  EXPECT_FALSE(fs::exists(dir_ / "data"));
  const std::string text = output({"prep", "a.jsonl", "--out", "data", "--skip-bad", "2"});
  EXPECT_TRUE(contains(text, "bad record"));
  EXPECT_TRUE(contains(text, "66.667 %"));
  EXPECT_TRUE(contains(read_file(dir_ / "data/report.json"), "'a.jsonl', line 3"));
  EXPECT_TRUE(contains(read_file(dir_ / "data/dropped.jsonl"), "\"record\":2,\"reason\":\"bad record\""));
}

// A page that makes DuckDB read beyond its memory, found by fuzzing. Whether it crashes depends on what lies there.
TEST_F(PrepCommandTest, AParquetPageThatCrashesDuckDbIsToldAsAnError) {
  fs::copy(fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/parquet/altered_page.parquet", dir_ / "a.parquet");
  const Outcome outcome = n({"prep", "a.parquet", "--id-field", "id", "--out", "data"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "'a.parquet'")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "\nremedy: ")) << outcome.err;
  EXPECT_FALSE(fs::exists(dir_ / "data/train/manifest.json"));
}

TEST_F(PrepCommandTest, FilesThatAreNoTextAreRefused) {
  write("latin.txt", "caf\xE9\n");
  expect_error(n({"prep", "latin.txt", "--out", "data"}), 1, "'latin.txt': the text is not valid UTF-8: byte 4 (0xE9)",
               "convert the file to UTF-8");
  write("program", std::string("\x7F"
                               "ELF\2\1\1\0\0",
                               9));
  expect_error(n({"prep", "program", "--out", "data"}), 1, "'program': it is a program, not text", "--skip-bad");
  for (const char* name : {"a.csv", "a.tsv.gz", "a.txt.xz", "a.tar.gz", "a.zip"}) write(name, "a,b\n1,2\n");
  expect_error(n({"prep", "a.csv", "--out", "data"}), 2, "'a.csv' is a table, not text", "JSON lines or Parquet");
  expect_error(n({"prep", "a.tsv.gz", "--out", "data"}), 2, "'a.tsv.gz' is a table", "JSON lines or Parquet");
  for (const char* name : {"a.txt.xz", "a.tar.gz", "a.zip"}) {
    expect_error(n({"prep", name, "--out", "data"}), 2, fmt::format("'{}' is compressed or packed", name), ".zst");
  }
  EXPECT_FALSE(fs::exists(dir_ / "data"));
  // What is no text is no bad record, however many are allowed.
  expect_error(n({"prep", "latin.txt", "program", "train.txt", "--skip-bad", "2", "--out", "data"}), 1,
               "'program': it is a program, not text", "leave the file out");
  output({"prep", "latin.txt", "train.txt", "--skip-bad", "1", "--out", "other"});
}

TEST_F(PrepCommandTest, OneTextIsSplitAtBlankLinesOrByPosition) {
  write("a.txt", "one\ntwo\n\nthree\n\n\nfour\n");
  output({"prep", "a.txt", "--split-on", "", "--out", "data"});
  EXPECT_TRUE(contains(output({"data", "info", "data"}), "documents    3"));
  EXPECT_TRUE(contains(output({"data", "sample", "data", "--document", "1"}), "6 and the end of document\nthree\n"));
  expect_error(n({"prep", "a.txt", "--valid-fraction", "0.3", "--out", "tail"}), 2, "no document is left", "");
  output({"prep", "a.txt", "--valid-tail", "0.3", "--out", "tail"});
  EXPECT_TRUE(contains(output({"data", "sample", "tail", "--split", "valid"}), "\n\nfour\n"));
}

// From conversations to a model that has seen the assistant's turns alone.
TEST_F(PrepCommandTest, ConversationsAreLearnedFromTheAssistant) {
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    lines += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"what is {}?\"}}, {{\"role\": "
        "\"assistant\", \"content\": \"it is {}\"}}]}}\n",
        i, i + 1);
  }
  write("chats.jsonl", lines);
  output({"tokenizer", "train", "chats.jsonl", "--messages-field", "messages", "--vocab-size", "270", "--special",
          "<|im_start|>", "--special", "<|im_end|>", "--out", "tokenizer.json"});
  const std::vector<std::string> prep_chats = {"prep",
                                               "chats.jsonl",
                                               "--messages-field",
                                               "messages",
                                               "--tokenizer",
                                               "tokenizer.json",
                                               "--valid-fraction",
                                               "0.2",
                                               "--out",
                                               "data"};
  output(prep_chats);
  const std::string sample = output({"data", "sample", "data"});
  EXPECT_TRUE(contains(sample,
                       " tokens]\n<|im_start|>user\nwhat is 1?<|im_end|>\n<|im_start|>assistant\n\n[text]\nit is "
                       "2<|im_end|>\n"));
  EXPECT_TRUE(contains(output({"data", "info", "data"}), "with a loss mask"));
  EXPECT_TRUE(contains(read_file(dir_ / "data/report.json"), "\"messages_field\": \"messages\""));
  EXPECT_TRUE(contains(output(train({"train.steps=2"})), "validation loss"));

  expect_error(n({"prep", "chats.jsonl", "--messages-field", "messages", "--out", "other"}), 2,
               "ChatML needs <|im_start|>, which is", "n tokenizer train");
  expect_error(n({"prep", "chats.jsonl", "--out", "other"}), 1, "no field \"text\"", "--messages-field");
  expect_error(n({"prep", "chats.jsonl", "--chat-template", "x.jinja", "--out", "other"}), 2, "--messages-field", "");
  write("refuses.jinja", "{{ raise_exception('roles must alternate') }}");
  expect_error(
      n({"prep", "chats.jsonl", "--messages-field", "messages", "--chat-template", "refuses.jinja", "--out", "other"}),
      1, "'chats.jsonl', line 1: ", "--skip-bad");
}

// A template that leaves the reasoning of earlier turns out, as Qwen3's does.
TEST_F(PrepCommandTest, AReplyIsLearnedAsTheModelSeesIt) {
  write(
      "chats.jsonl",
      R"({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "reasoning_content": "r1", "content": "a1"}, )"
      R"({"role": "user", "content": "two"}, {"role": "assistant", "reasoning_content": "r2", "content": "a2"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "reasoning_content": "r1", "content": "a1"}]})"
      "\n");
  write("thinking.jinja",
        "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role[0] }}: {% if m.role == 'assistant' and loop.last %}"
        "({{ m.reasoning_content }}) {% endif %}{{ m.content }}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}a: {% endif %}");
  const std::vector<std::string> prep = {
      "prep", "chats.jsonl", "--messages-field", "messages", "--chat-template", "thinking.jinja", "--out", "data"};
  const std::string said = output(prep);
  EXPECT_TRUE(contains(said, "conversations with one document for each reply: 1 (documents: 2)")) << said;
  EXPECT_TRUE(contains(said, "the chat template writes the date: 2025-01-01 (--template-date)")) << said;
  EXPECT_TRUE(contains(said, "train 3 documents")) << said;
  const auto document = [&](const char* number) {
    return output({"data", "sample", "data", "--document", number, "--count", "1"});
  };
  EXPECT_TRUE(contains(document("0"), "2025u: one\na: \n[text]\n(r1) a1\n")) << document("0");
  EXPECT_TRUE(contains(document("1"), "2025u: one\na: a1\nu: two\na: \n[text]\n(r2) a2\n")) << document("1");
  EXPECT_EQ(read_file(dir_ / "data/chat_template.jinja"), read_file(dir_ / "thinking.jinja"));
  EXPECT_TRUE(contains(read_file(dir_ / "data/report.json"), "\"one_document_a_reply\""));
  EXPECT_TRUE(contains(output(prep), "conversations with one document for each reply: 1 (documents: 2)"));

  // What the template would lose is named.
  write("weights.jsonl", R"({"messages": [{"role": "assistant", "content": "a", "learn": false}]})");
  expect_error(n({"prep", "weights.jsonl", "--messages-field", "messages", "--chat-template", "thinking.jinja", "--out",
                  "other"}),
               1, "message 1 has \"learn\", at which the chat template does not look", "--ignore-field learn");
  output({"prep", "weights.jsonl", "--messages-field", "messages", "--chat-template", "thinking.jinja",
          "--ignore-field", "learn", "--out", "other"});
}

TEST_F(PrepCommandTest, AMissingFieldIsToldWithThoseThereAre) {
  write("a.jsonl", "{\"content\": \"one\", \"id\": 7}\n{\"content\": \"two\"}\n{\"id\": 9}\n");
  expect_error(n({"prep", "a.jsonl", "--out", "data"}), 1, "'a.jsonl', line 1: no field \"text\"",
               "the object has \"content\" or \"id\": see --text-field");
  expect_error(n({"prep", "a.jsonl", "--out", "data", "--text-field", "content"}), 1,
               "'a.jsonl', line 3: no field \"content\"", "the object has \"id\": see --text-field");
  output({"prep", "a.jsonl", "--out", "data", "--text-field", "content", "--skip-bad", "1"});
}

TEST_F(PrepCommandTest, LooksIntoData) {
  write("a.jsonl",
        "{\"text\": \"first text\", \"q\": \"A: \"}\n{\"text\": \"second\", \"q\": \"\"}\n"
        "{\"text\": \"third one\", \"q\": \"C: \"}\n");
  output({"prep", "a.jsonl", "--prompt-field", "q", "--tokens-per-shard", "15", "--out", "data"});
  const std::string info = output({"data", "info", "data"});
  for (const char* part : {"bytes, 257 ids, end of document 256", "uint16, with a loss mask", "tokens       34 (34)",
                           "documents    3", "shards       3", "31 bytes", "least 7,", "50 % 13", "most 14 tokens"}) {
    EXPECT_TRUE(contains(info, part));
  }
  EXPECT_TRUE(contains(output({"data", "info", "data/train/"}), "documents    3"));

  EXPECT_EQ(output({"data", "sample", "data"}),
            "--- document 0, tokens [0, 14): 13 and the end of document\n[prompt, 3 tokens]\nA: \n[text]\nfirst "
            "text\n");
  EXPECT_EQ(output({"data", "sample", "data", "--position", "14"}),
            "--- document 1, tokens [14, 21): 6 and the end of document\nsecond\n");
  EXPECT_EQ(output({"data", "sample", "data", "--position", "20"}),
            output({"data", "sample", "data", "--document", "1"}));
  const std::string all = output({"data", "sample", "data", "--seed", "3", "--count", "9"});
  for (const char* part : {"first text", "second", "third one"}) EXPECT_TRUE(contains(all, part));
  EXPECT_EQ(all, output({"data", "sample", "data", "--seed", "3", "--count", "9"}));
  expect_error(n({"data", "sample", "data", "--document", "3"}), 2, "there is no document 3", "from 0 to 2");
  expect_error(n({"data", "sample", "data", "--position", "34"}), 2, "there is no token 34", "from 0 to 33");
  expect_error(n({"data", "sample", "data", "--split", "valid"}), 1, "no dataset in 'data/valid'", "");
  expect_error(n({"data", "info", "nowhere"}), 1, "no dataset in 'nowhere'", "n prep");

  const std::string verified = output({"data", "verify", "data"});
  EXPECT_EQ(std::ranges::count(verified, '\n'), 4);
  EXPECT_TRUE(contains(verified, "data/train/corpus-v1-shard-000001.npy: 7 tokens, 1 documents, whole"));

  // The first shard that fails ends it.
  const fs::path shard = dir_ / "data/train/corpus-v1-shard-000001.npy";
  const std::string good = read_file(shard);
  std::string bad = good;
  bad[130] ^= 1;
  write(fs::relative(shard, dir_), bad);
  const Outcome outcome = n({"data", "verify", "data"});
  expect_error(outcome, 1, "corpus-v1-shard-000001.npy': its SHA-256 is not the manifest's", "n prep");
  EXPECT_TRUE(contains(outcome.out, "shard-000000.npy"));
  EXPECT_FALSE(contains(outcome.out, "shard-000002.npy"));
  write(fs::relative(shard, dir_), good);

  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "data/tokenizer.json"});
  expect_error(n({"data", "verify", "data"}), 1, "data/tokenizer.json': it is not the tokenizer of", "n prep");
  fs::remove(dir_ / "data/train/manifest.json");
  expect_error(n({"data", "verify", "data"}), 1, "'data/train' has no manifest.json", "restore the file");
}

// In a unit in which it is seen.
TEST_F(PrepCommandTest, ProgressOfALittleText) {
  write("a.txt", std::string(5'000, 'x'));
  EXPECT_TRUE(contains(n({"prep", "a.txt", "--out", "data"}).err, "prep kB 5/5 "));
}

// Ten bytes of prompt, two of text and the end, of which a target of windows is the next token.
TEST_F(PrepCommandTest, InfoCountsWindowsWithATokenToLearn) {
  write("pairs.jsonl", R"({"prompt": "0123456789", "text": "ab"})");
  output({"prep", "pairs.jsonl", "--prompt-field", "prompt", "--out", "pairs"});
  const auto told = [&](const char* seq_len) { return output({"data", "info", "pairs", "--seq-len", seq_len}); };
  EXPECT_TRUE(contains(told("4"), "1 of 3 windows of 4 tokens have a token to learn"));
  EXPECT_TRUE(contains(told("2"), "2 of 6 windows of 2 tokens"));
  EXPECT_TRUE(contains(told("13"), "0 of 0 windows of 13 tokens"));
  output({"prep", "train.txt", "--out", "data"});
  EXPECT_FALSE(contains(output({"data", "info", "data"}), "windows of"));  // all is learned
}

}  // namespace
}  // namespace nmoe
