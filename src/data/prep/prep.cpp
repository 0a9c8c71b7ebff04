// Three threads in a row: one reads records into batches, the caller's (with a pool) judges and encodes them, one
// writes. What depends on the order of documents happens in that order, on one thread.
#include "data/prep/prep.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/bounded_queue.h"
#include "base/error.h"
#include "base/files.h"
#include "base/sha256.h"
#include "base/start_thread.h"
#include "base/thread_pool.h"
#include "base/version.h"
#include "data/prep/dedup.h"
#include "data/prep/inputs.h"
#include "data/prep/output.h"
#include "data/prep/records.h"
#include "data/shards/corpus_folder.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {
namespace {

using Clock = std::chrono::steady_clock;

// Time and text that a kind of work took, on all threads together.
struct Effort {
  std::atomic<int64_t> nanoseconds{0};
  std::atomic<int64_t> bytes{0};

  template <class Work>
  void spend(int64_t num_bytes, Work&& work) {
    const auto begin = Clock::now();
    work();
    nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    bytes += num_bytes;
  }
  double seconds() const { return static_cast<double>(nanoseconds) * 1e-9; }
};

void check_options(const PrepOptions& options) {
  if (options.inputs.empty()) throw usage_error("no text to prepare", "name files or folders");
  if (!(options.valid_fraction >= 0.0 && options.valid_fraction < 1.0)) {
    throw usage_error(fmt::format("a validation fraction of {}", options.valid_fraction),
                      "choose at least 0 and less than 1");
  }
  if (!(options.valid_tail >= 0.0 && options.valid_tail < 1.0)) {
    throw usage_error(fmt::format("a validation tail of {}", options.valid_tail), "choose at least 0 and less than 1");
  }
  const int splits = !options.valid_inputs.empty() + (options.valid_fraction > 0.0) + (options.valid_tail > 0.0);
  if (splits > 1) {
    throw usage_error("more than one of files, fraction and tail are given for validation", "give one of them");
  }
  if (options.valid_tail > 0.0 && options.records.split_on) {
    throw usage_error("--valid-tail is for files that are one document each, --split-on cuts them into many",
                      "choose documents for validation with --valid-fraction");
  }
  if (options.tokens_per_shard < 2) {
    throw usage_error(fmt::format("{} tokens per shard", options.tokens_per_shard), "choose at least 2");
  }
  if (options.near_dedup && !(*options.near_dedup > 0.0 && *options.near_dedup <= 1.0)) {
    throw usage_error(fmt::format("near deduplication at a resemblance of {}", *options.near_dedup),
                      "choose more than 0 and at most 1");
  }
  if (options.skip_bad < 0) throw usage_error(fmt::format("{} bad records", options.skip_bad), "choose at least 0");
  NMOE_CHECK(options.records.messages_field.empty() == !options.conversations, "messages \"{}\" without an encoder",
             options.records.messages_field);
  if (options.records.text_field.empty()) throw usage_error("the text field has no name", "name it with --text-field");
  constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (options.dataset.empty() || options.dataset.find_first_not_of(kNameCharacters) != std::string::npos) {
    throw usage_error(fmt::format("'{}' cannot name a dataset", options.dataset),
                      "use letters, digits, '.', '_' and '-'");
  }
  check_filter_options(options.filters);
}

// The files to read; what the user is to know of others goes to `left_out`.
std::vector<InputFile> find_inputs(const PrepOptions& options, InputPaths& left_out) {
  std::vector<InputFile> inputs;
  std::set<fs::path> for_validation;
  const auto add = [&](const fs::path& path, DatasetSplit split) {
    std::error_code ignored;  // opening the file reports it
    const auto bytes = fs::file_size(path, ignored);
    inputs.push_back({path, split, ignored ? 0 : static_cast<int64_t>(bytes)});
  };
  const InputPaths valid = expand_inputs(options.valid_inputs, "validation text");
  const InputPaths text = expand_inputs(options.inputs, "text");
  for (const InputPaths* paths : {&text, &valid}) {
    left_out.skipped.insert(left_out.skipped.end(), paths->skipped.begin(), paths->skipped.end());
    left_out.empty.insert(left_out.empty.end(), paths->empty.begin(), paths->empty.end());
  }
  for (const fs::path& path : valid.files) {
    for_validation.insert(fs::canonical(path));
    add(path, DatasetSplit::kValid);
  }
  const DatasetSplit split = options.valid_fraction > 0.0 ? DatasetSplit::kByHash : DatasetSplit::kTrain;
  const auto check_tail = [&](const fs::path& path) {
    if (options.valid_tail == 0.0 || file_kind(path) == FileKind::kText) return;
    throw usage_error(fmt::format("--valid-tail is for plain text, and '{}' is not", path.string()),
                      "choose documents for validation with --valid-fraction");
  };
  for (const fs::path& path : text.files) {
    check_tail(path);
    if (!for_validation.contains(fs::canonical(path))) add(path, split);
  }
  return inputs;
}

// Changes when a file does, without reading it.
std::string fingerprint(const std::vector<InputFile>& inputs) {
  Sha256 hash;
  for (const InputFile& input : inputs) {
    std::error_code ignored;
    const auto time = fs::last_write_time(input.path, ignored).time_since_epoch().count();
    hash.update(fmt::format("{}\n{} {} {}\n", input.path.string(), input.bytes, time, static_cast<int>(input.split)));
  }
  return hash.finish();
}

RecordOptions record_options(const PrepOptions& options) {
  RecordOptions records = options.records;
  if (options.valid_tail > 0.0) records.tail = options.valid_tail;
  return records;
}

PrepSettings settings_of(const PrepOptions& options, const Tokenizer& tokenizer, const ConversationEncoder* encoder,
                         const std::vector<InputFile>& inputs) {
  PrepSettings settings;
  const auto add = [&](const char* name, const auto& value) { settings.emplace_back(name, fmt::format("{}", value)); };
  const auto add_limit = [&](const char* name, const std::optional<double>& limit) {
    settings.emplace_back(name, limit ? fmt::format("{}", *limit) : "off");
  };
  add("version", version());
  settings.emplace_back("inputs", fingerprint(inputs));
  add("tokenizer", tokenizer.hash_with_end(tokenizer.eos_id()));
  add("dataset", options.dataset);
  add("tokens_per_shard", options.tokens_per_shard);
  add("valid_fraction", options.valid_fraction);
  add("valid_tail", options.valid_tail);
  add("text_field", options.records.text_field);
  add("id_field", options.records.id_field);
  add("prompt_field", options.records.prompt_field);
  settings.emplace_back("split_on",
                        options.records.split_on ? fmt::format("\"{}\"", *options.records.split_on) : "off");
  add("messages_field", options.records.messages_field);
  for (const std::string& name : options.records.ignored_fields) add(("ignore " + name).c_str(), true);
  settings.emplace_back("chat_template", encoder != nullptr ? encoder->fingerprint() : "off");
  add("min_chars", options.filters.min_chars);
  add("max_chars", options.filters.max_chars);
  add("min_tokens", options.filters.min_tokens);
  add("max_tokens", options.filters.max_tokens);
  add_limit("max_symbols", options.filters.max_symbols);
  add_limit("max_repeated_lines", options.filters.max_repeated_lines);
  add_limit("max_repeated_ngrams", options.filters.max_repeated_ngrams);
  add("ngram_words", options.filters.ngram_words);
  add("dedup", options.dedup);
  add_limit("near_dedup", options.near_dedup);
  return settings;
}

class Preparation {
 public:
  explicit Preparation(const PrepOptions& options)
      : options_(options),
        records_(record_options(options)),
        tokenizer_(load_tokenizer(options.tokenizer)),
        encoder_(options.conversations ? options.conversations(tokenizer_) : nullptr),
        inputs_(find_inputs(options, left_out_)),
        settings_(settings_of(options, *tokenizer_, encoder_.get(), inputs_)),
        pool_(options.threads),
        folder_(options.out) {
    const std::optional<PrepState> state = read_journal(folder_.journal(), settings_, options.force);
    if (!state && !options.force) finished_ = finished_report(options.out, settings_);
    if (finished_) return;
    if (!state) folder_.begin_anew();
    // Half placed, it is this dataset that is there.
    if (!options.force && !(state && state->phase == PrepState::Phase::kPlacing)) {
      check_corpus_folder(options.out, tokenizer_->json());
    }
    output_.emplace(folder_, options_, *tokenizer_, encoder_.get(), inputs_, settings_, state);
    near_duplicates_.emplace(options.near_dedup.value_or(1.0));
    if (state) restore(*state);
    for (const InputFile& input : inputs_) progress_.total_bytes += input.bytes;
  }

