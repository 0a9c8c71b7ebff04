#include <fmt/format.h>

#include "bench/loader_bench.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "train/loop/run_config.h"

namespace nmoe::cli {

void bench_loader_command(const BenchLoaderArguments& arguments) {
  const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  const LoaderBench bench = bench_loader(config, arguments.megabytes);
  print("{:.0f} MB of tokens in {:.3f} s on one thread: {:.0f} MB/s, {:.1f} M tokens/s; slowest batch {:.2f} ms\n",
        bench.megabytes, bench.seconds, bench.megabytes / bench.seconds, bench.megabytes / bench.seconds / 4.0,
        bench.slowest_ms);
  print("stream: {} sequences, checksum {}\n", bench.num_sequences, bench.checksum);
}

}  // namespace nmoe::cli
