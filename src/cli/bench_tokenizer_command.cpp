#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/standard_input.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe::cli {
namespace {

constexpr int kRounds = 7;

struct Result {
  int threads = 0;
  double seconds = 0;  // the median round
  int64_t bytes = 0;   // a round's
  int64_t tokens = 0;
};

// Documents: the text cut after line ends, or between characters where lines are long.
std::vector<std::string_view> documents_of(std::string_view text) {
  constexpr size_t kBytes = 64 << 10;
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    size_t size = std::min(kBytes, text.size());
    if (size < text.size()) {
      const size_t line_end = text.rfind('\n', size - 1);
      if (line_end != std::string_view::npos) {
        size = line_end + 1;
      } else {
        while (size > 1 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
      }
    }
    documents.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return documents;
}

// A round encodes all documents `repeats` times; one more goes before, to warm up.
Result measure(const Tokenizer& tokenizer, const std::vector<std::string_view>& documents, int threads,
               int64_t repeats) {
  ThreadPool pool(threads);
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(threads));
  std::vector<int64_t> tokens(static_cast<size_t>(threads));
  const auto num_documents = static_cast<int64_t>(documents.size());
  std::vector<double> seconds;
  for (int round = -1; round < kRounds; ++round) {
    std::ranges::fill(tokens, 0);
    const auto begin = std::chrono::steady_clock::now();
    pool.parallel_for(num_documents * repeats, [&](int64_t task, int thread) {
      auto& out = ids[static_cast<size_t>(thread)];
      out.clear();
      tokenizer.encode(documents[static_cast<size_t>(task % num_documents)], out);
      tokens[static_cast<size_t>(thread)] += static_cast<int64_t>(out.size());
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    if (round >= 0) seconds.push_back(time.count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  Result result{.threads = threads, .seconds = seconds[kRounds / 2]};
  for (const auto document : documents) result.bytes += static_cast<int64_t>(document.size()) * repeats;
  for (const int64_t count : tokens) result.tokens += count;
  return result;
}

double mb_per_s(const Result& result) { return static_cast<double>(result.bytes) / 1e6 / result.seconds; }

}  // namespace

void bench_tokenizer_command(const BenchTokenizerArguments& arguments) {
  const std::string text = arguments.file.empty() ? read_standard_input() : read_file(arguments.file);
  if (text.empty()) throw usage_error("there is no text to encode", "name a file that is not empty");
  const auto tokenizer = load_tokenizer(arguments.tokenizer);
  const auto documents = documents_of(text);

  // Long enough rounds: some MB for each thread.
  constexpr int64_t kBytesPerThread = 8 << 20;
  const int most = arguments.threads > 0 ? arguments.threads : available_cpus();
  std::vector<Result> results;
  for (int threads = 1;; threads = std::min(2 * threads, most)) {
    const int64_t repeats = (kBytesPerThread * threads - 1) / static_cast<int64_t>(text.size()) + 1;
    results.push_back(measure(*tokenizer, documents, threads, repeats));
    if (threads == most) break;
  }

  const double bytes_per_token = static_cast<double>(results[0].bytes) / static_cast<double>(results[0].tokens);
  if (arguments.json) {
    std::string list;
    for (const Result& result : results) {
      list +=
          fmt::format("{}{{\"threads\": {}, \"mb_per_s\": {:.3f}, \"mb_per_s_per_thread\": {:.3f}}}",
                      list.empty() ? "" : ", ", result.threads, mb_per_s(result), mb_per_s(result) / result.threads);
    }
    fmt::print("{{\"bytes\": {}, \"documents\": {}, \"bytes_per_token\": {:.4f}, \"results\": [{}]}}\n", text.size(),
               documents.size(), bytes_per_token, list);
    return;
  }
  fmt::print("text        {} in {} documents, {:.2f} bytes a token\n", human_bytes(static_cast<int64_t>(text.size())),
             documents.size(), bytes_per_token);
  for (const Result& result : results) {
    fmt::print("{:>2} {}  {:.1f} MB/s, {:.1f} a thread (median of {})\n", result.threads,
               result.threads == 1 ? "thread " : "threads", mb_per_s(result), mb_per_s(result) / result.threads,
               kRounds);
  }
}

}  // namespace nmoe::cli