  PrepReport run() {
    if (finished_) {
      finished_->left_out = left_out_;
      return *finished_;
    }
    PrepReport report;
    report.left_out = left_out_;
    report.resumed_records = output_->state().records;
    PrepReport written;
    try {
      if (output_->state().phase == PrepState::Phase::kWriting) work();
      written = output_->commit();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUsage || !output_->outlives_failure()) throw;
      throw runtime_error(error.what(), error.remedy() + "; what is done is kept, the same command goes on from there");
    }
    report.train = written.train;
    report.valid = written.valid;
    report.records = written.records;
    report.dropped = written.dropped;
    report.by_reply = written.by_reply;
    report.text_bytes = progress_.text_bytes;
    if (encoder_) report.conversation_note = encoder_->note();
    report.encode_seconds = encoding_.seconds();
    report.encoded_bytes = encoding_.bytes;
    report.near_dedup_seconds = near_dedup_.seconds();
    report.near_dedup_bytes = near_dedup_.bytes;
    return report;
  }

 private:
  // What the documents before the checkpoint have left behind.
  void restore(const PrepState& state) {
    bad_records_ = state.dropped.contains(std::string(kBad)) ? state.dropped.at(std::string(kBad)).records : 0;
    progress_.start_bytes = state.input_bytes;
    progress_.documents = state.train.total_documents + (state.valid ? state.valid->total_documents : 0);
    progress_.tokens = state.train.total_tokens + (state.valid ? state.valid->total_tokens : 0);
    if (state.phase != PrepState::Phase::kWriting) return;
    for_each_value<Digest>(folder_.digests(), state.digest_file_bytes, [&](const Digest& d) { digests_.insert(d); });
    for_each_value<Signature>(folder_.signatures(), state.signature_file_bytes,
                              [&](const Signature& s) { near_duplicates_->insert(s); });
  }

