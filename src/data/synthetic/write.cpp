#include "data/synthetic/write.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "data/shards/corpus_folder.h"
#include "data/shards/shard.h"
#include "data/synthetic/kinds.h"
#include "data/tokenizer/word_tokenizer.h"

namespace nmoe {
namespace {

void check_options(const SynthesizeOptions& options) {
  if (options.documents < 1 || options.valid_documents < 0) {
    throw usage_error(
        fmt::format("{} documents to train on and {} for validation", options.documents, options.valid_documents),
        "give at least one to train on");
  }
}

struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss_mask;
};

// Documents [first, first + count) of the source, with their masks if `masks`.
void write_documents(const SyntheticSource& source, const Tokenizer& tokenizer, uint64_t first, int64_t count,
                     bool masks, ThreadPool& pool, SplitWriter& writer) {
  constexpr int64_t kBatch = 1024;  // documents made at a time, and then written in order
  std::vector<Document> batch(static_cast<size_t>(std::min(kBatch, count)));
  for (int64_t done = 0; done < count; done += kBatch) {
    const int64_t size = std::min(kBatch, count - done);
    pool.parallel_for(size, [&](int64_t task, int) {
      Document& document = batch[static_cast<size_t>(task)];
      source.document(first + static_cast<uint64_t>(done + task), document.tokens, document.loss_mask);
    });
    for (const Document& document : std::span(batch).first(static_cast<size_t>(size))) {
      int64_t bytes = 0;
      for (const int32_t id : document.tokens) bytes += static_cast<int64_t>(tokenizer.token_bytes(id).size());
      const auto mask = masks ? std::span<const uint8_t>(document.loss_mask) : std::span<const uint8_t>();
      writer.add_document(document.tokens, bytes, "synthetic", mask);
    }
  }
}

std::string ground_truth(const SynthesizeOptions& options, const SyntheticSource& source, const EntropyFloor& floor) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  for (const auto& [key, value] : source.settings()) settings[key] = value;
  const nlohmann::ordered_json file = {{"kind", options.kind},
                                       {"seed", options.seed},
                                       {"settings", settings},
                                       {"all_tokens", options.all_tokens},
                                       {"vocab_size", source.vocab_size()},
                                       {"eos_token_id", source.eos_id()},
                                       {"floor",
                                        {{"nats_per_token", floor.nats_per_token()},
                                         {"nats_per_text_token", floor.nats_per_text_token()},
                                         {"tokens_per_document", floor.tokens_per_document},
                                         {"document_nats", floor.document_nats},
                                         {"document_nats_error", floor.document_nats_error},
                                         {"end_nats", floor.end_nats},
                                         {"end_nats_error", floor.end_nats_error},
                                         {"nats_per_target", floor.nats_per_target()},
                                         {"target_nats", floor.target_nats},
                                         {"targets_per_document", floor.targets_per_document}}}};
  return json_text(file, 2) + '\n';
}

// Takes back what a synthesis that fails has placed in its folder. The writers do so until they commit.
class OutputGuard {
 public:
  explicit OutputGuard(fs::path out) : out_(std::move(out)), made_(!fs::exists(out_)) {}
  OutputGuard(const OutputGuard&) = delete;
  OutputGuard& operator=(const OutputGuard&) = delete;
  ~OutputGuard() {
    std::error_code ignored;  // the failure that led here is what is reported
    if (placing_) {
      for (const char* file : {"tokenizer.json", "ground_truth.json"}) fs::remove(out_ / file, ignored);
      for (const char* split : {"train", "valid"}) take_back(out_ / split);
    }
    if (made_) fs::remove(out_, ignored);  // if it is empty
  }

  void begin_placing() { placing_ = true; }
  void done() { placing_ = made_ = false; }

 private:
  static void take_back(const fs::path& split) {
    std::error_code ignored;
    try {
      remove_split(split);
      fs::remove(split, ignored);
    } catch (const Error&) {
      // What cannot be removed stays.
    }
  }

  fs::path out_;
  bool made_;
  bool placing_ = false;
};

}  // namespace

SynthesizeReport synthesize(const SynthesizeOptions& options) {
  check_options(options);
  const auto source = make_synthetic_source(options.kind, options.seed, options.settings);
  const auto tokenizer = make_word_tokenizer(source->words());
  NMOE_CHECK(tokenizer->vocab_size() == source->vocab_size() && tokenizer->eos_id() == source->eos_id(),
             "{} words and an end at {}", tokenizer->vocab_size(), tokenizer->eos_id());
  if (options.all_tokens && !source->has_answers()) {
    throw usage_error(fmt::format("the synthetic source {} has no answers, every token is trained on", options.kind),
                      "leave out --all-tokens");
  }
  if (!options.force) check_corpus_folder(options.out, tokenizer->json());
  SplitOptions split{.dataset = options.kind,
                     .tokenizer = std::string(tokenizer->name()),
                     .tokenizer_hash = tokenizer->hash(),
                     .vocab_size = tokenizer->vocab_size(),
                     .eos_id = tokenizer->eos_id(),
                     .tokens_per_shard = options.tokens_per_shard};
  ThreadPool pool(options.threads);
  OutputGuard guard(options.out);
  const auto write = [&](const char* name, bool masks, uint64_t first, int64_t count) {
    split.masks = masks;
    auto writer = std::make_unique<SplitWriter>(options.out / name, split);
    write_documents(*source, *tokenizer, first, count, masks, pool, *writer);
    writer->close();
    return writer;
  };
  const auto train = write("train", source->has_answers() && !options.all_tokens, 0, options.documents);
  std::unique_ptr<SplitWriter> valid;
  if (options.valid_documents > 0) {
    valid = write("valid", source->has_answers(), static_cast<uint64_t>(options.documents), options.valid_documents);
  }

  // All that is new is on disk when the first file of an old dataset goes.
  SynthesizeReport report{.has_answers = source->has_answers(), .floor = source->floor()};
  remove_split(options.out / "train");
  remove_split(options.out / "valid");
  guard.begin_placing();
  write_file_atomically(options.out / "tokenizer.json", tokenizer->json());
  write_file_atomically(options.out / "ground_truth.json", ground_truth(options, *source, report.floor));
  if (valid) report.valid_tokens = valid->commit().total_tokens;
  report.train_tokens = train->commit().total_tokens;
  guard.done();
  return report;
}

}  // namespace nmoe
