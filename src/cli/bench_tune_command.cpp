#include <fmt/format.h>

#include "base/files.h"
#include "base/say.h"
#include "bench/tune_bench.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "train/loop/run_config.h"

namespace nmoe::cli {
namespace {

std::string describe(const GemmProblem& p) {
  return fmt::format("{}[{}, {}]{} x [{}, {}]{} {} into {}", p.batch > 0 ? fmt::format("{} x ", p.batch) : "", p.rows,
                     p.depth, p.transpose_a ? "^T" : "", p.depth, p.cols, p.transpose_b ? "^T" : "",
                     dtype_name(p.input), dtype_name(p.output));
}

void tell(const TunedProduct& product) {
  const std::string shape = describe(product.use.problem);
  if (product.num_candidates == 0) {
    say("{:<58}{:>9.1f} us  {:>5} calls  not timed\n", shape, product.heuristic_us, product.use.calls());
    return;
  }
  const double gain = 1.0 - product.chosen_us / product.heuristic_us;
  say("{:<58}{:>9.1f} us  {:>5} calls  {}\n", shape, product.heuristic_us, product.use.calls(),
      product.choice ? fmt::format("{:.1f} us, {:.1f} % less", product.chosen_us, 100.0 * gain)
                     : fmt::format("none of {} is faster", product.num_candidates));
}

}  // namespace

void bench_tune_command(const BenchTuneArguments& arguments) {
  std::vector<Config> configs;
  for (const std::string& file : arguments.configs) configs.push_back(load_run_config(file, arguments.overrides));
  ProductTable table;  // read before anything is timed, so that a bad one costs nothing
  if (fs::exists(arguments.out)) table = parse_product_table(read_file(arguments.out), arguments.out);
  const TuneBench bench = bench_tune(configs, tell);
  const size_t num_before = table.size();
  table = merge_choices(std::move(table), bench.tuning);
  write_file_atomically(arguments.out, print_product_table(table));

  double heuristic_us = 0.0, chosen_us = 0.0;
  int64_t num_timed = 0, num_choices = 0;
  for (const TunedProduct& product : bench.tuning.products) {
    heuristic_us += product.heuristic_us * static_cast<double>(product.use.calls());
    chosen_us += product.chosen_us * static_cast<double>(product.use.calls());
    num_timed += product.num_candidates > 0 ? 1 : 0;
    num_choices += product.choice ? 1 : 0;
  }
  constexpr int kNameWidth = 10;
  print_bench_origin(bench.device, bench.software, kNameWidth);
  print("{:<{}}{}, {} timed, {} with a choice: {:.1f} % of the time of all\n", "products", kNameWidth,
        bench.tuning.products.size(), num_timed, num_choices, 100.0 * (1.0 - chosen_us / heuristic_us));
  print("{:<{}}{}: {} lines, {} before\n", "table", kNameWidth, arguments.out, table.size(), num_before);
}

}  // namespace nmoe::cli
