// Letters as in ops/contracts/exchange.h.
#include "bench/exchange_bench.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "bench/timing.h"
#include "model/experts_exchange.h"
#include "model/spec/moe.h"
#include "model/weight.h"
#include "parallel/domain.h"
#include "parallel/thread_group.h"
#include "rdep/peer_transport.h"
#include "rdep/placement.h"
#include "tensor/convert.h"
#include "train/step/batch_shape.h"
#include "train/step/engine.h"

namespace nmoe {
namespace {

// The experts of each token of a rank, [T, K]: drawn one after the other, those of rank 0 more likely by one factor.
std::vector<int32_t> draw_experts(const Config& config, int64_t rank, int64_t num_tokens, double skew) {
  const int64_t E = config.model.moe.num_experts, K = config.model.moe.top_k, W = config.parallel.ranks, U = E / W;
  const double ranks = static_cast<double>(W);
  const Philox random(static_cast<uint64_t>(config.run.seed), fmt::format("exchange of rank {}", rank));
  uint64_t num_draws = 0;
  std::vector<int32_t> experts;
  experts.reserve(static_cast<size_t>(num_tokens * K));
  for (int64_t token = 0; token < num_tokens; ++token) {
    int64_t left_there = U, left_elsewhere = E - U;
    for (int64_t k = 0; k < K; ++k) {
      // A first choice is on rank 0 with chance skew / W.
      const double there = skew * (ranks - 1.0) * static_cast<double>(left_there),
                   elsewhere = (ranks - skew) * static_cast<double>(left_elsewhere);
      const bool on_first = left_elsewhere == 0 || random.uniform(num_draws++) * (there + elsewhere) < there;
      const int64_t begin = on_first ? 0 : U, size = on_first ? U : E - U;
      const auto chosen = std::span(experts).last(static_cast<size_t>(k));
      int32_t expert = 0;
      do {
        expert =
            static_cast<int32_t>(begin + static_cast<int64_t>(random.bits(num_draws++) % static_cast<uint64_t>(size)));
      } while (std::ranges::find(chosen, expert) != chosen.end());
      experts.push_back(expert);
      --(on_first ? left_there : left_elsewhere);
    }
  }
  return experts;
}

// One rank's tensors, and the operations of a layer on them.
class RankExchange {
 public:
  RankExchange(const Config& config, const Rank& rank, Storage& storage)
      : device_(rank.device),
        ops_(device_.ops()),
        config_(config),
        domain_(rank, storage, std::chrono::seconds(config.parallel.timeout_s)),
        transport_(domain_.experts().peers(), storage[ArenaKind::kPeerWindow]),
        window_(transport_, ops_, exchange_shape(config.model),
                {.max_tokens = num_tokens(config), .capacity_factor = std::numeric_limits<double>::max()},
                {.dispatch_format = config.precision.wire}, storage[ArenaKind::kStepState]) {
    const int64_t T = num_tokens(config), D = travelling_width(config.model), K = config.model.moe.top_k,
                  W = config.parallel.ranks, U = window_.num_slots(), R = W * T * std::min(K, U);
    Arena& arena = storage[ArenaKind::kActivations];
    const DType act = ops_.compute_dtype(), stat = ops_.stat_dtype();
    x_ = arena.allocate(act, {T, D});
    if (config.precision.wire == RowFormat::kFp8) codes_ = push_row_codes(arena, T, D);
    y_ = arena.allocate(act, {T, D});
    rows_ = arena.allocate(act, {R, D});
    weights_ = arena.allocate(stat, {T, K});
    top_idx_ = arena.allocate(DType::kI32, {T, K});
    sent_ = {.send_row = arena.allocate(DType::kI32, {T, W}),
             .num_sent = arena.allocate(DType::kI32, {W}),
             .placement = arena.allocate(DType::kI32, {config.model.moe.num_experts}),
             .num_slots = U};
    device_.upload(sent_.placement, places_in_order(config.model.moe.num_experts).data());
    received_ = {.offsets = arena.allocate(DType::kI32, {U + 1}), .row_of = arena.allocate(DType::kI32, {W * T, K})};
    num_received_ = arena.allocate(DType::kI32, {W});
  }

