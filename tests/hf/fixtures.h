// Models that transformers wrote, with what it computed from them (scripts/hf_fixture.py).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace nmoe::test {

// The folders under tests/fixtures/hf, and under $NMOE_HF_FIXTURES where that is set.
inline std::vector<std::filesystem::path> hf_fixtures() {
  namespace fs = std::filesystem;
  std::vector<fs::path> roots = {fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf"};
  if (const char* more = std::getenv("NMOE_HF_FIXTURES")) roots.emplace_back(more);
  std::vector<fs::path> found;
  for (const fs::path& root : roots) {
    if (!fs::is_directory(root)) continue;
    for (const auto& entry : fs::directory_iterator(root)) {
      if (fs::exists(entry.path() / "expected.safetensors")) found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace nmoe::test
