#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "bench/ops_bench.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {
namespace {

nlohmann::ordered_json to_json(const OpsBench& bench) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const OpTiming& op : bench.ops) {
    ops.push_back({{"op", op.name},
                   {"shape", op.shape},
                   {"ms", op.ms},
                   {"flops", op.flops},
                   {"bytes", op.bytes},
                   {"tflops", op.flops / op.ms / 1e9},
                   {"gb_per_s", op.bytes / op.ms / 1e6},
                   {"bound", bench.is_memory_bound(op) ? "memory" : "compute"},
                   {"share_of_bound", bench.bound_ms(op) / op.ms}});
  }
  nlohmann::ordered_json json = bench_origin(bench.device, bench.software);
  json.update(nlohmann::ordered_json{
      {"copy_gb_per_s", bench.copy_bytes_per_s / 1e9}, {"gemm_tflops", bench.gemm_flops / 1e12}, {"ops", ops}});
  return json;
}

}  // namespace

void bench_ops_command(const BenchOpsArguments& arguments) {
  const OpsBench bench = bench_ops(arguments.run, arguments.only);
  if (arguments.json) {
    print("{}\n", printed_json(to_json(bench)));
    return;
  }
  print_bench_origin(bench.device, bench.software, /*width=*/9);
  print("bounds   {} copied, read and written; {} in a large GEMM: both measured here\n\n",
        human_quantity(bench.copy_bytes_per_s, "B/s"), human_quantity(bench.gemm_flops, "FLOP/s"));
  print("{:<48}{:<56}{:>10}{:>10}{:>10}  {}\n", "operation", "shape", "ms", "TFLOP/s", "GB/s", "share of bound");
  for (const OpTiming& op : bench.ops) {
    const std::string rate = op.flops > 0 ? fmt::format("{:.2f}", op.flops / op.ms / 1e9) : "";
    print("{:<48}{:<56}{:>10.3f}{:>10}{:>10.0f}  {:>5.1f} % of {}\n", op.name, op.shape, op.ms, rate,
          op.bytes / op.ms / 1e6, 100.0 * bench.bound_ms(op) / op.ms, bench.is_memory_bound(op) ? "memory" : "compute");
  }
}

}  // namespace nmoe::cli
