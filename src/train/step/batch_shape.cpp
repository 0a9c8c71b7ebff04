#include "train/step/batch_shape.h"

#include <algorithm>

#include "base/error.h"
#include "model/spec/cost.h"

namespace nmoe {
namespace {

// Bytes that the link to the host moves while a GPU computes a FLOP, of which an H100 reaches some 400e12 a second
// where the link has 50 GB/s; times 1.5, as bytes too many delay forward's end by no more than they shorten the update.
constexpr double kLinkBytesPerFlop = 1.5 * 50e9 / 400e12;

void check_length(const Config& config, const MixtureStage& stage) {
  const int64_t tokens = step_tokens(config), ranks = config.parallel.ranks;
  const std::string what =
      fmt::format("{}: [stages.{}] has seq_len = {}", config.data.mixture, stage.name, stage.seq_len);
  if (stage.seq_len % config.data.align_documents != 0) {
    throw usage_error(fmt::format("{}, no multiple of data.align_documents = {}", what, config.data.align_documents),
                      "choose a multiple, or a data.align_documents that divides every stage's seq_len");
  }
  if (tokens % stage.seq_len != 0) {
    throw usage_error(
        fmt::format("{}, which does not divide the {} tokens of a step (train.batch_seqs = {} of data.seq_len = {})",
                    what, tokens, config.train.batch_seqs, config.data.seq_len),
        "choose a divisor, or another train.batch_seqs: a step has as many tokens in every stage");
  }
  if (tokens / stage.seq_len % ranks != 0) {
    throw usage_error(fmt::format("{}: the {} such sequences of a step cannot be shared by {} ranks equally", what,
                                  tokens / stage.seq_len, ranks),
                      "raise train.batch_seqs, or lower parallel.ranks or the stage's seq_len");
  }
  if (const int64_t shards = config.parallel.logical_shards; shards > 0 && tokens / stage.seq_len % shards != 0) {
    throw usage_error(fmt::format("{}: the {} such sequences of a step are not {} equal microbatches", what,
                                  tokens / stage.seq_len, shards),
                      "raise train.batch_seqs, or lower parallel.logical_shards or the stage's seq_len");
  }
  const int64_t most = config.model.max_positions > 0 ? config.model.max_positions : config.data.seq_len;
  if (stage.seq_len > most) {
    throw usage_error(fmt::format("{}, longer than the model is meant for: model.max_positions = {}{}", what,
                                  config.model.max_positions,
                                  config.model.max_positions > 0 ? "" : fmt::format(" (data.seq_len, {})", most)),
                      fmt::format("set model.max_positions = {} or more", stage.seq_len));
  }
}

}  // namespace

int64_t step_tokens(const Config& config) { return config.train.batch_seqs * config.data.seq_len; }

BatchShape batch_shape(const Config& config, int64_t seq_len) {
  BatchShape shape{.seq_len = seq_len, .batch_seqs = step_tokens(config) / seq_len};
  const int64_t of_rank = shape.batch_seqs / config.parallel.ranks;
  NMOE_CHECK(of_rank > 0 && of_rank * config.parallel.ranks * seq_len == step_tokens(config),
             "sequences of {} in steps of {} tokens on {} ranks", seq_len, step_tokens(config), config.parallel.ranks);
  if (const int64_t shards = config.parallel.logical_shards; shards > 0) {
    NMOE_CHECK(shape.batch_seqs % shards == 0, "{} sequences in {} microbatches", shape.batch_seqs, shards);
    shape.microbatch_seqs = shape.batch_seqs / shards;
    return shape;
  }
  shape.microbatch_seqs = std::clamp<int64_t>(config.train.microbatch_seqs * config.data.seq_len / seq_len, 1, of_rank);
  while (of_rank % shape.microbatch_seqs != 0) --shape.microbatch_seqs;
  return shape;
}

std::vector<BatchShape> batch_shapes(const Config& config, std::span<const int64_t> seq_lens) {
  if (seq_lens.empty()) return {batch_shape(config, config.data.seq_len)};
  NMOE_CHECK(seq_lens[0] == config.data.seq_len, "sequences of {} first, not of {}", seq_lens[0], config.data.seq_len);
  std::vector<BatchShape> shapes;
  for (const int64_t seq_len : seq_lens) shapes.push_back(batch_shape(config, seq_len));
  return shapes;
}

int64_t state_bytes_beside_forward(const Config& config, const BatchShape& shape) {
  if (config.train.recompute.any([](Recompute level) { return level == Recompute::kHost; })) return 0;
  constexpr double kForward = 1.0 / 3.0;  // of training
  const double flops = kForward * model_cost(config.model).flops_per_token(shape.seq_len) *
                       static_cast<double>(shape.microbatch_tokens());
  return static_cast<int64_t>(kLinkBytesPerFlop * flops);
}

ExchangeLimits exchange_limits(const Config& config, std::span<const BatchShape> shapes) {
  return {.max_tokens = std::ranges::max(shapes, {}, &BatchShape::microbatch_tokens).microbatch_tokens(),
          .capacity_factor = config.parallel.capacity_factor};
}

std::vector<int64_t> sequence_lengths(const Config& config, const Mixture* mixture) {
  std::vector<int64_t> lengths = {config.data.seq_len};
  if (mixture == nullptr) return lengths;
  for (const MixtureStage& stage : mixture->stages) {
    if (stage.seq_len == 0 || std::ranges::find(lengths, stage.seq_len) != lengths.end()) continue;
    check_length(config, stage);
    lengths.push_back(stage.seq_len);
  }
  return lengths;
}

}  // namespace nmoe
