// Every input that is kept, and each of them cut and with bytes changed, through its target.
//
// NMOE_FUZZ_SECONDS=600 goes on with changes for that long for each target, or for NMOE_FUZZ_TARGET alone. What is
// being run lies in the file NMOE_FUZZ_INPUT, if that is set, and so survives a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
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

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST(FuzzCorpusTest, EveryInputIsReadOrRefused) {
  constexpr int kChanges = 20;  // of each input
  const std::string seconds = environment("NMOE_FUZZ_SECONDS"), only = environment("NMOE_FUZZ_TARGET");
  const std::string save = environment("NMOE_FUZZ_INPUT");
  for (const fuzz::Target& target : fuzz::targets()) {
    if (!only.empty() && only != target.name) continue;
    const auto run = [&](const std::string& bytes) {
      if (!save.empty()) write_file_atomically(save, bytes);
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
    if (seconds.empty()) continue;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::stol(seconds));
    int64_t count = 0;
    for (; std::chrono::steady_clock::now() < end; ++count) {
      run(changed(inputs[random() % inputs.size()], random));
      if (HasFatalFailure()) return;
    }
    fmt::print("{}: {} inputs\n", target.name, count);
  }
}

}  // namespace
}  // namespace nmoe
