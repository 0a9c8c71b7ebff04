#include "data/prep/output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "data/prep/records.h"
#include "data/shards/corpus_folder.h"
#include "data/shards/manifest.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

// Text of users' files goes into JSON as it is, but for bytes that are no UTF-8.
std::string json_line(const ordered_json& value) { return json_text(value) + '\n'; }

bool makes_valid_split(const PrepOptions& options) {
  return !options.valid_inputs.empty() || options.valid_fraction > 0.0 || options.valid_tail > 0.0;
}

SplitReport report_of(const DatasetManifest& manifest) {
  return {manifest.total_documents, manifest.total_tokens, manifest.total_bytes, manifest.num_shards};
}

ordered_json split_json(const DatasetManifest& manifest) {
  return {{"documents", manifest.total_documents},
          {"tokens", manifest.total_tokens},
          {"bytes", manifest.total_bytes},
          {"shards", manifest.num_shards}};
}

SplitReport split_from(const ordered_json& split) {
  return {integer_of<int64_t>(split.at("documents")), integer_of<int64_t>(split.at("tokens")),
          integer_of<int64_t>(split.at("bytes")), integer_of<int64_t>(split.at("shards"))};
}

constexpr const char* kReport = "report.json";

void check_split(const SplitWriter& writer, const char* name, const char* remedy) {
  if (writer.num_documents() == 0) {
    throw usage_error(fmt::format("no document is left for {}", name), remedy);
  }
}

}  // namespace

// ---- the folder ---------------------------------------------------------------------------------

OutputFolder::OutputFolder(const fs::path& path) : path_(path), work_(path / ".prep"), made_(!fs::exists(path)) {
  make_directories(work_);
  lock_.emplace(work_ / "lock");
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!fs::exists(journal(), ignored)) fs::remove_all(work_, ignored);
  if (made_) fs::remove(path_, ignored);  // if it is empty
}

void OutputFolder::begin_anew() const {
  for (const fs::path& path : {journal(), dropped(), digests(), signatures()}) fs::remove(path);
  for (const char* split : {"train", "valid"}) remove_unfinished_split(path_ / split);
}

void OutputFolder::finish() const {
  fs::remove(journal());
  sync_directory(work_);
}

