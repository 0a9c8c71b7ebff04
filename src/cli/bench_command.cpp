#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "cli/commands.h"
#include "config/load.h"
#include "train/batch_stream.h"
#include "train/bench.h"
#include "train/memory_plan.h"

namespace nmoe::cli {

void bench_train_command(const BenchTrainArguments& arguments) {
  const Config config = load_config(arguments.config.file, arguments.config.overrides);
  const TrainBench bench = bench_train(config, arguments.warmup, arguments.steps);
  if (arguments.json) {
    fmt::print(
        "{{\"device\": \"{}\", \"tokens\": \"{}\", \"steps\": {}, \"tokens_per_step\": {}, \"parameters\": {}, "
        "\"active_parameters\": {}, \"flops_per_token\": {}, \"ms_per_step\": {:.3f}, \"tokens_per_s\": {:.1f}, "
        "\"gflops\": {:.2f}, \"peak_gflops\": {:.2f}, \"share_of_peak\": {:.4f}, \"load_max_over_mean\": {:.3f}}}\n",
        bench.device, bench.tokens, bench.steps, bench.tokens_per_step, bench.cost.parameters,
        bench.cost.active_parameters, bench.cost.flops_per_token, bench.ms_per_step, bench.tokens_per_s,
        bench.flops / 1e9, bench.peak_flops / 1e9, bench.flops / bench.peak_flops, bench.load_max_over_mean);
    return;
  }
  fmt::print("device          {}\n", bench.device);
  fmt::print("tokens          {}, {} a step\n", bench.tokens, bench.tokens_per_step);
  fmt::print("model           {} parameters, {} active; {}FLOP per token, forward and backward\n",
             human_count(static_cast<double>(bench.cost.parameters)),
             human_count(static_cast<double>(bench.cost.active_parameters)), human_count(bench.cost.flops_per_token));
  fmt::print("router load     {:.2f} largest over mean\n", bench.load_max_over_mean);
  fmt::print("step            {:.1f} ms (median of {}): forward and backward {:.1f}, optimizer {:.1f}\n",
             bench.ms_per_step, bench.steps, bench.ms_forward_backward, bench.ms_optimizer);
  fmt::print("throughput      {:.0f} tokens/s\n", bench.tokens_per_s);
  fmt::print("share of peak   {:.1f} % ({:.1f} of {:.1f} GFLOP/s measured beside it)\n",
             100.0 * bench.flops / bench.peak_flops, bench.flops / 1e9, bench.peak_flops / 1e9);
}

void bench_loader_command(const BenchLoaderArguments& arguments) {
  Config config = load_config(arguments.config.file, arguments.config.overrides);
  const TrainingData data = open_training_data(config);
  config = resolve_vocab_size(config, *data.tokenizer);
  BatchStream batches(config, data, cost_of(config).active_parameters);
  const double batch_megabytes = 4e-6 * static_cast<double>(batches.targets().size());
  double megabytes = 0.0, seconds = 0.0, slowest = 0.0;
  uint64_t sum = 0;  // of what was read, so that reading cannot be left out
  const int64_t last_batch = batches.plan().num_sequences() - config.train.batch_seqs;
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
