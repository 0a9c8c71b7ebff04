#include "track/log_tail.h"

#include <algorithm>
#include <fstream>

namespace nmoe {

std::string log_tail(const fs::path& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<size_t>(file.tellg());
  const size_t count = std::min(size, max_bytes);
  std::string text(count, '\0');
  file.seekg(static_cast<std::streamoff>(size - count));
  file.read(text.data(), static_cast<std::streamsize>(count));
  text.resize(static_cast<size_t>(file.gcount()));
  if (count < size) text.erase(0, text.find('\n') + 1);
  return text;
}

}  // namespace nmoe
