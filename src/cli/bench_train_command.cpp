#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "bench/train_bench.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "train/loop/run_config.h"

namespace nmoe::cli {
namespace {

constexpr const char* kFlopsFormula =
    "6 x active matrix parameters + causal attention within the documents there are, forward and backward";

double attention_flops(const TrainBench& bench) {
  return bench.flops_per_token - 6.0 * static_cast<double>(bench.cost.active_matrix_parameters);
}

nlohmann::ordered_json to_json(const std::vector<TrainBench::Phase>& phases) {
  nlohmann::ordered_json ms = nlohmann::ordered_json::object();
  for (const TrainBench::Phase& phase : phases) ms[std::string(phase.name)] = phase.ms;
  return ms;
}

nlohmann::ordered_json to_json(const TrainBench::Layer& layer) {
  nlohmann::ordered_json json = {{"layer", layer.layer}, {"ms_by_phase", to_json(layer.phases)}};
  if (layer.sent_bytes.empty()) return json;
  json["rank_load_max_over_mean"] = layer.rank_load_max_over_mean;
  json["sent_bytes"] = layer.sent_bytes;
  for (const Transfer transfer : kTransfers) {
    const auto put = [&](const char* what, const auto& ms) {
      auto& by_rank = json[what][std::string(transfer_name(transfer))];
      for (const auto& of_rank : ms) by_rank.push_back(of_rank[static_cast<size_t>(transfer)]);
    };
    put("waited_ms", layer.waited_ms);
    put("lasted_ms", layer.lasted_ms);
    put("exposed_ms", layer.exposed_ms);
  }
  return json;
}

int64_t num_from_table(const TrainBench& bench) {
  return std::ranges::count(bench.products, true, &ProductUse::from_table);
}

nlohmann::ordered_json to_json(const TrainBench& bench, const std::string& config) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const TrainBench::Layer& layer : bench.layers) layers.push_back(to_json(layer));
  std::vector<double> before, after;
  for (const Rebalancing::Layer& layer : bench.last_rebalancing.layers) {
    before.push_back(layer.load_before);
    after.push_back(layer.load_after);
  }
  nlohmann::ordered_json products = nullptr;
  if (!bench.product_identity.empty()) {
    products = {
        {"all", bench.products.size()}, {"from_table", num_from_table(bench)}, {"identity", bench.product_identity}};
  }
  nlohmann::ordered_json json = bench_origin(bench.device, bench.software);
  json.update(nlohmann::ordered_json{{"config", config},
                                     {"config_fingerprint", bench.fingerprint},
                                     {"tokens", bench.tokens},
                                     {"warmup", bench.warmup},
                                     {"steps", bench.steps},
                                     {"tokens_per_step", bench.tokens_per_step},
                                     {"ranks", bench.num_ranks},
                                     {"microbatches", bench.num_microbatches},
                                     {"parameters", bench.cost.parameters},
                                     {"active_parameters", bench.cost.active_parameters},
                                     {"active_matrix_parameters", bench.cost.active_matrix_parameters},
                                     {"flops_per_token", bench.flops_per_token},
                                     {"flops_formula", kFlopsFormula},
                                     {"products", products},
                                     {"first_step_s", bench.first_step_s},
                                     {"ms_per_step", bench.ms_per_step},
                                     {"ms_by_phase", to_json(bench.phases)},
                                     {"layers", layers},
                                     {"tokens_per_s", bench.tokens_per_s},
                                     {"gflops", bench.flops / 1e9},
                                     {"peak_gflops", bench.peak_flops / 1e9},
                                     {"peak_source", bench.peak_source},
                                     {"mfu", bench.flops / bench.peak_flops},
                                     {"peak_memory_bytes", bench.memory.peak_bytes},
                                     {"planned_memory_bytes", bench.memory.planned_bytes},
                                     {"loss", bench.loss},
                                     {"load_max_over_mean", bench.load_max_over_mean},
                                     {"losses", bench.losses},
                                     {"loads", bench.loads},
                                     {"rank_load_max_over_mean", bench.rank_load_max_over_mean},
                                     {"expert_moves", bench.expert_moves},
                                     {"rank_loads_before_moves", before},
                                     {"rank_loads_after_moves", after},
                                     {"rebalancing_ms", bench.rebalancing_ms}});
  return json;
}

