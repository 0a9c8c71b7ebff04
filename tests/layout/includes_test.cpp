#include "layout/includes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

// NMOE_FOLDERS comes from the build (CMakeLists.txt beside this file).

namespace nmoe::test {
namespace {

fs::path src() { return fs::path(NMOE_SOURCE_DIR) / "src"; }

std::vector<Include> includes_of_repository() {
  const std::set<std::string> extensions = {".h", ".cuh", ".cpp", ".cu"};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(src())) {
    if (entry.is_regular_file() && extensions.contains(entry.path().extension().string())) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  const std::vector<Include> includes = includes_among(files, src(), read_file);
  EXPECT_GT(includes.size(), 2000U);
  return includes;
}

// ---- the repository ----------------------------------------------------------------------------

TEST(Includes, NoUnitsIncludeEachOther) { EXPECT_EQ(one_a_line(circles_of_units(includes_of_repository())), ""); }

TEST(Includes, NoFileIncludesUpward) {
  std::istringstream in(NMOE_FOLDERS);
  std::vector<std::string> folders;
  for (std::string folder; in >> folder;) folders.push_back(folder);
  EXPECT_EQ(one_a_line(upward_includes(includes_of_repository(), FolderOrder(src(), folders))), "");
}

// The exchange of tokens is a library that stands by itself: it meets the model through what it declares.
TEST(Includes, TheExchangeKnowsOperationsRanksAndArenasOnly) {
  const std::set<std::string> may = {"base", "tensor", "ops", "parallel", "rdep"};
  for (const Include& include : includes_of_repository()) {
    if (*include.user.begin() != "rdep") continue;
    EXPECT_TRUE(may.contains(include.used.begin()->string())) << include.user << " includes " << include.used;
  }
}

// What a model consists of is known without a device.
TEST(Includes, DescriptionsOfModelsReachNoOperation) {
  EXPECT_EQ(one_a_line(ways_between(includes_of_repository(), "model/spec", "ops")), "");
}

// ---- the checks themselves, on made-up files ---------------------------------------------------

class MadeUpIncludes : public testing::Test {
 protected:
  std::vector<Include> includes() const {
    std::vector<fs::path> files;
    for (const auto& [file, text] : texts_) files.emplace_back(file);
    return includes_among(files, "/made/src", [&](const fs::path& file) { return texts_.at(file.string()); });
  }

  std::map<std::string, std::string> texts_;
};

TEST_F(MadeUpIncludes, AreReadBesideTheFileAndFromTheRoot) {
  texts_["/made/src/ops/add.h"] = "#include \"mul.h\"\n#include <string>\n#include \"base/text.h\"\n";
  texts_["/made/src/ops/mul.h"] = "// #include \"ops/add.h\"\n";
  texts_["/made/src/base/text.h"] = "";
  std::string found;
  for (const Include& include : includes()) found += include.user.string() + " " + include.used.string() + "\n";
  EXPECT_EQ(found, "ops/add.h ops/mul.h\nops/add.h base/text.h\n");
}

TEST_F(MadeUpIncludes, ACircleThroughSourcesIsFound) {
  texts_["/made/src/a/one.h"] = "";
  texts_["/made/src/a/one.cpp"] = "#include \"a/one.h\"\n#include \"a/two.h\"\n";
  texts_["/made/src/a/two.h"] = "";
  texts_["/made/src/a/two.cu"] = "#include \"a/two.h\"\n#include \"a/three.h\"\n";
  texts_["/made/src/a/three.h"] = "#include \"a/one.h\"\n";
  texts_["/made/src/a/beside.cpp"] = "#include \"a/one.h\"\n#include \"a/three.h\"\n";
  EXPECT_EQ(circles_of_units(includes()),
            std::vector<std::string>{"3 units include each other: a/one.cpp includes a/two.h; a/three.h includes "
                                     "a/one.h; a/two.cu includes a/three.h"});
}

TEST_F(MadeUpIncludes, AHeaderAndItsSourceAreNoCircle) {
  texts_["/made/src/a/one.h"] = "#include \"a/two.h\"\n";
  texts_["/made/src/a/one.cpp"] = "#include \"a/one.h\"\n#include \"a/two.h\"\n";
  texts_["/made/src/a/two.h"] = "";
  texts_["/made/src/b/two.h"] = "#include \"a/one.h\"\n";
  EXPECT_EQ(circles_of_units(includes()), std::vector<std::string>{});
}

TEST_F(MadeUpIncludes, AnUpwardIncludeIsFoundInWhatIsNotBuilt) {
  texts_["/made/src/base/text.cu"] = "#include \"ops/add.h\"\n";
  texts_["/made/src/ops/add.h"] = "#include \"base/text.h\"\n";
  texts_["/made/src/base/text.h"] = "";
  EXPECT_EQ(
      upward_includes(includes(), {"/made/src", {"base", "ops"}}),
      std::vector<std::string>{"base/text.cu includes ops/add.h, whose folder stands later in src/CMakeLists.txt"});
}

TEST_F(MadeUpIncludes, AWayThroughOtherFoldersIsFound) {
  texts_["/made/src/model/spec/spec.h"] = "#include \"model/parts.h\"\n";
  texts_["/made/src/model/parts.h"] = "#include \"ops/add.h\"\n";
  texts_["/made/src/model/spec/names.h"] = "#include \"base/text.h\"\n";
  texts_["/made/src/ops/add.h"] = "";
  texts_["/made/src/base/text.h"] = "";
  EXPECT_EQ(ways_between(includes(), "model/spec", "ops"),
            std::vector<std::string>{"model/spec/spec.h -> model/parts.h -> ops/add.h"});
}

}  // namespace
}  // namespace nmoe::test