  static int64_t num_tokens(const Config& config) {
    return batch_shape(config, config.data.seq_len).microbatch_tokens();
  }

  Domain& domain() { return domain_; }

  void route(const std::vector<int32_t>& experts) {
    device_.upload(top_idx_, experts.data());
    ops_.fill({weights_, 1.0});
    // Few different values, of which sums are exact in BF16.
    std::vector<float> values(static_cast<size_t>(x_.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 / 3 % 5);
    std::vector<std::byte> narrowed(static_cast<size_t>(x_.num_bytes()));
    narrow(values.data(), x_.dtype(), narrowed.data(), values.size());
    device_.upload(x_, narrowed.data());
    for (float& value : values) value *= static_cast<float>(config_.model.moe.top_k);
    expected_.resize(narrowed.size());
    narrow(values.data(), x_.dtype(), expected_.data(), values.size());
  }

  // What follows is enqueued; all ranks enqueue alike.
  void plan() { ops_.build_exchange_plan({.top_idx = top_idx_, .plan = sent_, .counts = {}}); }
  // What has codes to travel as, is coded once.
  void code() {
    if (codes_.defined()) ops_.quantize(quantize_rows(x_, codes_));
  }
  void send(const ExchangeInbox& inbox, int64_t max_blocks) {
    transport_.put(ops_, TokensToSend{.plan = sent_,
                                      .x = codes_.defined() ? Tensor() : x_,
                                      .top_idx = top_idx_,
                                      .weights = weights_,
                                      .inbox = inbox,
                                      .max_blocks = max_blocks,
                                      .codes = codes_});
  }
  const ExchangeInbox& next_inbox() { return window_.next_inbox(); }
  void meet() {
    transport_.signal(ops_);
    transport_.wait(ops_, {}, {});
  }
  // Experts that do nothing: what came, at their rows.
  void gather(const ExchangeInbox& inbox) {
    const auto flat = [](const Tensor& x) { return x.reshape({x.dim(0) * x.dim(1), x.dim(2)}); };
    ops_.copy({.source = inbox.counts, .destination = num_received_});
    ops_.build_moe_plan({.top_idx = flat(inbox.slots), .plan = received_, .counts = {}, .part_sizes = num_received_});
    const Tensor x = codes_.defined() ? Tensor() : flat(inbox.rows);
    ops_.moe_dispatch({.x = x, .plan = received_, .rows = rows_, .codes = inbox.codes});
  }
  void return_rows(int64_t max_blocks) {
    transport_.put(ops_, SumsToReturn{.rows = rows_,
                                      .row_weight = {},
                                      .row_of = received_.row_of,
                                      .counts = num_received_,
                                      .returns = window_.returns(),
                                      .max_blocks = max_blocks});
  }
  void collect() {
    const int64_t rank = transport_.index(), T = y_.dim(0);
    ops_.exchange_collect({.plan = sent_,
                           .top_idx = top_idx_,
                           .own = {.rank = rank,
                                   .rows = rows_,
                                   .row_weight = {},
                                   .row_of = received_.row_of.rows(rank * T, (rank + 1) * T)},
                           .returns = window_.returns(),
                           .y = y_});
  }

  // Throws unless the last round trip brought back every copy of what was sent.
  void check() {
    std::vector<std::byte> got(expected_.size());
    device_.download(got.data(), y_);
    domain_.check();
    const auto [wrong, right] = std::ranges::mismatch(got, expected_);
    NMOE_CHECK(wrong == got.end(), "byte {} of what came back is {}, not {}", wrong - got.begin(),
               static_cast<int>(*wrong), static_cast<int>(*right));
  }
  std::vector<int32_t> download_i32(const Tensor& x) {
    std::vector<int32_t> values(static_cast<size_t>(x.num_elements()));
    device_.download(values.data(), x);
    return values;
  }
  // By rank.
  std::vector<int32_t> num_sent() { return download_i32(sent_.num_sent); }
  int64_t num_rows() { return download_i32(received_.offsets).back(); }

 private:
  Device& device_;
  Ops& ops_;
  const Config& config_;
  Domain domain_;
  PeerTransport transport_;
  ExchangeWindow window_;
  Tensor x_, y_;         // [T, D]
  RowCodes codes_;       // of x_, where those travel
  Tensor rows_;          // [R, D]
  Tensor weights_;       // [T, K] stat
  Tensor top_idx_;       // [T, K] i32
  ExchangePlan sent_;    // this rank's tokens
  MoePlan received_;     // all tokens' copies here
  Tensor num_received_;  // [W] i32
  std::vector<std::byte> expected_;
};

// Median of the slowest rank's: work enqueued many times over, all ranks beginning at once.
class ExchangeTimer {
 public:
  ExchangeTimer(Device& device, Communicator& communicator, RankExchange& exchange)
      : device_(device), communicator_(communicator), exchange_(exchange), done_(device.make_event(Lane::kCompute)) {}