// The means of ranks in the last timed step.
std::string describe_ranks(const TrainBench& bench) {
  double bytes = 0.0, waited_ms = 0.0, lasted_ms = 0.0, exposed_ms = 0.0;
  const auto add = [](double& sum, const auto& by_rank) {
    for (const auto& ms : by_rank) sum += std::accumulate(ms.begin(), ms.end(), 0.0);
  };
  for (const TrainBench::Layer& layer : bench.layers) {
    for (const double sent : layer.sent_bytes) bytes += sent;
    add(waited_ms, layer.waited_ms);
    add(lasted_ms, layer.lasted_ms);
    add(exposed_ms, layer.exposed_ms);
  }
  const double ranks = static_cast<double>(bench.num_ranks);
  return fmt::format(
      "{}, the most loaded with {:.2f} times the mean; in a step each puts {} to others, in {:.2f} ms of which {:.2f} "
      "are not hidden; {:.2f} are waits",
      bench.num_ranks, bench.rank_load_max_over_mean, human_bytes(static_cast<int64_t>(bytes / ranks)),
      lasted_ms / ranks, exposed_ms / ranks, waited_ms / ranks);
}

}  // namespace

void bench_train_command(const BenchTrainArguments& arguments) {
  const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  if (!arguments.products.empty()) {
    if (config.run.device != "cuda") {
      throw usage_error(fmt::format("--products on {}, which has one algorithm for a product", config.run.device),
                        "leave it out, or add --set run.device=cuda");
    }
    use_product_table(read_file(arguments.products), arguments.products);
  }
  const TrainBench bench = bench_train(config, arguments.warmup, arguments.steps);
  if (arguments.json) {
    print("{}\n", printed_json(to_json(bench, arguments.config.file)));
    return;
  }
  const ModelCost& cost = bench.cost;
  const auto count = [](auto number) { return human_count(static_cast<double>(number)); };
  constexpr int kNameWidth = 16;
  print_bench_origin(bench.device, bench.software, kNameWidth);
  const auto line = [&](const char* name, const std::string& text) { print("{:<{}}{}\n", name, kNameWidth, text); };
  line("configuration", fmt::format("{}, fingerprint {:.12}", arguments.config.file, bench.fingerprint));
  line("tokens",
       fmt::format("{}, {} a step, {} microbatches", bench.tokens, bench.tokens_per_step, bench.num_microbatches));
  line("model", fmt::format("{} parameters, {} active", count(cost.parameters), count(cost.active_parameters)));
  line("work", fmt::format("{} per token: 6 x {} active matrix parameters + {} for causal attention",
                           human_quantity(bench.flops_per_token, "FLOP"), count(cost.active_matrix_parameters),
                           count(attention_flops(bench))));
  line("first step", fmt::format("ended {:.2f} s after the process began", bench.first_step_s));
  if (!bench.product_identity.empty()) {
    line("products", fmt::format("{} of {} by the table; {}", num_from_table(bench), bench.products.size(),
                                 bench.product_identity));
  }
  const std::string which = fmt::format("mean of steps {} to {}", bench.warmup + 1, bench.warmup + bench.steps);
  line("loss", fmt::format("{:.4f} nats, {}", bench.loss, which));
  if (bench.load_max_over_mean > 0.0) {
    line("router load",
         fmt::format("fullest expert over mean in the worst layer {:.2f}, {}", bench.load_max_over_mean, which));
  }
  if (bench.num_ranks > 1) line("ranks", describe_ranks(bench));
  line("memory", fmt::format("{}, {} were planned", human_bytes(bench.memory.peak_bytes),
                             human_bytes(bench.memory.planned_bytes)));
  line("step", fmt::format("{:.2f} ms, mean of {} back to back", bench.ms_per_step, bench.steps));
  for (const TrainBench::Phase& phase : bench.phases) {
    print("  {:<24}{:>10.2f} ms{}\n", phase.name, phase.ms,
          &phase == bench.phases.data() ? "   (phases: of steps with marks in between)" : "");
  }
  line("throughput", fmt::format("{:.0f} tokens/s, {}", bench.tokens_per_s, human_quantity(bench.flops, "FLOP/s")));
  line("MFU", fmt::format("{:.1f} % of {} ({})", 100.0 * bench.flops / bench.peak_flops,
                          human_quantity(bench.peak_flops, "FLOP/s"), bench.peak_source));
}

}  // namespace nmoe::cli
