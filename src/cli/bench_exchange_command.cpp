#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "bench/exchange_bench.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "train/loop/run_config.h"

namespace nmoe::cli {
namespace {

double mean_of(const std::vector<int64_t>& values) {
  double sum = 0.0;
  for (const int64_t value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

nlohmann::ordered_json to_json(const ExchangeBench& bench, const std::string& config, double skew) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const ExchangeBench::Run& run : bench.runs) {
    runs.push_back({{"blocks", run.max_blocks},
                    {"send_ms", run.send_ms},
                    {"send_gb_per_s", bench.send_gb_per_s(run.send_ms)},
                    {"return_ms", run.return_ms},
                    {"return_gb_per_s", bench.return_gb_per_s(run.return_ms)},
                    {"barrier_ms", run.barrier_ms},
                    {"collect_ms", run.collect_ms},
                    {"layer_ms", run.layer_ms}});
  }
  nlohmann::ordered_json json = bench_origin(bench.device, bench.software);
  json.update(nlohmann::ordered_json{{"config", config},
                                     {"ranks", bench.num_ranks},
                                     {"tokens", bench.tokens},
                                     {"width", bench.width},
                                     {"experts", bench.num_experts},
                                     {"top_k", bench.top_k},
                                     {"row_bytes", bench.row_bytes},
                                     {"sent_row_bytes", bench.sent_row_bytes},
                                     {"skew", skew},
                                     {"rank_load_max_over_mean", bench.rank_load_max_over_mean},
                                     {"rows_to_others", bench.rows_to_others},
                                     {"rows_for_others", bench.rows_for_others},
                                     {"expected_rows_per_token", bench.expected_rows_per_token},
                                     {"runs", runs}});
  return json;
}

}  // namespace

void bench_exchange_command(const BenchExchangeArguments& arguments) {
  const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  ExchangeBenchOptions options{.skew = arguments.skew};
  if (!arguments.blocks.empty()) options.max_blocks = arguments.blocks;
  const ExchangeBench bench = bench_exchange(config, options);
  if (arguments.json) {
    print("{}\n", printed_json(to_json(bench, arguments.config.file, arguments.skew)));
    return;
  }
  constexpr int kNameWidth = 16;
  print_bench_origin(bench.device, bench.software, kNameWidth);
  const auto line = [&](const char* name, const std::string& text) { print("{:<{}}{}\n", name, kNameWidth, text); };
  line("ranks",
       fmt::format("{}, the most loaded with {:.3f} times the mean", bench.num_ranks, bench.rank_load_max_over_mean));
  line("rows", fmt::format("{} tokens a rank, {} of {} experts each, {} bytes a row to them, {} back", bench.tokens,
                           bench.top_k, bench.num_experts, bench.sent_row_bytes, bench.row_bytes));
  const double rows = mean_of(bench.rows_to_others);
  line("to other ranks",
       fmt::format("{:.0f} rows, {:.3f} a token ({:.3f} where all experts are as likely), {}", rows,
                   rows / static_cast<double>(bench.tokens), bench.expected_rows_per_token,
                   human_bytes(static_cast<int64_t>(rows * static_cast<double>(bench.sent_row_bytes)))));
  print("\n{:>7}{:>11}{:>9}{:>13}{:>9}{:>12}{:>12}{:>10}\n", "blocks", "send, ms", "GB/s", "return, ms", "GB/s",
        "barrier, ms", "collect, ms", "all, ms");
  for (const ExchangeBench::Run& run : bench.runs) {
    print("{:>7}{:>11.4f}{:>9.1f}{:>13.4f}{:>9.1f}{:>12.4f}{:>12.4f}{:>10.4f}\n",
          run.max_blocks == 0 ? "all" : std::to_string(run.max_blocks), run.send_ms, bench.send_gb_per_s(run.send_ms),
          run.return_ms, bench.return_gb_per_s(run.return_ms), run.barrier_ms, run.collect_ms, run.layer_ms);
  }
}

}  // namespace nmoe::cli
