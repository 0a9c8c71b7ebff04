#include "layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/program.h"

// NMOE_FOLDERS, NMOE_LINKS_FILE, NMOE_BUILD_DIR and NMOE_NINJA come from the build (CMakeLists.txt beside this file).

namespace nmoe::test {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> found;
  for (std::string word; in >> word;) found.push_back(word);
  return found;
}

FolderOrder repository_order() { return {fs::path(NMOE_SOURCE_DIR) / "src", words(NMOE_FOLDERS)}; }

// ---- the repository ----------------------------------------------------------------------------

TEST(Layout, ListsEveryFolderOnce) {
  std::vector<std::string> on_disk;
  for (const auto& entry : fs::directory_iterator(repository_order().src_dir())) {
    if (entry.is_directory()) on_disk.push_back(entry.path().filename().string());
  }
  std::vector<std::string> listed = repository_order().folders();
  std::sort(on_disk.begin(), on_disk.end());
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(listed, on_disk);
}

TEST(Layout, NoFolderIncludesUpward) {
  const FolderOrder order = repository_order();
  const Outcome deps = Program(NMOE_BUILD_DIR, {NMOE_NINJA, "-C", NMOE_BUILD_DIR, "-t", "deps"}).wait();
  ASSERT_EQ(deps.exit_code, 0) << deps.err;
  const std::vector<CompiledObject> objects = parse_ninja_deps(deps.out, NMOE_BUILD_DIR);

  std::set<std::string> seen;  // so that an empty listing does not pass
  for (const CompiledObject& object : objects) {
    for (const fs::path& file : object.files) seen.insert(order.folder_of(file));
  }
  for (const std::string& folder : order.folders()) {
    EXPECT_TRUE(seen.contains(folder)) << "nothing of src/" << folder << " is built";
  }
  EXPECT_EQ(one_a_line(upward_includes(objects, order, read_file)), "");
}

TEST(Layout, NoLibraryLinksUpward) {
  const std::vector<Link> links = parse_links(read_file(NMOE_LINKS_FILE));
  EXPECT_GE(links.size(), repository_order().folders().size());
  EXPECT_EQ(one_a_line(upward_links(links, repository_order())), "");
}

TEST(Layout, NoFileIsLong) {
  const std::set<std::string> extensions = {".h",  ".cpp", ".cu",  ".cuh",   ".py", ".sh",
                                            ".js", ".mjs", ".css", ".cmake", ".txt"};
  std::vector<fs::path> files;
  for (const char* folder : {"src", "tests", "bench", "scripts", "cmake"}) {
    for (auto at = fs::recursive_directory_iterator(fs::path(NMOE_SOURCE_DIR) / folder);
         at != fs::recursive_directory_iterator(); ++at) {
      if (at->is_directory() && at->path().filename() == "fixtures") at.disable_recursion_pending();
      if (at->is_regular_file() && extensions.contains(at->path().extension().string())) files.push_back(at->path());
    }
  }
  EXPECT_GT(files.size(), 100u);
  EXPECT_EQ(one_a_line(long_files(files, 700, read_file)), "");
}

// ---- the checks themselves, on made-up builds --------------------------------------------------

// Files of a made-up repository in /made/src, whose folders are base, tensor and ops in this order.
class MadeUp : public testing::Test {
 protected:
  std::vector<std::string> check(const std::string& listing) const {
    return upward_includes(parse_ninja_deps(listing, "/made/build"), order_,
                           [&](const fs::path& file) { return texts_.at(file.string()); });
  }

  const FolderOrder order_{"/made/src", {"base", "tensor", "ops"}};
  std::map<std::string, std::string> texts_;
};

TEST_F(MadeUp, DownwardIncludesPass) {
  texts_["/made/src/ops/add.cpp"] = "#include \"ops/add.h\"\n#include <string>\n";
  texts_["/made/src/ops/add.h"] = "#include \"tensor/tensor.h\"\n";
  texts_["/made/src/tensor/tensor.h"] = "";
  EXPECT_EQ(check("src/ops/add.cpp.o: #deps 4, deps mtime 17 (VALID)\n"
                  "    /made/src/ops/add.cpp\n"
                  "    /made/src/ops/add.h\n"
                  "    /usr/include/c++/12/string\n"
                  "    ../src/tensor/tensor.h\n"),
            std::vector<std::string>{});
}

