#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/signals.h"
#include "base/text.h"
#include "chat/checkpoint_settings.h"
#include "cli/commands.h"
#include "cli/named_checkpoint.h"
#include "cli/standard_output.h"
#include "data/prep/inputs.h"

namespace nmoe::cli {
namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr double kMilestone = 0.1;  // of the work, between plain lines

double megabytes(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMegabyte); }

// Shows how far the work is.
class Display {
 public:
  void update(const PrepProgress& progress) {
    if (!line_) {
      const bool small = progress.total_bytes < 10 * kMegabyte;
      if (small) unit_ = 1000;
      line_ = std::make_unique<ProgressLine>("prep", small ? "kB" : "MB", progress.total_bytes / unit_,
                                             progress.start_bytes / unit_);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const double share =
        static_cast<double>(progress.bytes) / static_cast<double>(std::max<int64_t>(progress.total_bytes, 1));
    const bool milestone = share >= next_milestone_;
    if (milestone) next_milestone_ = share + kMilestone;
    line_->update(
        progress.bytes / unit_,
        fmt::format("{} documents, {} tokens, {:.1f} MB/s of text", progress.documents,
                    human_count(static_cast<double>(progress.tokens)), megabytes(progress.text_bytes) / seconds),
        milestone);
  }

 private:
  std::unique_ptr<ProgressLine> line_;
  int64_t unit_ = kMegabyte;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double next_milestone_ = kMilestone;
};

void print_split(const char* name, const SplitReport& split) {
  if (split.documents == 0) return;
  print("{:<6}{} documents, {} tokens, {} bytes ({:.3f} bytes per token), {} shard{}\n", name, split.documents,
        split.tokens, split.bytes, static_cast<double>(split.bytes) / static_cast<double>(split.tokens), split.shards,
        split.shards == 1 ? "" : "s");
}

// Documents of text have no token in front that tells where they begin, whatever other programs put there.
void print_beginning(const PrepOptions& options) {
  if (!options.records.messages_field.empty()) return;  // the template writes all
  const fs::path source = options.tokenizer.substr(0, options.tokenizer.find('@'));
  fs::path folder = source.filename() == "tokenizer.json" ? fs::absolute(source).parent_path() : source;
  if (fs::exists(folder / "huggingface")) folder /= "huggingface";  // of a checkpoint
  if (!fs::exists(folder / "tokenizer.json")) return;
  const std::vector<std::string> tokens = read_begin_tokens(folder);
  if (tokens.empty()) return;
  print(
      "documents begin without {}: the tokenizer has it put in front of a text, as n generate, n serve and n eval do "
      "with a model that came with it\n",
      fmt::format("{}", fmt::join(tokens, "")));
}

void print_conversations(const PrepReport& report) {
  if (!report.conversation_note.empty()) print("{}\n", report.conversation_note);
  if (report.by_reply.records == 0) return;
  print(
      "conversations with one document for each reply: {} (documents: {}), since the template writes earlier turns "
      "differently once more follow\n",
      report.by_reply.records, report.by_reply.documents);
}

void print_dropped(const PrepReport& report, const fs::path& out) {
  if (report.dropped.empty()) return;
  print("dropped, of {} records (see {}):\n", report.records, (out / "dropped.jsonl").string());
  for (const auto& [reason, count] : report.dropped) {
    print("  {:<18}{:>12}  {:>7.3f} %  {:>12} bytes\n", reason, count.records,
          100.0 * static_cast<double>(count.records) / static_cast<double>(report.records), count.bytes);
  }
}

}  // namespace

void prep_command(PrepOptions options) {
  ignore_broken_pipes();
  options.tokenizer = tokenizer_source(options.tokenizer);
  auto display = std::make_unique<Display>();
  options.progress = [&](const PrepProgress& progress) { display->update(progress); };
  const PrepReport report = prepare_dataset(options);
  display.reset();
  print("{}", describe_left_out(report.left_out));
  if (report.was_there) {
    print("{} holds what these files and options make; --force makes it again\n", options.out.string());
  }
  if (report.resumed_records > 0) print("went on after record {}\n", report.resumed_records);
  print_split("train", report.train);
  print_split("valid", report.valid);
  if (report.valid.documents == 0) {
    print("valid no split: training will report no validation loss (--valid, --valid-fraction, --valid-tail)\n");
  }
  print_beginning(options);
  print_conversations(report);
  print_dropped(report, options.out);
  if (report.was_there) return;
  const double text = megabytes(report.text_bytes);
  print("{:.1f} MB in {:.2f} s, {:.1f} MB/s, to {}; most memory in use {}\n", text, report.seconds,
        text / report.seconds, options.out.string(), human_bytes(peak_resident_bytes()));
  if (report.encoded_bytes > 0) {
    print("tokenizer: {:.1f} MB/s on each thread\n", megabytes(report.encoded_bytes) / report.encode_seconds);
  }
  if (report.near_dedup_bytes > 0) {
    print("near deduplication: {:.1f} MB/s on each thread\n",
          megabytes(report.near_dedup_bytes) / report.near_dedup_seconds);
  }
}

}  // namespace nmoe::cli
