#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/commands.h"
#include "data/tokenizer/bpe_train.h"

namespace nmoe::cli {
namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr double kMilestone = 0.1;  // of the work, between plain lines

void print_split(const char* name, const SplitReport& split) {
  if (split.documents == 0) return;
  fmt::print("{:<6}{} documents, {} tokens, {} bytes ({:.3f} bytes per token), {} shard{}\n", name, split.documents,
             split.tokens, split.bytes, static_cast<double>(split.bytes) / static_cast<double>(split.tokens),
             split.shards, split.shards == 1 ? "" : "s");
}

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

}  // namespace

void prep_command(PrepOptions options) {
  std::unique_ptr<ProgressLine> line;
  const auto begin = std::chrono::steady_clock::now();
  double next_milestone = kMilestone;
  options.progress = [&](const PrepProgress& progress) {
    if (!line) line = std::make_unique<ProgressLine>("prep", "MB", progress.total_bytes / kMegabyte);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double share =
        static_cast<double>(progress.bytes) / static_cast<double>(std::max<int64_t>(progress.total_bytes, 1));
    const bool milestone = share >= next_milestone;
    if (milestone) next_milestone = share + kMilestone;
    line->update(progress.bytes / kMegabyte,
                 fmt::format("{} documents, {} tokens, {:.1f} MB/s", progress.documents,
                             human_count(static_cast<double>(progress.tokens)),
                             static_cast<double>(progress.bytes) / (static_cast<double>(kMegabyte) * seconds)),
                 milestone);
  };
  const PrepReport report = prepare_dataset(options);
  line.reset();
  print_split("train", report.train);
  print_split("valid", report.valid);
  const double megabytes =
      static_cast<double>(report.train.bytes + report.valid.bytes) / static_cast<double>(kMegabyte);
  fmt::print("{:.1f} MB in {:.2f} s, {:.1f} MB/s, to {}\n", megabytes, report.seconds, megabytes / report.seconds,
             options.out.string());
}

void tokenizer_train_command(const TokenizerTrainArguments& arguments) {
  const TrainedBpe trained = train_bpe({.inputs = arguments.inputs, .vocab_size = arguments.vocab_size});
  const fs::path out = arguments.out;
  if (out.has_parent_path()) make_directories(out.parent_path());
  write_file_atomically(out, trained.tokenizer->json());
  fmt::print("{} ids from {} words ({} distinct) in {:.2f} s, to {}\n", trained.tokenizer->vocab_size(),
             trained.report.words, trained.report.distinct_words,
             trained.report.count_seconds + trained.report.merge_seconds, out.string());
}

void tokenizer_encode_command(const std::string& tokenizer) {
  std::vector<int32_t> ids;
  load_tokenizer(tokenizer)->encode(read_standard_input(), ids);
  for (size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
  fmt::print("\n");
}

void tokenizer_decode_command(const std::string& tokenizer) {
  const auto loaded = load_tokenizer(tokenizer);
  std::vector<int32_t> ids;
  for (std::string word; std::cin >> word;) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= loaded->vocab_size()) {
      throw usage_error(fmt::format("\"{}\" (number {} of the input) is no id of this tokenizer", word, ids.size() + 1),
                        fmt::format("ids are whole numbers from 0 to {}", loaded->vocab_size() - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  fmt::print("{}", loaded->decode(ids));
}

void tokenizer_info_command(const std::string& tokenizer) {
  const auto loaded = load_tokenizer(tokenizer);
  fmt::print("kind        {}\nvocabulary  {} ids\nend of doc  {}\nhash        {}\n", loaded->name(),
             loaded->vocab_size(), loaded->eos_id(), loaded->hash());
}

}  // namespace nmoe::cli
