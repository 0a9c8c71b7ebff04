// scripts/corpus_packages.py and scripts/corpus_speedrun.sh, without a network.
#include <map>
#include <nlohmann/json.hpp>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

using test::Program;

const std::string kScripts = std::string(NMOE_SOURCE_DIR) + "/scripts/";

class CorpusTest : public CliTest {
 protected:
  Outcome run(const std::vector<std::string>& command) const { return Program(dir_, command).wait(); }

  void put(const fs::path& name, std::string_view content) const {
    make_directories((dir_ / name).parent_path());
    write(name, content);
  }
  // The documents that the packages in unpacked/ give: text by id, in the order of the ids.
  std::map<std::string, std::string> collect(const std::string& kind) {
    const Outcome outcome =
        run({"python3", kScripts + "corpus_packages.py", kind, "unpacked", "out.jsonl", "sample.txt"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    said_ = outcome.out;
    std::map<std::string, std::string> documents;
    const std::string lines = read_file(dir_ / "out.jsonl");
    for (size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
      const auto document = nlohmann::json::parse(lines.substr(at, lines.find('\n', at) - at));
      EXPECT_TRUE(documents.emplace(document["id"], document["text"]).second) << document["id"];
    }
    return documents;
  }

  std::string said_;
};

TEST_F(CorpusTest, SourceFilesAreDocuments) {
  put("unpacked/a/usr/src/x.go", "package x\n");
  put("unpacked/a/usr/src/x.png", "no text");
  put("unpacked/a/usr/src/y.py", "print('\xc3\xa9')\n");
  put("unpacked/b/z.rs", "// \xff\n");
  const std::map<std::string, std::string> wanted = {{"a/usr/src/x.go", "package x\n"},
                                                     {"a/usr/src/y.py", "print('\xc3\xa9')\n"}};
  EXPECT_EQ(collect("code"), wanted);
  EXPECT_TRUE(contains(said_, "a: 2 documents"));
  EXPECT_TRUE(contains(said_, "b: 0 documents, 0.0 MB, 1 files that are not UTF-8 left out"));
  EXPECT_EQ(read_file(dir_ / "sample.txt"), "package x\n\n");
  EXPECT_TRUE(collect("prose").empty());
}

TEST_F(CorpusTest, ManualsDictionariesAndGlossesAreProse) {
  put("unpacked/manual/doc/a.rst.txt", "Title\n=====\n");
  put("unpacked/manual/doc/translations/it/a.rst.txt", "Titolo\n");
  put("unpacked/words/w.dict", "About\n   1. Around.\n      [1913 Webster]\n\nAbove\n   It\x92s higher.\n");
  ASSERT_EQ(run({"gzip", "-S", ".dz", "unpacked/words/w.dict"}).exit_code, 0);
  put("unpacked/wordnet/data.noun",
      "  1 a licence\n00001740 03 n 02 entity 0 living_thing 0 001 ~ 00001930 n 0000 | that which exists  \n");
  const std::map<std::string, std::string> wanted = {
      {"manual/doc/a.rst.txt", "Title\n=====\n"},
      {"words/w.dict.dz#0", "About\n   1. Around.\n\nAbove\n   It\xe2\x80\x99s higher.\n"},
      {"wordnet/data.noun#0", "entity, living thing: that which exists"}};
  EXPECT_EQ(collect("prose"), wanted);
}

TEST_F(CorpusTest, OutOfParquet) {
  ASSERT_EQ(
      run({"python3", kScripts + "make_corpus_set.py", "train.txt", "--out", "set", "--megabytes", "1"}).exit_code, 0);
  const std::vector<std::string> command = {
      kScripts + "corpus_speedrun.sh", "--out", "corpus", "--tokenizer", "bytes", "set/set.parquet"};
  const Outcome outcome = run(command);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "Texts out of these files:\n"));
  EXPECT_TRUE(contains(outcome.out, "  set/set.parquet\n"));
  const std::string info = output({"data", "info", "corpus"});
  EXPECT_TRUE(outcome.out.ends_with(info));
  EXPECT_TRUE(contains(info, "corpus/train\n"));
  EXPECT_TRUE(contains(info, "corpus/valid\n"));
  EXPECT_EQ(run(command).out, "Texts out of these files:\n" +
                                  outcome.out.substr(outcome.out.find("files:\n") + std::string("files:\n").size()));
}

TEST_F(CorpusTest, SaysHowItIsUsed) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"--out"}, {"novels"}, {"--what", "code"}, {"code", "set.parquet"}}) {
    std::vector<std::string> command = {kScripts + "corpus_speedrun.sh"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "FILE.parquet...")) << outcome.err;
  }
  const Outcome missing = run({kScripts + "corpus_speedrun.sh", "--out", "corpus", "nowhere.parquet"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(contains(missing.err, "nowhere.parquet does not exist"));
  EXPECT_FALSE(fs::exists(dir_ / "corpus"));
}

}  // namespace
}  // namespace nmoe
