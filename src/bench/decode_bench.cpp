#include "bench/decode_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "bench/timing.h"
#include "infer/load_model.h"
#include "model/placed_weights.h"
#include "model/spec/spec.h"

namespace nmoe {
namespace {

// Another prompt every time, so that no cache has its beginning.
class Prompts {
 public:
  explicit Prompts(int64_t vocab_size) : vocab_size_(static_cast<uint64_t>(vocab_size)) {}
  std::vector<int32_t> next(int64_t size) {
    const Philox random(++seed_, "bench");
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < size; ++i) {
      ids.push_back(static_cast<int32_t>(random.bits(static_cast<uint64_t>(i)) % vocab_size_));
    }
    return ids;
  }

 private:
  uint64_t vocab_size_;
  uint64_t seed_ = 0;
};

GenerationRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling = {.temperature = 0.8, .top_p = 0.95};
  request.ignore_eos = true;
  return request;
}

constexpr int64_t kTokens = 33;  // that each of a batch writes; the first of them is not timed

double bytes_per_step(const Config& config, const std::string& device, int64_t sequences, int64_t context) {
  const ModelSpec spec = describe_model(config.model);
  const bool is_fp32 = device == "cpu" || config.run.precision == Precision::kFp32;
  const double act_bytes = is_fp32 ? 4.0 : 2.0, n = static_cast<double>(sequences);
  double bytes = 0.0;
  for (const WeightSpec& weight : spec.weights) {
    const double size = static_cast<double>(weight.shape.num_elements()) * (weight.is_stat ? 4.0 : act_bytes);
    if (weight.is_looked_up) {
      bytes += n * size / static_cast<double>(weight.shape[0]);
    } else if (weight.per_expert) {
      const double chosen = static_cast<double>(config.model.moe.top_k) / static_cast<double>(weight.shape[0]);
      bytes += size * (1.0 - std::pow(1.0 - chosen, n));
    } else {
      bytes += size;
    }
  }
  double cached = 0.0, fixed = 0.0;  // of a position; of a sequence
  for (const DescribedPart& part : spec.parts()) {
    const StateSpec& kept = part.traits.state_in(config.generation.arithmetic);
    for (const int64_t width : kept.widths) cached += static_cast<double>(width) * act_bytes;
    for (const FixedState& state : kept.fixed) {
      fixed += static_cast<double>(state.shape.num_elements()) * (state.is_stat ? 4.0 : act_bytes);
    }
  }
  return bytes + n * (cached * (static_cast<double>(context) + kTokens / 2.0) + fixed);
}

DecodeBench::Batch time_batch(InferenceEngine& engine, const std::string& device, Prompts& prompts, int64_t sequences,
                              int64_t context) {
  constexpr int kRuns = 3;
  std::vector<double> prompt_rates, rates;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<std::vector<int32_t>> ids;
    for (int64_t i = 0; i < sequences; ++i) ids.push_back(prompts.next(context));
    for (const std::vector<int32_t>& prompt : ids) engine.submit(request_of(prompt, 1), {});
    auto begin = BenchClock::now();
    while (engine.step()) {
    }
    prompt_rates.push_back(1e3 * static_cast<double>(sequences * context) / ms_since(begin));
    // The same again, which are in the cache: all write from the first step on.
    int64_t begun = 0, written = 0;
    for (const std::vector<int32_t>& prompt : ids) {
      GenerationListener listener;
      listener.on_token = [&, first = true](const GeneratedToken&) mutable {
        begun += first ? 1 : 0;
        first = false;
        ++written;
      };
      engine.submit(request_of(prompt, kTokens), std::move(listener));
    }
    while (begun < sequences) engine.step();
    const int64_t first_written = written;
    begin = BenchClock::now();
    while (engine.step()) {
    }
    rates.push_back(1e3 * static_cast<double>(written - first_written) / ms_since(begin));
  }
  return {.sequences = sequences,
          .context = context,
          .prompt_tokens_per_s = median(prompt_rates),
          .tokens_per_s = median(rates),
          .bytes_per_step = bytes_per_step(engine.config(), device, sequences, context)};
}