std::optional<PrepReport> finished_report(const fs::path& out, const PrepSettings& settings) {
  if (!fs::exists(out / kReport) || !fs::exists(manifest_path(out / "train"))) return std::nullopt;
  const auto root = try_parse_json<ordered_json>(read_file(out / kReport));
  try {
    const ordered_json& made = root.at("settings");
    const auto agrees = [&](const auto& setting) { return made.value(setting.first, "") == setting.second; };
    if (!std::ranges::all_of(settings, agrees)) return std::nullopt;
    PrepReport report;
    report.was_there = true;
    report.train = split_from(root.at("train"));
    if (root.contains("valid")) report.valid = split_from(root.at("valid"));
    if (root.contains("valid") && !fs::exists(manifest_path(out / "valid"))) return std::nullopt;
    report.records = integer_of<int64_t>(root.at("records"));
    if (const auto by_reply = root.find("one_document_a_reply"); by_reply != root.end()) {
      report.by_reply = {integer_of<int64_t>(by_reply->at("records")), integer_of<int64_t>(by_reply->at("documents"))};
    }
    for (const auto& [reason, count] : root.at("dropped").items()) {
      report.dropped[reason] = {integer_of<int64_t>(count.at("records")), integer_of<int64_t>(count.at("bytes"))};
    }
    return report;
  } catch (const ordered_json::exception&) {
    return std::nullopt;  // another program's
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

// ---- writing ------------------------------------------------------------------------------------

void Output::WorkFile::open(const fs::path& path, bool old, uint64_t bytes) {
  if (old) {
    file.emplace(path, bytes);
  } else {
    file.emplace(path);
  }
}

uint64_t Output::WorkFile::sync() {
  file->write(pending.data(), pending.size());
  pending.clear();
  file->sync();
  return file->size();
}

Output::Output(const OutputFolder& folder, const PrepOptions& options, const Tokenizer& tokenizer,
               const ConversationEncoder* encoder, const std::vector<InputFile>& inputs, const PrepSettings& settings,
               const std::optional<PrepState>& state)
    : folder_(folder),
      options_(options),
      tokenizer_(tokenizer),
      encoder_(encoder),
      inputs_(inputs),
      settings_(settings),
      state_(state.value_or(PrepState{})),
      journaled_(state.has_value()) {
  const SplitOptions split{.dataset = options.dataset,
                           .tokenizer = std::string(tokenizer.name()),
                           .tokenizer_hash = tokenizer.hash(),
                           .vocab_size = tokenizer.vocab_size(),
                           .eos_id = tokenizer.eos_id(),
                           .tokens_per_shard = options.tokens_per_shard,
                           .masks = !options.records.prompt_field.empty() || !options.records.messages_field.empty()};
  const fs::path train_dir = folder.path() / "train";
  const fs::path valid_dir = folder.path() / "valid";
  if (journaled_) {
    train_.emplace(train_dir, split, state_.train);
    if (state_.valid) valid_.emplace(valid_dir, split, *state_.valid);
  } else {
    train_.emplace(train_dir, split);
    if (makes_valid_split(options)) valid_.emplace(valid_dir, split);
  }
  if (state_.phase != PrepState::Phase::kWriting) return;
  dropped_.open(folder.dropped(), journaled_, state_.dropped_file_bytes);
  digests_.open(folder.digests(), journaled_, state_.digest_file_bytes);
  signatures_.open(folder.signatures(), journaled_, state_.signature_file_bytes);
}

Output::~Output() {
  if (!journaled_) return;  // the files' own destructors remove them
  train_->keep();
  if (valid_) valid_->keep();
  try {
    for (WorkFile* work : {&dropped_, &digests_, &signatures_}) {
      if (work->file) work->file->close();
    }
  } catch (const Error&) {
    return;  // the next process will see the same fault
  }
}

std::string Output::place_of_document(const Document& document) const {
  return place_of(inputs_[static_cast<size_t>(document.file)].path, options_.records, document.record.number);
}

void Output::list_dropped(const Document& document) {
  const Verdict& verdict = *document.dropped;
  const bool bad = !document.record.fault.empty();
  const fs::path& path = inputs_[static_cast<size_t>(document.file)].path;
  DropCount& count = state_.dropped[std::string(verdict.reason)];
  count.records += 1;
  count.bytes += document.text_bytes();
  if (bad) state_.bad.push_back({place_of_document(document), verdict.detail});
  ordered_json line = {{"file", path.string()}, {"record", document.record.number}};
  if (!options_.records.id_field.empty()) line["id"] = document.record.id;
  line["reason"] = verdict.reason;
  if (!verdict.detail.empty()) line["detail"] = verdict.detail;
  dropped_.pending += json_line(line);
}

void Output::write(const DocumentBatch& batch) {
  for (const Document& document : batch.documents) {
    state_.records += 1;
    if (document.digest) digests_.pending.append(reinterpret_cast<const char*>(&*document.digest), sizeof(Digest));
    if (document.dropped) {
      list_dropped(document);
      continue;
    }
    if (document.signature) {
      signatures_.pending.append(reinterpret_cast<const char*>(document.signature.get()), sizeof(Signature));
    }
    SplitWriter& writer = document.split == DatasetSplit::kValid ? *valid_ : *train_;
    for (const EncodedDocument& encoded : document.encoded) {
      writer.add_document(encoded.ids, encoded.text_bytes, place_of_document(document), encoded.mask);
    }
    if (document.encoded.size() > 1) {
      state_.by_reply.records += 1;
      state_.by_reply.documents += std::ssize(document.encoded);
    }
  }
  state_.file = batch.end_file;
  state_.record = batch.end_record;
  state_.input_bytes = batch.file_bytes;
  for (WorkFile* work : {&dropped_, &digests_, &signatures_}) {
    work->file->write(work->pending.data(), work->pending.size());
    work->pending.clear();
  }
  const auto now = std::chrono::steady_clock::now();
  if (std::chrono::duration<double>(now - last_checkpoint_).count() < options_.checkpoint_seconds) return;
  checkpoint();
  last_checkpoint_ = std::chrono::steady_clock::now();
}

// The journal comes last: what it says is on disk.
void Output::checkpoint() {
  if (state_.phase == PrepState::Phase::kWriting) {
    state_.dropped_file_bytes = dropped_.sync();
    state_.digest_file_bytes = digests_.sync();
    state_.signature_file_bytes = signatures_.sync();
  }
  state_.train = train_->checkpoint();
  if (valid_) state_.valid = valid_->checkpoint();
  try {
    write_journal(folder_.journal(), settings_, state_);
    journaled_ = true;
  } catch (const Error&) {
    // It stands although writing it failed, where only its folder could not be synced.
    journaled_ = fs::exists(folder_.journal());
    throw;
  }
}

std::string Output::report_text() const {
  auto settings = ordered_json::object();
  for (const auto& [name, value] : settings_) settings[name] = value;
  auto dropped = ordered_json::object();
  for (const auto& [reason, count] : state_.dropped) {
    dropped[reason] = {{"records", count.records}, {"bytes", count.bytes}};
  }
  auto bad = ordered_json::array();
  for (const BadRecord& record : state_.bad) bad.push_back({{"place", record.place}, {"reason", record.reason}});
  ordered_json root = {{"settings", std::move(settings)},
                       {"files", inputs_.size()},
                       {"records", state_.records},
                       {"train", split_json(state_.train)}};
  if (state_.valid) root["valid"] = split_json(*state_.valid);
  if (encoder_ != nullptr) {
    root["one_document_a_reply"] = {{"records", state_.by_reply.records}, {"documents", state_.by_reply.documents}};
  }
  root["dropped"] = std::move(dropped);
  root["bad_records"] = std::move(bad);
  return json_text(root, 2) + '\n';
}

// Everything that may fail for want of space is done here.
void Output::close() {
  check_split(*train_, "training", "give more text, a smaller validation fraction, or milder filters");
  if (valid_) {
    check_split(
        *valid_, "validation",
        "name validation files, raise the validation fraction, cut the text into more documents with --split-on, "
        "or give it the end of each file with --valid-tail");
  }
  train_->close();
  if (valid_) valid_->close();
  checkpoint();
  state_.phase = PrepState::Phase::kClosed;
  checkpoint();
  for (WorkFile* work : {&dropped_, &digests_, &signatures_}) {
    work->file->close();
    work->file.reset();
  }
}

// Each step can be done again by a later process when this one is killed within it.
PrepReport Output::commit() {
  const fs::path& out = folder_.path();
  if (state_.phase == PrepState::Phase::kWriting) close();
  if (state_.phase == PrepState::Phase::kClosed) {
    for (const char* split : {"train", "valid"}) remove_split(out / split);
    state_.phase = PrepState::Phase::kPlacing;
    checkpoint();
  }
  remove_unfinished_files(out);
  remove_unfinished_files(out / "train");
  if (valid_) remove_unfinished_files(out / "valid");
  write_file_atomically(out / "tokenizer.json", tokenizer_.json());
  if (encoder_ != nullptr) {
    write_file_atomically(out / kChatTemplateFile, encoder_->source());
  } else {
    fs::remove(out / kChatTemplateFile);  // of the dataset that was here
  }
  write_file_atomically(out / kReport, report_text());
  if (fs::exists(folder_.dropped())) fs::rename(folder_.dropped(), out / "dropped.jsonl");
  sync_directory(out);
  PrepReport report;
  if (valid_) report.valid = report_of(valid_->commit());
  report.train = report_of(train_->commit());
  folder_.finish();
  journaled_ = false;
  report.records = state_.records;
  report.dropped = state_.dropped;
  report.by_reply = state_.by_reply;
  return report;
}

}  // namespace nmoe
