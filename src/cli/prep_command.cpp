#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/commands.h"

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

}  // namespace nmoe::cli
