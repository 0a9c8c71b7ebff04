#include "bench/tokenizer_bench.h"

#include <algorithm>
#include <utility>

#include "base/thread_pool.h"
#include "bench/timing.h"
#include "data/prep/records.h"
#include "data/prep/text_reader.h"

namespace nmoe {
namespace {

constexpr int kRounds = 7;

// Documents: the text cut after line ends, or between characters where lines are long.
std::vector<std::string_view> documents_of(std::string_view text) {
  constexpr size_t kBytes = 64 << 10;
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    const size_t size = part_size(text, kBytes);
    documents.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return documents;
}

// A round encodes all documents `repeats` times; one more goes before, to warm up.
TokenizerBench::Result measure(const Tokenizer& tokenizer, const std::vector<std::string_view>& documents, int threads,
                               int64_t repeats) {
  ThreadPool pool(threads);
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(threads));
  std::vector<int64_t> tokens(static_cast<size_t>(threads));
  const auto num_documents = static_cast<int64_t>(documents.size());
  std::vector<double> seconds;
  for (int round = -1; round < kRounds; ++round) {
    std::ranges::fill(tokens, 0);
    const auto begin = BenchClock::now();
    pool.parallel_for(num_documents * repeats, [&](int64_t task, int thread) {
      auto& out = ids[static_cast<size_t>(thread)];
      out.clear();
      tokenizer.encode(documents[static_cast<size_t>(task % num_documents)], out);
      tokens[static_cast<size_t>(thread)] += static_cast<int64_t>(out.size());
    });
    if (round >= 0) seconds.push_back(1e-3 * ms_since(begin));
  }
  TokenizerBench::Result result{.threads = threads, .seconds = median(std::move(seconds))};
  for (const auto document : documents) result.bytes += static_cast<int64_t>(document.size()) * repeats;
  for (const int64_t count : tokens) result.tokens += count;
  return result;
}

}  // namespace

TokenizerBench bench_tokenizer(const Tokenizer& tokenizer, std::string_view text, int most_threads) {
  const auto documents = documents_of(text);
  TokenizerBench bench{.rounds = kRounds, .num_documents = static_cast<int64_t>(documents.size()), .results = {}};
  constexpr int64_t kBytesPerThread = 8 << 20;  // long enough rounds: some MB for each thread
  const int most = most_threads > 0 ? most_threads : available_cpus();
  for (int threads = 1;; threads = std::min(2 * threads, most)) {
    const int64_t repeats = (kBytesPerThread * threads - 1) / static_cast<int64_t>(text.size()) + 1;
    bench.results.push_back(measure(tokenizer, documents, threads, repeats));
    if (threads == most) break;
  }
  return bench;
}

}  // namespace nmoe
