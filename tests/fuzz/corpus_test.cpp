// Every input that is kept, and each of them cut and with bytes changed, through its target. scripts/fuzz.sh looks for
// more.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "fuzz/targets.h"

namespace nmoe {
namespace {

// Cut, bytes changed, pieces of itself put elsewhere.
std::string changed(std::string bytes, std::mt19937& random) {
  if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
  for (size_t n = random() % 5; n > 0 && !bytes.empty(); --n) {
    const size_t place = random() % bytes.size();
    switch (random() % 4) {
      case 0:
        bytes[place] = static_cast<char>(random());
        break;
      case 1:
        bytes[place] = "[]{}()\"'0-9,:%|.="[random() % 17];
        break;
      case 2:
        bytes.insert(place, bytes.substr(random() % bytes.size(), random() % 40));
        break;
      default:
        bytes.erase(place, random() % 10);
    }
  }
  return bytes;
}

TEST(FuzzCorpusTest, EveryInputIsReadOrRefused) {
  constexpr int kChanges = 20;  // of each input
  for (const fuzz::Target& target : fuzz::targets()) {
    const auto run = [&](const std::string& bytes) {
      ASSERT_NO_THROW(target.run(bytes)) << target.name << ": " << bytes.substr(0, 2000);
    };
    run("");
    std::vector<std::string> inputs;
    for (const auto& entry : fs::directory_iterator(fs::path(NMOE_SOURCE_DIR) / "tests/fuzz/corpus" / target.name)) {
      inputs.push_back(read_file(entry.path()));
    }
    ASSERT_FALSE(inputs.empty()) << target.name;
    std::ranges::sort(inputs);  // the same changes wherever this runs
    std::mt19937 random(7);
    for (const std::string& input : inputs) {
      run(input);
      for (int i = 0; i < kChanges; ++i) run(changed(input, random));
    }
  }
}

}  // namespace
}  // namespace nmoe
