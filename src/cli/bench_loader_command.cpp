#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/commands.h"
#include "config/load.h"
#include "train/batch_stream.h"
#include "train/memory_plan.h"

namespace nmoe::cli {

void bench_loader_command(const BenchLoaderArguments& arguments) {
  Config config = load_config(arguments.config.file, arguments.config.overrides);
  const TrainingData data = open_training_data(config);
  config = resolve_vocab_size(config, *data.tokenizer);
  const StreamPlan plan = plan_training_data(config, data, cost_of(config).active_parameters);
  BatchStream batches(config, data, plan, {0, config.train.batch_seqs});
  const double batch_megabytes = 4e-6 * static_cast<double>(batches.targets().size());
  double megabytes = 0.0, seconds = 0.0, slowest = 0.0;
  uint64_t sum = 0;  // of what was read, so that reading cannot be left out
  const int64_t last_batch = plan.num_sequences() - config.train.batch_seqs;
  while (megabytes < static_cast<double>(arguments.megabytes) && batches.cursor().sequence <= last_batch) {
    const auto begin = std::chrono::steady_clock::now();
    batches.next();
    const double batch_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    sum += static_cast<uint32_t>(batches.targets().back());
    seconds += batch_seconds;
    slowest = std::max(slowest, batch_seconds);
    megabytes += batch_megabytes;
  }
  fmt::print("{:.0f} MB of tokens in {:.3f} s on one thread: {:.0f} MB/s, {:.1f} M tokens/s; slowest batch {:.2f} ms\n",
             megabytes, seconds, megabytes / seconds, megabytes / seconds / 4.0, 1e3 * slowest);
  fmt::print("stream: {} sequences, checksum {}\n", batches.cursor().sequence, sum);
}

}  // namespace nmoe::cli
