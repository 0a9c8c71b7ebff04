#include "data/prep/prep.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "data/prep/inputs.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {
namespace {

enum class Split { kTrain, kValid, kByHash };

struct Source {
  fs::path path;
  Split split;
};

struct Document {
  std::shared_ptr<const MappedFile> file;  // holds the text
  std::string_view text;
  Split split;
  std::vector<int32_t> ids;
};

void check_options(const PrepOptions& options) {
  if (options.inputs.empty()) throw usage_error("no text to prepare", "name files or folders");
  if (!(options.valid_fraction >= 0.0 && options.valid_fraction < 1.0)) {
    throw usage_error(fmt::format("a validation fraction of {}", options.valid_fraction),
                      "choose at least 0 and less than 1");
  }
  if (!options.valid_inputs.empty() && options.valid_fraction > 0.0) {
    throw usage_error("both files and a fraction are given for validation", "give one of them");
  }
  if (options.tokens_per_shard < 2) {
    throw usage_error(fmt::format("{} tokens per shard", options.tokens_per_shard), "choose at least 2");
  }
  constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (options.dataset.empty() || options.dataset.find_first_not_of(kNameCharacters) != std::string::npos) {
    throw usage_error(fmt::format("'{}' cannot name a dataset", options.dataset),
                      "use letters, digits, '.', '_' and '-'");
  }
  for (const char* split : {"train", "valid"}) {
    const fs::path manifest = manifest_path(options.out / split);
    if (fs::exists(manifest) && !options.force) {
      throw usage_error(fmt::format("there is a dataset already: '{}'", manifest.string()),
                        "choose another output folder, or replace it with --force");
    }
  }
}

std::vector<Source> find_sources(const PrepOptions& options) {
  std::vector<Source> sources;
  std::set<fs::path> for_validation;
  for (const fs::path& path : expand_inputs(options.valid_inputs, "validation text")) {
    for_validation.insert(fs::canonical(path));
    sources.push_back({path, Split::kValid});
  }
  const Split split = options.valid_fraction > 0.0 ? Split::kByHash : Split::kTrain;
  for (const fs::path& path : expand_inputs(options.inputs, "text")) {
    if (!for_validation.contains(fs::canonical(path))) sources.push_back({path, split});
  }
  return sources;
}

// Calls fn(text) for each document of a file.
template <class Fn>
void for_each_document(std::string_view text, std::string_view separator_line, Fn&& fn) {
  size_t begin = 0;
  for (size_t line = 0; !separator_line.empty() && line < text.size();) {
    const size_t line_end = std::min(text.find('\n', line), text.size());
    std::string_view content = text.substr(line, line_end - line);
    if (content.ends_with('\r')) content.remove_suffix(1);
    const size_t next = std::min(line_end + 1, text.size());
    if (content == separator_line) {
      fn(text.substr(begin, line - begin));
      begin = next;
    }
    line = next;
  }
  fn(text.substr(begin));
}

bool hash_is_below(std::string_view text, double fraction) {
  const uint64_t hash = std::stoull(sha256_hex(text).substr(0, 16), nullptr, 16);
  return static_cast<double>(hash) * 0x1p-64 < fraction;
}

// Makes the folder, and removes it at the end of the scope if nothing came into it.
class OutputFolder {
 public:
  explicit OutputFolder(const fs::path& path) : path_(path), made_(!fs::exists(path)) { make_directories(path); }
  ~OutputFolder() {
    std::error_code not_empty;
    if (made_) fs::remove(path_, not_empty);
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

 private:
  fs::path path_;
  bool made_;
};

class Preparation {
 public:
  explicit Preparation(const PrepOptions& options)
      : options_(options),
        tokenizer_(load_tokenizer(options.tokenizer)),
        tokenizer_path_(options.out / "tokenizer.json"),
        sources_(find_sources(options)),
        pool_(options.threads),
        out_(options.out),
        train_(options.out / "train", split_options()) {
    if (!options.valid_inputs.empty() || options.valid_fraction > 0.0) {
      valid_.emplace(options.out / "valid", split_options());
    }
    if (!options.force && fs::exists(tokenizer_path_) && read_file(tokenizer_path_) != tokenizer_->json()) {
      throw usage_error(fmt::format("'{}' is another tokenizer", tokenizer_path_.string()),
                        "choose another output folder, or replace it with --force");
    }
    for (const Source& source : sources_) {
      std::error_code ignored;  // mapping the file reports it
      const auto size = fs::file_size(source.path, ignored);
      if (!ignored) progress_.total_bytes += static_cast<int64_t>(size);
    }
  }