DecodeBench::Prompts time_prompts(InferenceEngine& engine, Prompts& prompts, const DecodeBenchOptions& options) {
  constexpr int kRuns = 3;
  const int64_t count = options.prompts, most = options.max_prompt - options.min_prompt;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    lengths.push_back(options.min_prompt + (count > 1 ? i * most / (count - 1) : most / 2));
  }
  const Philox random(0, "lengths");
  for (int64_t i = count - 1; i > 0; --i) {
    const uint64_t other = random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(i + 1);
    std::swap(lengths[static_cast<size_t>(i)], lengths[other]);
  }
  DecodeBench::Prompts timed{.prompts = count, .tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0})};
  std::vector<double> rates;
  for (int run = 0; run <= kRuns; ++run) {  // the first one warms up
    for (const int64_t length : lengths) engine.submit(request_of(prompts.next(length), 1), {});
    const auto begin = BenchClock::now();
    while (engine.step()) {
    }
    if (run > 0) rates.push_back(1e3 * static_cast<double>(timed.tokens) / ms_since(begin));
  }
  timed.tokens_per_s = median(rates);
  return timed;
}

// What the cache replaces.
class RerunModel {
 public:
  RerunModel(const Config& config, int num_threads, int64_t max_tokens)
      : weights_(config.model, place_of(num_threads),
                 [&](WeightSet& weights, Storage& storage) {
                   Passes rehearsed(config, max_tokens, weights, storage);
                   rehearsed.run(max_tokens);
                 }),
        passes_(config, max_tokens, weights_.weights(), weights_.storage()) {
    weights_.initialise(static_cast<uint64_t>(config.run.seed), config.model.init.truncation);
    std::vector<int32_t> positions(static_cast<size_t>(max_tokens));
    std::iota(positions.begin(), positions.end(), 0);
    weights_.device().upload(passes_.whole.positions, positions.data());
  }

  double ms_of(const std::vector<int32_t>& ids) {
    const auto size = static_cast<int64_t>(ids.size());
    const auto last = static_cast<int32_t>(size - 1);
    const auto begin = BenchClock::now();
    weights_.device().upload(passes_.whole.tokens.rows(0, size), ids.data());
    weights_.device().upload(passes_.last, &last);
    passes_.run(size);
    return ms_since(begin);
  }

 private:
  // As a variable: of a temporary with designated members GCC 12 warns that they may not be initialised.
  static WeightsPlace place_of(int num_threads) {
    WeightsPlace place;
    place.device.num_threads = num_threads;
    place.work = "the bench";
    return place;
  }

  struct Passes {
    Passes(const Config& config, int64_t max_tokens, WeightSet& weights, Storage& storage)
        : runner(config.model, weights, storage.device(), RunnerRoom::of(storage), {.max_positions = max_tokens}),
          whole(runner.make_batch({.num_seqs = 1, .seq_len = max_tokens})),
          last(storage[ArenaKind::kStepState].allocate(DType::kI32, {1})),
          logits(storage[ArenaKind::kStepState].allocate(DType::kF32, {1, config.model.vocab_size})) {}
    // The logits behind the first `size` tokens.
    void run(int64_t size) {
      const Batch beginning{.num_seqs = 1,
                            .seq_len = size,
                            .tokens = whole.tokens.rows(0, size),
                            .positions = whole.positions.rows(0, size)};
      runner.model().logits(beginning, runner.activations(), logits, last);
    }

    ModelRunner runner;
    Batch whole;
    Tensor last, logits;
  };

  PlacedWeights weights_;
  Passes passes_;
};

// Milliseconds from the beginning of a text to each of its tokens.
std::vector<double> time_text(InferenceEngine& engine, Prompts& prompts, int64_t tokens) {
  std::vector<double> times;
  const auto begin = BenchClock::now();
  GenerationListener listener;
  listener.on_token = [&](const GeneratedToken&) { times.push_back(ms_since(begin)); };
  engine.submit(request_of(prompts.next(1), tokens), std::move(listener));
  while (engine.step()) {
  }
  return times;
}

