#include "data/shards/corpus_folder.h"

#include "base/error.h"
#include "base/files.h"
#include "data/shards/manifest.h"

namespace nmoe {

void check_corpus_folder(const fs::path& root, std::string_view tokenizer_json) {
  constexpr const char* kRemedy = "choose another output folder, or replace it with --force";
  for (const char* split : {"train", "valid"}) {
    const fs::path manifest = manifest_path(root / split);
    if (fs::exists(manifest)) {
      throw usage_error(fmt::format("there is a dataset already: '{}'", manifest.string()), kRemedy);
    }
  }
  const fs::path tokenizer = root / "tokenizer.json";
  if (fs::exists(tokenizer) && read_file(tokenizer) != tokenizer_json) {
    throw usage_error(fmt::format("'{}' is another tokenizer", tokenizer.string()), kRemedy);
  }
}

}  // namespace nmoe