  PrepReport run() {
    for (const Source& source : sources_) {
      const auto file = std::make_shared<const MappedFile>(source.path);
      const auto bytes = file->bytes();
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      for_each_document(text, options_.split_on, [&](std::string_view document) {
        if (!document.empty()) add({file, document, source.split, {}});
      });
    }
    encode_and_write_batch();
    check_split(train_, "training", "give more text, or a smaller validation fraction");
    if (valid_) {
      check_split(*valid_, "validation",
                  "name validation files, raise the validation fraction, or cut the text into more "
                  "documents with --split-on");
    }
    return commit();
  }

 private:
  SplitOptions split_options() const {
    return {.dataset = options_.dataset,
            .tokenizer = std::string(tokenizer_->name()),
            .tokenizer_hash = tokenizer_->hash(),
            .vocab_size = tokenizer_->vocab_size(),
            .eos_id = tokenizer_->eos_id(),
            .tokens_per_shard = options_.tokens_per_shard};
  }

  void add(Document document) {
    // Enough for every thread to be busy for a while; a mapping per document has its limits too.
    constexpr size_t kBatchBytesPerThread = 4 << 20;
    constexpr size_t kMaxBatchDocuments = 1 << 14;
    batch_bytes_ += document.text.size();
    batch_.push_back(std::move(document));
    const size_t enough = kBatchBytesPerThread * static_cast<size_t>(pool_.num_threads());
    if (batch_bytes_ >= enough || batch_.size() >= kMaxBatchDocuments) encode_and_write_batch();
  }

  void encode_and_write_batch() {
    pool_.parallel_for(static_cast<int64_t>(batch_.size()), [&](int64_t task, int) {
      Document& document = batch_[static_cast<size_t>(task)];
      tokenizer_->encode(document.text, document.ids);
      if (document.split == Split::kByHash) {
        const bool valid = hash_is_below(document.text, options_.valid_fraction);
        document.split = valid ? Split::kValid : Split::kTrain;
      }
    });
    for (const Document& document : batch_) {
      SplitWriter& writer = document.split == Split::kValid ? *valid_ : train_;
      const auto bytes = static_cast<int64_t>(document.text.size());
      writer.add_document(document.ids, bytes, document.file->path());
      progress_.bytes += bytes;
    }
    batch_.clear();
    batch_bytes_ = 0;
    progress_.documents = train_.num_documents() + (valid_ ? valid_->num_documents() : 0);
    progress_.tokens = train_.num_tokens() + (valid_ ? valid_->num_tokens() : 0);
    if (options_.progress) options_.progress(progress_);
  }

  static void check_split(const SplitWriter& writer, const char* name, const char* remedy) {
    if (writer.num_documents() == 0) {
      throw usage_error(fmt::format("no document is left for {}", name), remedy);
    }
  }

  // All data is on disk when the first file of the old dataset goes.
  PrepReport commit() {
    train_.close();
    if (valid_) valid_->close();
    const auto remove_splits = [&] {
      remove_split(options_.out / "train");
      remove_split(options_.out / "valid");
    };
    remove_splits();
    const bool had_tokenizer = fs::exists(tokenizer_path_);
    try {
      write_file_atomically(tokenizer_path_, tokenizer_->json());
      PrepReport report;
      if (valid_) report.valid = report_of(valid_->commit());
      report.train = report_of(train_.commit());
      return report;
    } catch (...) {
      remove_splits();
      if (!had_tokenizer) fs::remove(tokenizer_path_);
      throw;
    }
  }

  static SplitReport report_of(const DatasetManifest& manifest) {
    return {manifest.total_documents, manifest.total_tokens, manifest.total_bytes, manifest.num_shards};
  }

  const PrepOptions& options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  fs::path tokenizer_path_;
  std::vector<Source> sources_;
  ThreadPool pool_;
  OutputFolder out_;
  SplitWriter train_;
  std::optional<SplitWriter> valid_;
  std::vector<Document> batch_;
  size_t batch_bytes_ = 0;
  PrepProgress progress_;
};

}  // namespace

PrepReport prepare_dataset(const PrepOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  PrepReport report = Preparation(options).run();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace nmoe
