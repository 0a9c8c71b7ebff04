// The commands of docs/first-hour.md, in order, as a reader types them.
#include <algorithm>
#include <sstream>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

// What is behind "$ ", with the lines that belong to it.
std::vector<std::string> read_commands() {
  std::vector<std::string> commands;
  std::istringstream text(read_file(fs::path(NMOE_SOURCE_DIR) / "docs/first-hour.md"));
  bool in_block = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("```")) in_block = !in_block;
    if (!in_block || !line.starts_with("$ ")) continue;
    std::string& command = commands.emplace_back(line.substr(2));
    while (command.ends_with("\\") && std::getline(text, line)) command += "\n" + line;
    if (!contains(command, "<<'END'")) continue;
    while (line != "END" && std::getline(text, line)) command += "\n" + line;
  }
  return commands;
}

class FirstHourTest : public CliTest {
 protected:
  // In a shell that knows `n`, as the alias of the document makes it.
  Outcome shell(const std::string& command, std::string_view input = "") const {
    const std::string script = "set -e\nn() { " NMOE_PROGRAM " \"$@\"; }\n" + command + "\n";
    return test::Program(dir_, {"bash", "-c", script}, input).wait();
  }

  // Novels for the corpus: chapters of our own documentation.
  void write_novels() const {
    std::string text;
    for (const char* folder : {"docs", "docs/log", "src/model", "src/train", "src/config"}) {
      for (const auto& entry : fs::directory_iterator(fs::path(NMOE_SOURCE_DIR) / folder)) {
        if (entry.is_regular_file() && entry.path().extension() != ".png" && entry.path().extension() != ".svg")
          text += read_file(entry);
      }
    }
    constexpr size_t kChapter = 4000;
    for (size_t begin = 0; begin < text.size(); begin = std::min(text.size(), text.find('\n', begin + kChapter))) {
      text.insert(begin, "\nCHAPTER I\n");
    }
    make_directories(dir_ / "data/austen-text/train");
    write("data/austen-text/train/novel.txt", text);
  }
};

TEST_F(FirstHourTest, EveryCommandWorks) {
  write_novels();
  fs::create_directory_symlink(fs::path(NMOE_SOURCE_DIR) / "examples", dir_ / "examples");
  std::string all;
  for (std::string command : read_commands()) {
    SCOPED_TRACE(command);
    all += command + "\n";
    // The package, and what needs a second terminal, have tests of their own.
    if (command.starts_with("scripts/") || command.starts_with("n serve") || command.starts_with("curl")) continue;
    if (command.starts_with("n train")) command += " --set train.steps=2";
    const Outcome outcome = shell(command, "What is nmoe?\n/exit\n");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    if (command.starts_with("n plan")) {
      EXPECT_TRUE(contains(outcome.out, "  150 steps of 2048 tokens: 307.20 k tokens"));
    }
    if (command.starts_with("n export")) {
      EXPECT_TRUE(contains(outcome.out, "as deepseek_v3: 193 tensors"));
    }
  }
  for (const char* part : {"tokenizer train", "n prep mine", "--template tiny", "n plan", "n train mine.toml", "n runs",
                           "n generate", "n prep examples", "finetune.toml", "n chat", "n serve", "n export"}) {
    EXPECT_TRUE(contains(all, part));
  }
}

}  // namespace
}  // namespace nmoe