TEST_F(MadeUp, AnUpwardIncludeOfASourceIsNamed) {
  texts_["/made/src/base/text.cpp"] = "// text\n  #  include \"tensor/tensor.h\"\n";
  texts_["/made/src/tensor/tensor.h"] = "";
  EXPECT_EQ(
      check("src/base/text.cpp.o: #deps 2, deps mtime 17 (VALID)\n"
            "    ../src/base/text.cpp\n"
            "    ../src/tensor/tensor.h\n"),
      std::vector<std::string>{"src/base/text.cpp uses \"tensor/tensor.h\": folder base may not use folder tensor, "
                               "which stands later in src/CMakeLists.txt"});
}

TEST_F(MadeUp, AHeaderIsNamedOnceForAllWhoIncludeIt) {
  // The sources may use both folders; the header between them may not.
  texts_["/made/src/ops/add.cpp"] = "#include \"base/text.h\"\n";
  texts_["/made/src/ops/mul.cpp"] = "#include \"base/text.h\"\n";
  texts_["/made/src/base/text.h"] = "#include \"../tensor/tensor.h\"\n";
  texts_["/made/src/tensor/tensor.h"] = "";
  EXPECT_EQ(check("add.o: #deps 3, deps mtime 17 (VALID)\n"
                  "    /made/src/ops/add.cpp\n"
                  "    /made/src/base/text.h\n"
                  "    /made/src/tensor/tensor.h\n"
                  "\n"
                  "mul.o: #deps 3, deps mtime 17 (VALID)\n"
                  "    /made/src/ops/mul.cpp\n"
                  "    /made/src/base/text.h\n"
                  "    /made/src/tensor/tensor.h\n"),
            std::vector<std::string>{"src/base/text.h uses \"../tensor/tensor.h\": folder base may not use folder "
                                     "tensor, which stands later in src/CMakeLists.txt"});
}

TEST_F(MadeUp, WhatNoTextExplainsIsStillFound) {
  texts_["/made/src/tensor/tensor.cpp"] = "#define HEADER \"ops/ops.h\"\n#include HEADER\n";
  texts_["/made/src/ops/ops.h"] = "";
  EXPECT_EQ(check("tensor.o: #deps 2, deps mtime 17 (VALID)\n"
                  "    /made/src/tensor/tensor.cpp\n"
                  "    /made/src/ops/ops.h\n"),
            std::vector<std::string>{"src/tensor/tensor.cpp uses src/ops/ops.h: folder tensor may not use folder ops, "
                                     "which stands later in src/CMakeLists.txt"});
}

TEST_F(MadeUp, AFolderThatIsNotListedMayUseNone) {
  texts_["/made/src/extra/extra.cpp"] = "#include \"base/text.h\"\n";
  texts_["/made/src/base/text.h"] = "";
  EXPECT_EQ(check("extra.o: #deps 2, deps mtime 17 (VALID)\n"
                  "    /made/src/extra/extra.cpp\n"
                  "    /made/src/base/text.h\n")
                .size(),
            1u);
}

TEST_F(MadeUp, AnUpwardLinkIsNamed) {
  const std::vector<Link> links = parse_links(
      "base nmoe_base nmoe_compile\n"
      "base nmoe_base nmoe_ops\n"
      "ops nmoe_ops nmoe_base\n");
  EXPECT_EQ(upward_links(links, order_),
            std::vector<std::string>{"library nmoe_base uses library nmoe_ops: folder base may not use folder ops, "
                                     "which stands later in src/CMakeLists.txt"});
}

TEST_F(MadeUp, ALongFileIsNamed) {
  const std::vector<fs::path> files = {"short.cpp", "long.cpp"};
  const auto read = [](const fs::path& file) { return file == "long.cpp" ? "1\n2\n3\n4\n" : "1\n2\n3\n"; };
  EXPECT_EQ(long_files(files, 3, read), std::vector<std::string>{"long.cpp has 4 lines; at most 3"});
}

}  // namespace
}  // namespace nmoe::test
