// What the documents and examples name is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/errors.h"

namespace nmoe::test {
namespace {

fs::path root() { return NMOE_SOURCE_DIR; }

std::vector<fs::path> files_in(const fs::path& folder, std::string_view extension) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == extension) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::vector<fs::path> documents() {
  std::vector<fs::path> files = files_in(root(), ".md");
  for (const char* folder : {"docs", "docs/log"}) {
    for (const fs::path& file : files_in(root() / folder, ".md")) files.push_back(file);
  }
  return files;
}

// The first group of every match.
std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

// Of the headings of a document, as links name them: lower case, blanks as dashes, of other signs only - and _.
std::set<std::string> anchors(const fs::path& document) {
  std::set<std::string> found;
  for (const std::string& heading : matches("\n" + read_file(document), R"(\n#+ ([^\n]+))")) {
    std::string anchor;
    for (const char c : heading) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (c == ' ') {
        anchor += '-';
      }
    }
    found.insert(anchor);
  }
  return found;
}

TEST(Docs, LinksLeadSomewhere) {
  int num_links = 0;
  for (const fs::path& document : documents()) {
    for (const std::string& link : matches(read_file(document), R"(\]\(([^)\s]+)\))")) {
      if (link.find("://") != std::string::npos) continue;
      const size_t hash = std::min(link.find('#'), link.size());
      const fs::path target = hash == 0 ? document : document.parent_path() / link.substr(0, hash);
      EXPECT_TRUE(fs::exists(target)) << document << ": " << link;
      if (hash < link.size() && fs::is_regular_file(target)) {
        EXPECT_TRUE(anchors(target).contains(link.substr(hash + 1))) << document << ": " << link;
      }
      ++num_links;
    }
  }
  EXPECT_GT(num_links, 30);
}

TEST(Docs, FilesThatAreNamedAreThere) {
  for (const fs::path& document : documents()) {
    const std::string text = read_file(document);
    for (std::string path : matches(text, R"(((?:configs|scripts)/[A-Za-z0-9_/.-]*[A-Za-z0-9_]))")) {
      const bool there = fs::exists(root() / path) || fs::exists(root() / (path + ".toml"));
      EXPECT_TRUE(there) << document << ": " << path;
    }
    // A template that a command reads is one that the documents write down.
    for (const std::string& file : matches(text, R"(--chat-template ([a-z0-9_]+\.jinja))")) {
      EXPECT_TRUE(contains(read_file(root() / "docs/serving.md"), "`" + file + "`, with")) << document << ": " << file;
    }
    // How many there are is for ctest to say.
    EXPECT_FALSE(std::regex_search(text, std::regex("tests failed out of [0-9]"))) << document;
  }
}

// An experiment is found by the table on top of its file, and the file by the index.
TEST(Docs, TheLogHasAnIndexAndTables) {
  const std::string index = read_file(root() / "docs/log/README.md");
  int num_files = 0;
  for (const fs::path& file : files_in(root() / "docs/log", ".md")) {
    const std::string name = file.filename();
    if (name == "README.md") continue;
    EXPECT_TRUE(contains(index, "(" + name + ")")) << name << " is not in docs/log/README.md";
    const std::string text = read_file(file);
    const size_t table = text.find("\n| date | tried | predicted | measured | kept |\n");
    EXPECT_LT(table, text.find("\n## ")) << name << ": no table on top";
    ++num_files;
  }
  EXPECT_GT(num_files, 10);
}

// An example trains on what its own comment, or a script that the comment names, makes.
TEST(Docs, ExamplesSayWhatMakesTheirData) {
  std::vector<fs::path> examples = files_in(root() / "configs/examples", ".toml");
  examples.push_back(root() / "configs/quickstart.toml");
  int num_paths = 0;
  for (const fs::path& example : examples) {
    if (example.filename() == "mixture.toml") continue;  // its sources stand for the user's
    const std::string text = read_file(example);
    for (const std::string& name : matches(text, R"(\npath = "\$\{NMOE_DATA:-data\}([^"]*)\")")) {
      bool made = !name.empty() && contains(text, "n data synthesize") && contains(text, " data" + name + " ");
      for (const std::string& script : matches(text, R"((scripts/[a-z_]+\.sh))")) {
        made = made || (!name.empty() && contains(read_file(root() / script), "data" + name + "\n"));
      }
      EXPECT_TRUE(made) << example << ": data" << name;
      ++num_paths;
    }
  }
  EXPECT_GT(num_paths, 4);
}

}  // namespace
}  // namespace nmoe::test