  template <class T, class Fn>
  static void for_each_value(const fs::path& path, uint64_t bytes, Fn&& fn) {
    const MappedFile file(path);
    T value;
    for (size_t place = 0; place + sizeof(T) <= bytes; place += sizeof(T)) {
      std::memcpy(&value, file.bytes().data() + place, sizeof(T));
      fn(value);
    }
  }

  // ---- the three threads ----

  void work() {
    std::exception_ptr read_failure;
    std::exception_ptr failure;
    std::exception_ptr write_failure;
    std::thread reader = start_thread("to read", [&] {
      try {
        read_all();
      } catch (...) {
        read_failure = std::current_exception();
      }
      read_.close();
    });
    std::thread writer;
    try {
      writer = start_thread("to write", [&] {
        try {
          while (std::optional<DocumentBatch> batch = encoded_.pop()) output_->write(*batch);
        } catch (...) {
          write_failure = std::current_exception();
        }
        encoded_.close();
      });
      while (std::optional<DocumentBatch> batch = read_.pop()) {
        process(*batch);
        if (!encoded_.push(std::move(*batch))) break;
      }
    } catch (...) {
      failure = std::current_exception();
    }
    read_.close();
    encoded_.close();
    reader.join();
    if (writer.joinable()) writer.join();
    // That of the document that comes first.
    for (const std::exception_ptr& error : {write_failure, failure, read_failure}) {
      if (error) std::rethrow_exception(error);
    }
  }

  void read_all() {
    const int64_t first_file = output_->state().file;
    const int64_t first_record = output_->state().record;
    // Enough for every thread to be busy for a while.
    constexpr size_t kBatchBytesPerThread = 4 << 20;
    constexpr size_t kMaxBatchBytes = 32 << 20;
    constexpr size_t kMaxBatchDocuments = 1 << 14;
    const size_t enough = std::min(kBatchBytesPerThread * static_cast<size_t>(pool_.num_threads()), kMaxBatchBytes);

    DocumentBatch batch{.end_file = first_file, .end_record = first_record};
    size_t batch_bytes = 0;
    int64_t bytes_before = 0;  // of earlier files
    int64_t bad_records = bad_records_;
    for (int64_t file = 0; file < std::ssize(inputs_); ++file) {
      const InputFile& input = inputs_[static_cast<size_t>(file)];
      if (file >= first_file) {
        const auto reader = open_records(input.path, records_, file == first_file ? first_record : 0);
        for (Record record; reader->next(record);) {
          if (batch_bytes >= enough || batch.documents.size() >= kMaxBatchDocuments) {
            batch_bytes = 0;
            if (!read_.push(std::exchange(batch, {}))) return;
          }
          batch_bytes += record.prompt.size() + record.text.size();
          batch.end_file = file;
          batch.end_record = record.number;
          batch.file_bytes = bytes_before + reader->file_bytes_read();
          const bool too_many = !record.fault.empty() && ends_work(record, bad_records, options_.skip_bad);
          const DatasetSplit split = record.tail ? DatasetSplit::kValid : input.split;
          batch.documents.push_back({.record = std::move(record), .file = file, .split = split});
          if (too_many) {  // reading on would be in vain, and takes its time where rows are damaged
            read_.push(std::move(batch));
            return;
          }
        }
        // A file that is done is not opened again.
        batch.end_file = file + 1;
        batch.end_record = 0;
      }
      bytes_before += input.bytes;
      batch.file_bytes = bytes_before;
    }
    read_.push(std::move(batch));
  }