  double ms(const std::function<void()>& work) {
    constexpr int kRounds = 9;
    constexpr double kRoundMs = 10.0;
    constexpr double kMostCalls = 50.0;
    run(work);  // what is loaded at first use
    const double once = slowest(run(work));
    const int num_calls = static_cast<int>(std::clamp(kRoundMs / once, 1.0, kMostCalls));
    const auto recording = device_.record([&] {
      exchange_.meet();
      for (int call = 0; call < num_calls; ++call) work();
    });
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      rounds.push_back(slowest(run([&] { recording->run(); })) / num_calls);
    }
    exchange_.domain().check();
    return median(std::move(rounds));
  }

 private:
  double run(const std::function<void()>& work) {
    communicator_.barrier();
    const auto begin = BenchClock::now();
    work();
    done_->record();
    done_->wait();
    return ms_since(begin);
  }
  // The same on all ranks.
  double slowest(double ms) const { return std::ranges::max(communicator_.all_gather_values(ms)); }

  Device& device_;
  Communicator& communicator_;
  RankExchange& exchange_;
  std::unique_ptr<Event> done_;
};

StoragePlan plan_exchange(const Config& config) {
  return plan_storage(device_options(config.run, config.parallel.ranks), [&](Storage& storage) {
    const auto ranks = make_null_communicator(0, config.parallel.ranks, config.parallel.ranks);
    RankExchange exchange(config, {storage.device(), *ranks}, storage);
    exchange.plan();
    exchange.gather(exchange.next_inbox());
  });
}

ExchangeBench bench_rank(const Config& config, const ExchangeBenchOptions& options, const StoragePlan& plan,
                         Communicator& communicator) {
  const auto memory =
      RankMemory::make(device_options(config.run, communicator.count(), communicator.index()), plan, communicator);
  Device& device = *memory->device;
  RankExchange exchange(config, {device, communicator}, memory->storage);
  const MoeConfig& moe = config.model.moe;

  ExchangeBench bench;
  bench.device = device.description();
  bench.software = device.software();
  bench.num_ranks = communicator.count();
  bench.tokens = RankExchange::num_tokens(config);
  bench.width = travelling_width(config.model);
  bench.num_experts = moe.num_experts;
  bench.top_k = moe.top_k;
  bench.row_bytes = bench.width * static_cast<int64_t>(dtype_bytes(device.ops().compute_dtype()));
  bench.sent_row_bytes = config.precision.wire == RowFormat::kFp8 ? row_code_bytes(bench.width) : bench.row_bytes;
  bench.expected_rows_per_token =
      exchange_cost(config, device.ops().compute_dtype(), communicator.count(), /*layer=*/0).rows_per_token();

  exchange.route(draw_experts(config, communicator.index(), bench.tokens, options.skew));
  exchange.plan();
  exchange.code();
  const ExchangeInbox& inbox = exchange.next_inbox();
  const auto layer = [&](int64_t max_blocks) {
    exchange.send(inbox, max_blocks);
    exchange.meet();
    exchange.return_rows(max_blocks);
    exchange.meet();
    exchange.collect();
  };
  exchange.send(inbox, 0);
  exchange.meet();
  exchange.gather(inbox);
  for (const int64_t max_blocks : options.max_blocks) {
    layer(max_blocks);
    exchange.check();
  }

  for (const int32_t rows : exchange.num_sent()) bench.rows_to_others.push_back(rows);
  const std::vector<int64_t> loads = communicator.all_gather_values(exchange.num_rows());
  bench.rank_load_max_over_mean = static_cast<double>(std::ranges::max(loads) * bench.num_ranks) /
                                  static_cast<double>(std::reduce(loads.begin(), loads.end()));

  ExchangeTimer timer(device, communicator, exchange);
  for (const int64_t max_blocks : options.max_blocks) {
    bench.runs.push_back({.max_blocks = max_blocks,
                          .send_ms = timer.ms([&] { exchange.send(inbox, max_blocks); }),
                          .return_ms = timer.ms([&] { exchange.return_rows(max_blocks); }),
                          .barrier_ms = timer.ms([&] { exchange.meet(); }),
                          .collect_ms = timer.ms([&] { exchange.collect(); }),
                          .layer_ms = timer.ms([&] { layer(max_blocks); })});
  }
  return bench;
}

void check_options(const Config& config, const ExchangeBenchOptions& options) {
  const int64_t ranks = config.parallel.ranks;
  if (config.model.moe.num_experts == 0) {
    throw usage_error("a model without experts exchanges no tokens", "give a configuration with model.moe.num_experts");
  }
  if (ranks == 1) throw usage_error("one rank exchanges no tokens", "add --ranks 2 or more");
  if (config.parallel.logical_shards > 0) {
    throw usage_error("rows are exchanged as without parallel.logical_shards", "add --set parallel.logical_shards=0");
  }
  const bool sets_blocks = std::ranges::any_of(options.max_blocks, [](int64_t blocks) { return blocks != 0; });
  if (config.run.device == "cpu" && sets_blocks) {
    throw usage_error("--blocks: CPUs have none", "leave it out, or add --set run.device=cuda");
  }
  if (options.skew < 1.0 || options.skew > static_cast<double>(ranks)) {
    throw usage_error(
        fmt::format("--skew {}: a rank of {} gets from 1 to {} times the mean", options.skew, ranks, ranks),
        "choose a number from 1 to the number of ranks");
  }
}

// Of one rank in the mean, `rows` being of each.
double gb_per_s(const std::vector<int64_t>& rows, int64_t row_bytes, double ms) {
  const auto sum = static_cast<double>(std::reduce(rows.begin(), rows.end()));
  return sum * static_cast<double>(row_bytes) / static_cast<double>(rows.size()) / ms / 1e6;
}

}  // namespace

double ExchangeBench::send_gb_per_s(double ms) const { return gb_per_s(rows_to_others, sent_row_bytes, ms); }
double ExchangeBench::return_gb_per_s(double ms) const { return gb_per_s(rows_for_others, row_bytes, ms); }

ExchangeBench bench_exchange(const Config& config, const ExchangeBenchOptions& options) {
  check_options(config, options);
  const StoragePlan plan = plan_exchange(config);
  ExchangeBench bench;
  const auto ranks = static_cast<size_t>(config.parallel.ranks);
  std::vector<std::vector<int64_t>> sent(ranks);  // by rank, rows to each
  run_ranks(config.parallel.ranks, std::chrono::seconds(config.parallel.timeout_s), [&](Communicator& communicator) {
    ExchangeBench mine = bench_rank(config, options, plan, communicator);
    sent[static_cast<size_t>(communicator.index())] = mine.rows_to_others;
    communicator.barrier();
    if (communicator.index() == 0) bench = std::move(mine);
  });
  bench.rows_to_others.assign(ranks, 0);
  bench.rows_for_others.assign(ranks, 0);
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      if (from == to) continue;
      bench.rows_to_others[from] += sent[from][to];
      bench.rows_for_others[to] += sent[from][to];
    }
  }
  return bench;
}

}  // namespace nmoe
