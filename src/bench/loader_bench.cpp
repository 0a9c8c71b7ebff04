#include "bench/loader_bench.h"

#include <algorithm>

#include "bench/timing.h"
#include "model/spec/cost.h"
#include "train/loop/batch_stream.h"

namespace nmoe {

LoaderBench bench_loader(const Config& unresolved, int64_t megabytes) {
  const TrainingData data = open_training_data(unresolved);
  Config config = resolve_vocab_size(unresolved, *data.tokenizer);
  config.parallel.ranks = 1;  // which reads whole batches
  const StreamPlan plan = plan_training_data(config, data, model_cost(config.model).active_parameters);
  BatchStream batches(config, data, plan);
  const double batch_megabytes = 4e-6 * static_cast<double>(batches.targets().size());
  const int64_t num_steps = plan_steps(config, plan);
  LoaderBench bench;
  for (int64_t step = 0; step < num_steps && bench.megabytes < static_cast<double>(megabytes); ++step) {
    const auto begin = BenchClock::now();
    batches.next();
    const double ms = ms_since(begin);
    bench.checksum += static_cast<uint32_t>(batches.targets().back());
    bench.seconds += 1e-3 * ms;
    bench.slowest_ms = std::max(bench.slowest_ms, ms);
    bench.megabytes += batch_megabytes;
  }
  bench.num_sequences = batches.cursor().sequence;
  return bench;
}

}  // namespace nmoe