  void process(DocumentBatch& batch) {
    std::vector<Document>& documents = batch.documents;
    const auto count = std::ssize(documents);
    pool_.parallel_for(count, [&](int64_t task, int) { judge(documents[static_cast<size_t>(task)]); });
    for (Document& document : documents) {
      if (!document.record.fault.empty()) count_bad(document);
      if (!options_.dedup || document.dropped) continue;
      if (!digests_.insert(*document.digest)) {
        document.dropped = Verdict{"duplicate", {}};
        document.digest.reset();
      }
    }
    pool_.parallel_for(count, [&](int64_t task, int) { encode(documents[static_cast<size_t>(task)]); });
    for (Document& document : documents) {
      if (document.signature && !document.dropped) {
        near_dedup_.spend(0, [&] {
          if (near_duplicates_->add(*document.signature)) document.dropped = Verdict{"near duplicate", {}};
        });
      }
      progress_.text_bytes += document.text_bytes();
      if (document.dropped) continue;
      progress_.documents += std::ssize(document.encoded);
      for (const EncodedDocument& encoded : document.encoded) progress_.tokens += std::ssize(encoded.ids) + 1;
    }
    progress_.bytes = batch.file_bytes;
    if (options_.progress) options_.progress(progress_);
  }

  // Everything that needs the document's text alone.
  void judge(Document& document) {
    const Record& record = document.record;
    if (encoder_ && record.fault.empty()) encode_conversation(document);
    if (!record.fault.empty()) {
      document.dropped = Verdict{kBad, record.fault};
    } else if (record.text.empty()) {
      document.dropped = Verdict{"empty", {}};
    } else {
      document.dropped = check_text(record.text, options_.filters);
    }
    if (document.dropped || !(options_.dedup || document.split == DatasetSplit::kByHash)) return;
    // Who says what is part of a conversation.
    const Digest digest =
        digest_of(record.messages.empty() ? record.prompt : record.messages + record.fields, record.text);
    if (document.split == DatasetSplit::kByHash) {
      const bool valid = static_cast<double>(digest.high) * 0x1p-64 < options_.valid_fraction;
      document.split = valid ? DatasetSplit::kValid : DatasetSplit::kTrain;
    }
    if (options_.dedup) document.digest = digest;
  }

  // Early, since it finds out whether the template takes the messages.
  void encode_conversation(Document& document) {
    encoding_.spend(document.text_bytes(), [&] {
      try {
        document.encoded = encoder_->encode(document.record.messages, document.record.fields);
      } catch (const Error& error) {
        document.record.fault = error.what();
        document.record.remedy = error.remedy();
      }
    });
  }

  void encode_text(Document& document) {
    const Record& record = document.record;
    encoding_.spend(document.text_bytes(), [&] {
      EncodedDocument& encoded = document.encoded.emplace_back();
      encoded.text_bytes = document.text_bytes();
      tokenizer_->encode(record.prompt, encoded.ids);
      const size_t prompt_ids = encoded.ids.size();
      tokenizer_->encode(record.text, encoded.ids);
      if (options_.records.prompt_field.empty()) return;
      encoded.mask.assign(encoded.ids.size(), 1);
      std::fill_n(encoded.mask.begin(), prompt_ids, uint8_t{0});
    });
  }

  void encode(Document& document) {
    if (document.dropped) return;
    const Record& record = document.record;
    if (!encoder_) encode_text(document);
    // The last document of a conversation has all of it.
    document.dropped = check_tokens(std::ssize(document.encoded.back().ids), options_.filters);
    if (document.dropped || !options_.near_dedup) return;
    near_dedup_.spend(document.text_bytes(), [&] {
      document.signature = std::make_unique<Signature>(signature_of(record.prompt, record.text));
    });
  }

  void count_bad(const Document& document) {
    if (!ends_work(document.record, bad_records_, options_.skip_bad)) return;
    const fs::path& path = inputs_[static_cast<size_t>(document.file)].path;
    throw bad_record_error(path, records_, document.record, options_.skip_bad);
  }

  static constexpr std::string_view kBad = "bad record";

  const PrepOptions& options_;
  const RecordOptions records_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ConversationEncoder> encoder_;  // when records are conversations
  InputPaths left_out_;                                 // set with inputs_
  std::vector<InputFile> inputs_;
  PrepSettings settings_;
  ThreadPool pool_;
  OutputFolder folder_;
  std::optional<PrepReport> finished_;  // by an earlier call; then there is nothing below
  std::optional<Output> output_;
  DigestSet digests_;
  std::optional<NearDuplicates> near_duplicates_;
  int64_t bad_records_ = 0;
  PrepProgress progress_;
  Effort encoding_;
  Effort near_dedup_;
  BoundedQueue<DocumentBatch> read_{2};
  BoundedQueue<DocumentBatch> encoded_{2};
};

}  // namespace

PrepReport prepare_dataset(const PrepOptions& options) {
  const auto start = Clock::now();
  check_options(options);
  PrepReport report = Preparation(options).run();
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace nmoe
