#include "cli/named_checkpoint.h"

#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"

namespace nmoe::cli {
namespace {

std::optional<fs::path> last_of(const fs::path& folder) {
  return fs::is_directory(folder) ? latest_checkpoint(folder) : std::nullopt;
}

}  // namespace

std::string tokenizer_source(const std::string& named) {
  const size_t at = fs::exists(named) ? std::string::npos : named.rfind('@');
  const auto last = last_of(named.substr(0, at));
  if (!last) return named;
  CheckpointReader::open(*last).tokenizer();  // or it says why there is none
  return last->string() + (at == std::string::npos ? "" : named.substr(at));
}

std::string template_source(const std::string& named) {
  const auto last = last_of(named);
  return last ? last->string() : named;
}

}  // namespace nmoe::cli