void time_text_both_ways(InferenceEngine& engine, RerunModel& rerun, Prompts& prompts, DecodeBench& bench) {
  constexpr int kRuns = 5, kLengths = 16;
  const int64_t tokens = bench.tokens, tail = std::max<int64_t>(1, tokens / 8);
  std::vector<double> text, last, rerun_text, rerun_last;
  for (int run = 0; run < kRuns; ++run) {
    const std::vector<double> times = time_text(engine, prompts, tokens);
    text.push_back(times.back());
    const double before_tail = tokens > tail ? times[static_cast<size_t>(tokens - tail - 1)] : 0.0;
    last.push_back((times.back() - before_tail) / static_cast<double>(tail));
    double sum = 0.0;
    for (int i = 0; i < kLengths; ++i) {  // lengths in the middle of sixteenths of the text
      sum += rerun.ms_of(prompts.next(std::max<int64_t>(1, (2 * i + 1) * tokens / (2 * kLengths))));
    }
    rerun_text.push_back(sum / kLengths * static_cast<double>(tokens));
    rerun_last.push_back(rerun.ms_of(prompts.next(tokens)));
  }
  bench.text_ms = median(text);
  bench.last_token_ms = median(last);
  bench.rerun_text_ms = median(rerun_text);
  bench.rerun_last_token_ms = median(rerun_last);
}

}  // namespace

DecodeBench bench_decode(const std::string& checkpoint, const Config& unread,
                         std::shared_ptr<const Tokenizer> tokenizer, const DecodeBenchOptions& bench_options) {
  constexpr int64_t kRoom = 64;
  const std::string& device = bench_options.device;
  const int64_t tokens = bench_options.tokens, num_prompts = bench_options.prompts;
  const bool on_cpu = device == "cpu";
  const std::vector<int64_t> batches = !bench_options.batches.empty() ? bench_options.batches
                                       : on_cpu                       ? std::vector<int64_t>{1, 4, 16}
                                                                      : std::vector<int64_t>{1, 16, 256};
  const int64_t most_texts = std::ranges::max(batches);
  const bool only_prompts = num_prompts > 0;
  const LoadOptions options{
      .device = device,
      .num_threads = bench_options.num_threads,
      .cached = {.num_slots = only_prompts ? std::min(num_prompts, DecodeBenchOptions::kPromptSlots) : most_texts,
                 .capacity = only_prompts ? bench_options.max_prompt : tokens + kRoom,
                 .max_rows = bench_options.pass_rows}};
  auto model = checkpoint.empty() ? random_cached_model(unread, std::move(tokenizer), options)
                                  : load_cached_model(checkpoint, options);
  if (bench_options.pass_rows > 0 && model->max_rows() != bench_options.pass_rows) {
    throw usage_error(
        fmt::format("--pass-rows {}: a pass has {} tokens here at least", bench_options.pass_rows, model->max_rows()),
        fmt::format("give {} or more, or leave it out", model->max_rows()));
  }
  DecodeBench bench{.device = model->device().description(), .batches = {}, .prompts = {}};
  InferenceEngine engine(std::move(model));
  Prompts prompts(engine.tokenizer().vocab_size());
  if (only_prompts) {
    bench.prompts = time_prompts(engine, prompts, bench_options);
    return bench;
  }
  time_batch(engine, device, prompts, most_texts, 1);  // warms up
  for (const int64_t sequences : batches) {
    for (const int64_t context : {std::max<int64_t>(1, tokens / 16), tokens}) {
      bench.batches.push_back(time_batch(engine, device, prompts, sequences, context));
    }
  }
  if (on_cpu) {
    RerunModel rerun(engine.config(), bench_options.num_threads, tokens);
    bench.tokens = tokens;
    time_text_both_ways(engine, rerun, prompts, bench);
  }
  return bench;
}

}  // namespace nmoe
