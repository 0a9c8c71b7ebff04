#include "train/loop/training_data.h"

#include <algorithm>

#include "base/files.h"
#include "base/sha256.h"
#include "data/stream/alignment.h"
#include "data/stream/order.h"
#include "train/loop/run_length.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

struct OpenedSource {
  DataSource source;
  std::shared_ptr<const Tokenizer> tokenizer;
};

void check_tokenizer(const TokenDataset& dataset, const Tokenizer& tokenizer) {
  constexpr const char* kRemedy = "prepare the corpus again with `n prep`";
  if (!dataset.is_of(tokenizer)) {
    throw runtime_error(
        fmt::format("{} was prepared with another tokenizer than the tokenizer.json beside it", dataset.dir().string()),
        kRemedy);
  }
  if (dataset.eos_id() != tokenizer.eos_id()) {
    throw runtime_error(fmt::format("{}: documents end with id {}, with {} by the tokenizer.json beside it",
                                    dataset.dir().string(), dataset.eos_id(), tokenizer.eos_id()),
                        kRemedy);
  }
}

// That ends documents.
std::string end_of(const Tokenizer& tokenizer) {
  const std::string_view end = tokenizer.special_text(tokenizer.eos_id());
  return end.empty() ? fmt::format("id {}", tokenizer.eos_id()) : std::string(end);
}

// `key` says where `root` was set.
OpenedSource open_source(const std::string& name, const fs::path& root, const std::string& key) {
  if (!fs::exists(root / "train")) {
    throw usage_error(fmt::format("{} = \"{}\" holds no prepared corpus", key, root.string()),
                      fmt::format("prepare one: n prep TEXT... --out {}", root.string()));
  }
  // What may throw comes before the braces: g++ 12 destroys twice what they had made when one of them throws.
  auto tokenizer = load_tokenizer((root / "tokenizer.json").string());
  TokenDataset train(root / "train");
  OpenedSource opened{{.name = name, .train = std::move(train), .valid = std::nullopt}, std::move(tokenizer)};
  check_tokenizer(opened.source.train, *opened.tokenizer);
  if (fs::exists(root / "valid")) {
    opened.source.valid.emplace(root / "valid");
    check_tokenizer(*opened.source.valid, *opened.tokenizer);
  }
  return opened;
}

}  // namespace

SourceFacts DataSource::facts(int64_t alignment) const {
  Sha256 sha;
  for (const ShardEntry& shard : train.manifest().shards) {
    sha.update(shard.checksum);
    sha.update(shard.mask_checksum);
  }
  return {.name = name,
          .num_tokens = train.num_tokens(),
          .hash = sha.finish(),
          .num_padding = padding_tokens(train, alignment)};
}

int64_t TrainingData::host_bytes(const Config& config) const {
  int64_t bytes = 0;
  for (const DataSource& source : sources) {
    bytes += source.train.mapped_bytes() + (source.valid ? source.valid->mapped_bytes() : 0);
    const bool finds_documents = config.data.mask_documents || config.data.shuffle == Shuffle::kDocuments;
    if (finds_documents) bytes += source.train.mapped_index_bytes();
    const bool validates_documents = source.valid && (config.data.mask_documents || source.valid->has_mask());
    if (validates_documents) bytes += source.valid->mapped_index_bytes();
    bytes += config.parallel.ranks * SourceOrder::memory_bytes(config.data.shuffle, config.data.align_documents);
    if (source.valid) bytes += SourceOrder::memory_bytes(Shuffle::kNone, config.data.align_documents);  // for all ranks
  }
  return bytes;
}

std::vector<const TokenDataset*> TrainingData::train_sets() const {
  std::vector<const TokenDataset*> sets;
  for (const DataSource& source : sources) sets.push_back(&source.train);
  return sets;
}

std::vector<int64_t> TrainingData::sequence_lengths(const Config& config) const {
  return nmoe::sequence_lengths(config, mixture ? &*mixture : nullptr);
}

bool has_training_data(const Config& config) {
  const std::string& place = config.data.mixture.empty() ? config.data.path : config.data.mixture;
  return !place.empty() && fs::exists(place);
}

TrainingData open_training_data(const Config& config) {
  TrainingData data;
  const auto add = [&](const std::string& name, const fs::path& root, const std::string& key) {
    OpenedSource opened = open_source(name, root, key);
    if (data.tokenizer && data.tokenizer->hash() != opened.tokenizer->hash()) {
      throw usage_error(
          fmt::format("sources {} and {} were prepared with different tokenizers", data.sources[0].name, name),
          "prepare all sources of a mixture with one tokenizer");
    }
    if (data.tokenizer && data.tokenizer->eos_id() != opened.tokenizer->eos_id()) {
      throw usage_error(
          fmt::format("documents of source {} end with {}, those of source {} with {}", data.sources[0].name,
                      end_of(*data.tokenizer), name, end_of(*opened.tokenizer)),
          fmt::format("prepare {} again: n prep ... --tokenizer FILE@{}", root.string(), end_of(*data.tokenizer)));
    }
    data.tokenizer = std::move(opened.tokenizer);
    data.sources.push_back(std::move(opened.source));
  };
  if (!config.data.mixture.empty()) {
    data.mixture = load_mixture(config.data.mixture);
    for (const MixtureSource& source : data.mixture->sources) {
      add(source.name, source.path, fmt::format("{}: sources.{}.path", config.data.mixture, source.name));
    }
  } else if (!config.data.path.empty()) {
    add("corpus", config.data.path, "data.path");
  } else {
    throw usage_error("data.path is not set", "set it to the folder that `n prep` wrote, or set data.mixture");
  }
  return data;
}

