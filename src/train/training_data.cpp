#include "train/training_data.h"

#include "base/files.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

void check_tokenizer(const TokenDataset& dataset, const Tokenizer& tokenizer) {
  if (dataset.tokenizer_hash() == tokenizer.hash()) return;
  throw runtime_error(
      fmt::format("{} was prepared with another tokenizer than the tokenizer.json beside it", dataset.dir().string()),
      "prepare the corpus again with `n prep`");
}

}  // namespace

int64_t TrainingData::mapped_bytes() const { return train.mapped_bytes() + (valid ? valid->mapped_bytes() : 0); }

std::string TrainingData::fingerprint() const {
  Sha256 sha;
  sha.update(tokenizer->hash());
  for (const ShardEntry& shard : train.manifest().shards) sha.update(shard.checksum);
  return sha.finish();
}

TrainingData open_training_data(const Config& config) {
  const fs::path root = config.data.path;
  if (root.empty()) {
    throw usage_error("data.path is not set", "set it to the folder that `n prep` wrote");
  }
  if (!fs::exists(root / "train")) {
    throw usage_error(fmt::format("data.path = \"{}\" holds no prepared corpus", root.string()),
                      fmt::format("prepare one: n prep TEXT... --out {}", root.string()));
  }
  TrainingData data{.tokenizer = load_tokenizer((root / "tokenizer.json").string()),
                    .train = TokenDataset(root / "train"),
                    .valid = std::nullopt};
  check_tokenizer(data.train, *data.tokenizer);
  if (fs::exists(root / "valid")) {
    data.valid.emplace(root / "valid");
    check_tokenizer(*data.valid, *data.tokenizer);
  }
  return data;
}

Config resolve_vocab_size(Config config, const Tokenizer& tokenizer) {
  const int64_t needed = tokenizer.vocab_size();
  if (config.model.vocab_size == 0) config.model.vocab_size = needed;
  if (config.model.vocab_size < needed) {
    throw usage_error(
        fmt::format("model.vocab_size = {}, but the corpus's tokenizer has {} ids", config.model.vocab_size, needed),
        "raise model.vocab_size, or set it to 0 to take the tokenizer's");
  }
  return config;
}

}  // namespace nmoe