void verify_training_data(const TrainingData& data) {
  for (const DataSource& source : data.sources) {
    source.train.verify();
    if (source.valid) source.valid->verify();
  }
}

StreamPlan plan_training_data(const Config& config, const TrainingData& data, int64_t active_parameters) {
  const int64_t alignment = config.data.align_documents;
  if (!data.mixture) return single_source_plan(data.sources[0].facts(alignment), config.data.seq_len, alignment);
  std::vector<SourceFacts> facts;
  for (const DataSource& source : data.sources) facts.push_back(source.facts(alignment));
  const int64_t tokens = profile_tokens(*data.mixture, config.data.profile, active_parameters);
  data.sequence_lengths(config);  // which may be impossible
  StreamPlan plan = make_stream_plan(*data.mixture, facts, config.data.seq_len, tokens, step_tokens(config), alignment);
  const int64_t steps = plan_steps(config, plan), wanted = *run_steps(config, &plan);
  if (steps < std::max<int64_t>(1, wanted)) {
    const std::string tokens = config.train.tokens == 0 ? "" : fmt::format(" (train.tokens = {})", config.train.tokens);
    throw usage_error(
        fmt::format("train.steps = {}{}, but the plan's {} sequences make {} steps of train.batch_seqs = {}", wanted,
                    tokens, plan.num_sequences(), steps, config.train.batch_seqs),
        "choose a larger data.profile, or train.steps = 0 for all of it");
  }
  return plan;
}

std::string note_on_validation(const TrainingData& data) {
  std::string without;
  size_t count = 0;
  for (const DataSource& source : data.sources) {
    if (source.valid) continue;
    without += fmt::format("{}'{}'", count == 0 ? "" : ", ", source.train.dir().parent_path().string());
    ++count;
  }
  if (count == 0) return "";
  return fmt::format(
      "note: {} {} no validation split{}: n prep makes one with --valid, --valid-fraction or --valid-tail\n", without,
      count == 1 ? "has" : "have", count == data.sources.size() ? ", the run reports no validation loss" : "");
}

std::string data_fingerprint(const TrainingData& data, const StreamPlan& plan) {
  Sha256 sha;
  sha.update(data.tokenizer->hash_with_end(data.tokenizer->eos_id()));
  sha.update(plan.hash());
  return sha.finish();
}

int64_t plan_steps(const Config& config, const StreamPlan& plan) { return plan.num_tokens() / step_tokens(config); }

Config resolve_vocab_size(Config config, const Tokenizer& tokenizer) {
  const int64_t needed = tokenizer.vocab_size();
  if (config.model.vocab_size == 0) config.model.vocab_size = needed;
  if (config.model.vocab_size >= needed) return config;
  if (!config.model.init.from.empty()) {
    throw usage_error(fmt::format("the corpus's tokenizer has {} ids, but model.vocab_size = {}, as in the checkpoint "
                                  "that training starts from (model.init.from = \"{}\")",
                                  needed, config.model.vocab_size, config.model.init.from),
                      "prepare the corpus with the checkpoint's tokenizer (n prep ... --tokenizer CHECKPOINT), or "
                      "start from a checkpoint with this corpus's");
  }
  throw usage_error(
      fmt::format("model.vocab_size = {}, but the corpus's tokenizer has {} ids", config.model.vocab_size, needed),
      "raise model.vocab_size, or set it to 0 to take the tokenizer's");
}

Error unknown_vocab_size(const Config& config) {
  const bool is_mixture = !config.data.mixture.empty();
  const std::string& place = is_mixture ? config.data.mixture : config.data.path;
  const std::string_view key = is_mixture ? "data.mixture" : "data.path";
  constexpr std::string_view kWithout =
      "or, to go without a corpus, say how many ids there are: --set model.vocab_size=N";
  if (place.empty()) {
    return usage_error("there is neither a corpus nor a vocabulary size: data.path and model.vocab_size are not set",
                       fmt::format("set data.path to the folder that n prep wrote, {}", kWithout));
  }
  return usage_error(
      fmt::format("{} = \"{}\": there is no such {}, and model.vocab_size is 0 (that of the corpus)", key, place,
                  is_mixture ? "file" : "folder"),
      fmt::format("correct {}{}, {}", key,
                  is_mixture ? "" : fmt::format(", or prepare a corpus there (n prep TEXT... --out {})", place),
                  kWithout));
}

}  // namespace nmoe
