#include "train/step/step_exchange.h"

#include <algorithm>
#include <cmath>

#include "model/spec/spec.h"
#include "optim/optimizer.h"
#include "train/step/look_ahead.h"

namespace nmoe {

namespace {

BatchRows<Tensor> allocate_rows(const Objectives& objectives, int64_t num_tokens, Arena& arena) {
  BatchRows<Tensor> rows;
  for (size_t i = 0; i < kBatchRows.size(); ++i) {
    const auto row = static_cast<BatchRow>(i);
    if (reads(objectives, row)) rows[row] = arena.allocate(row_info(row).dtype, {num_tokens});
  }
  return rows;
}

std::vector<AheadRows> allocate_ahead(const Config& config, int64_t num_tokens, Arena& arena) {
  std::vector<AheadRows> ahead(static_cast<size_t>(config.model.mtp.depth));
  for (AheadRows& rows : ahead) {
    rows = {.tokens = arena.allocate(DType::kI32, {num_tokens}), .targets = arena.allocate(DType::kI32, {num_tokens})};
  }
  return ahead;
}

}  // namespace

int64_t num_losses(const Config& config) { return std::ssize(objectives_of(config.train)) + config.model.mtp.depth; }

double depth_weight(const Config& config, const Progress& progress) {
  const MtpConfig& mtp = config.model.mtp;
  if (mtp.depth == 0) return 0.0;
  const bool in_tokens = config.optim.schedule.unit == ScheduleUnit::kTokens;
  const int64_t done = in_tokens ? progress.tokens - step_tokens(config) : progress.steps - 1;
  const bool is_later = mtp.later_from > 0 && done >= mtp.later_from;
  return (is_later ? mtp.later_loss_weight : mtp.loss_weight) / static_cast<double>(mtp.depth);
}

StepInputs allocate_step_inputs(const Config& config, int64_t rank, std::span<const BatchShape> shapes, Arena& arena) {
  StepInputs inputs;
  const int64_t begin = arena.mark();
  const Objectives objectives = objectives_of(config.train);
  inputs.loss_scale = arena.allocate(DType::kF64, {num_losses(config)});
  inputs.rates = Optimizer::allocate_rates(config.optim, describe_model(config.model).weights, arena);
  inputs.rounding_key = arena.allocate(DType::kI64, {1});
  const int64_t batches = arena.mark();
  int64_t end = batches;
  for (const BatchShape& shape : shapes) {
    arena.rewind(batches);
    const int64_t T = shape.microbatch_tokens();
    std::vector<Batch>& microbatches = inputs.batches.emplace_back();
    for (int64_t i = 0; i < shape.num_microbatches(config.parallel.ranks); ++i) {
      microbatches.push_back(
          {.num_seqs = shape.microbatch_seqs,
           .seq_len = shape.seq_len,
           .tokens = arena.allocate(DType::kI32, {T}),
           .rows = allocate_rows(objectives, T, arena),
           .positions = arena.allocate(DType::kI32, {T}),
           .cu_seqlens = config.data.mask_documents ? arena.allocate(DType::kI32, {T + 1}) : Tensor(),
           .part = shape.part(rank, config.parallel.ranks, i),
           .ahead = allocate_ahead(config, T, arena)});
    }
    end = std::max(end, arena.mark());
  }
  if (arena.mark() < end) arena.allocate(DType::kU8, {end - arena.mark()});
  inputs.block = Tensor(inputs.loss_scale.raw(), DType::kU8, {end - begin});
  return inputs;
}

Batch fill_batch(Batch batch, const Microbatch& microbatch, const PutBytes& put) {
  const auto T = static_cast<int64_t>(microbatch.tokens.size());
  NMOE_CHECK(T % batch.seq_len == 0 && T <= batch.num_tokens(),
             "a microbatch of {} tokens, at most {} in sequences of {}", T, batch.num_tokens(), batch.seq_len);
  const bool masks_documents = batch.cu_seqlens.defined();
  NMOE_CHECK((microbatch.documents != nullptr) == masks_documents,
             "data.mask_documents is {}, and a microbatch came with{} documents", masks_documents,
             microbatch.documents != nullptr ? "" : "out");
  batch.num_seqs = T / batch.seq_len;
  batch.tokens = batch.tokens.rows(0, T);
  batch.positions = batch.positions.rows(0, T);
  put(batch.tokens, std::as_bytes(microbatch.tokens));
  for (size_t i = 0; i < kBatchRows.size(); ++i) {
    const auto row = static_cast<BatchRow>(i);
    const std::span<const std::byte> values = microbatch.rows[row];
    const size_t room = batch.rows[row].defined() ? static_cast<size_t>(T) * dtype_bytes(row_info(row).dtype) : 0;
    NMOE_CHECK(values.size() == room, "{} bytes of {} for {} tokens, in a step that has {}", values.size(),
               row_info(row).name, T, room);
    if (room == 0) continue;
    batch.rows[row] = batch.rows[row].rows(0, T);
    put(batch.rows[row], values);
  }
  if (masks_documents) {
    const Documents& documents = *microbatch.documents;
    const auto capacity = static_cast<size_t>(batch.cu_seqlens.dim(0));
    NMOE_CHECK(documents.positions.size() == microbatch.tokens.size() && documents.cu_seqlens.size() <= capacity,
               "{} positions and {} document bounds for {} tokens", documents.positions.size(),
               documents.cu_seqlens.size(), T);
    std::vector<int32_t> cu_seqlens(capacity, static_cast<int32_t>(T));
    std::ranges::copy(documents.cu_seqlens, cu_seqlens.begin());
    put(batch.cu_seqlens, std::as_bytes(std::span(cu_seqlens)));
    put(batch.positions, std::as_bytes(std::span(documents.positions)));
  }
  return batch;
}

void fill_ahead(const Batch& batch, const Microbatch& microbatch, const PutBytes& put) {
  const size_t count = batch.ahead.empty() ? 0 : microbatch.tokens.size();
  std::vector<int32_t> tokens(count), targets(count);
  for (size_t i = 0; i < batch.ahead.size(); ++i) {
    look_ahead(microbatch, batch.seq_len, static_cast<int64_t>(i) + 1, tokens, targets);
    put(batch.ahead[i].tokens, std::as_bytes(std::span(tokens)));
    put(batch.ahead[i].targets, std::as_bytes(std::span(targets)));
  }
}

void fill_positions(const Batch& batch, const PutBytes& put) {
  std::vector<int32_t> positions(static_cast<size_t>(batch.num_tokens()));
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<int32_t>(batch.part.first_position + static_cast<int64_t>(i) % batch.seq_len);
  }
  put(batch.positions, std::as_bytes(std::span(positions)));
}

double StepResult::loss(const Objective& objective) const {
  const auto found = std::ranges::find(losses, &objective, &StepLoss::objective);
  NMOE_CHECK(found != losses.end(), "{} is not an objective of the run", objective.metric.tag);
  return found->value;
}

double RouterHealth::bias_range() const {
  const auto [low, high] = std::ranges::minmax(bias);
  return static_cast<double>(high) - static_cast<double>(low);
}

StepSlot::StepSlot(const Config& config, std::span<const BatchShape> shapes, const Model& model, const Rank& rank,
                   Arena& arena, bool with_expert_rows, Tensor rounding_counts)
    : device_(rank.device),
      inputs_(allocate_step_inputs(config, rank.index(), shapes, arena)),
      objectives_(objectives_of(config.train)),
      config_(config),
      counts_{.num_targets = 1, .num_tokens = step_tokens(config)},
      sums_(arena.allocate(DType::kF64, {num_losses(config) + 1})),
      predictions_(arena.allocate(DType::kI32, {config.model.mtp.depth * step_tokens(config) / config.parallel.ranks})),
      losses_(arena.allocate(rank.device.ops().stat_dtype(),
                             {num_losses(config) * step_tokens(config) / config.parallel.ranks})),
      expert_rows_(model.router_counts()),
      rounding_counts_(rounding_counts),
      done_(rank.device.make_event(Lane::kCompute)) {
  const auto like = [&](Tensor tensor) { return arena.allocate(tensor.dtype(), tensor.shape()); };
  for (const Moe* moe : model.moe_layers()) {
    Router router;
    router.layer = moe->layer();
    router.stats.counts = like(moe->stats().counts);
    router.stats.aux_loss = like(moe->stats().aux_loss);
    router.stats.entropy = like(moe->stats().entropy);
    router.bias = like(moe->router_bias().value);
    routers_.push_back(router);
  }
  if (const ExchangeStats& stats = model.exchange_stats(); stats.traffic.defined()) {
    exchanges_ = {.traffic = like(stats.traffic),
                  .waited = like(stats.waited),
                  .lasted = like(stats.lasted),
                  .exposed = like(stats.exposed)};
  }
  if (with_expert_rows) fetched_expert_rows_ = like(expert_rows_);
  if (rounding_counts_.defined()) fetched_counts_ = like(rounding_counts_);
  fill_positions();
}

void StepSlot::set_shape(size_t shape) {
  if (shape == shape_) return;
  shape_ = shape;
  fill_positions();
}

void StepSlot::fill_positions() {
  if (device_.counting()) return;
  for (const Batch& batch : batches()) {
    nmoe::fill_positions(batch, [](Tensor destination, std::span<const std::byte> values) {
      std::ranges::copy(values, static_cast<std::byte*>(destination.raw()));
    });
  }
}

void StepSlot::set_targets(const StepTargets& targets, const Progress& progress) {
  counts_.num_targets = std::max<int64_t>(1, targets.next);  // a step without any has loss 0
  const auto depth = static_cast<size_t>(config_.model.mtp.depth);
  NMOE_CHECK(device_.counting() || targets.ahead.size() == depth, "targets of {} depths, of {}", targets.ahead.size(),
             depth);
  ahead_counts_ = targets.ahead;
  counts_.num_seqs = counts_.num_tokens / batches().front().seq_len;
  has_routers_ = has_losses_ = has_counts_ = false;
  if (device_.counting()) return;
  for (size_t i = 0; i < objectives_.size(); ++i) {
    const auto& [objective, coefficient] = objectives_[i];
    inputs_.loss_scale.data<double>()[i] = coefficient / static_cast<double>(objective->divisor(counts_));
  }
  for (size_t i = 0; i < depth; ++i) {
    inputs_.loss_scale.data<double>()[objectives_.size() + i] =
        depth_weight(config_, progress) / static_cast<double>(std::max<int64_t>(1, ahead_counts_[i]));
  }
}

void StepSlot::fetch_results(Tensor sums) {
  device_.begin_download(sums_.raw(), sums);
  if (fetched_expert_rows_.defined()) device_.begin_download(fetched_expert_rows_.raw(), expert_rows_);
  done_->record();
}

void StepSlot::fetch_routers(const Model& model) {
  for (size_t i = 0; i < routers_.size(); ++i) {
    const Moe& moe = *model.moe_layers()[i];
    device_.begin_download(routers_[i].stats.counts.raw(), moe.stats().counts);
    device_.begin_download(routers_[i].stats.aux_loss.raw(), moe.stats().aux_loss);
    device_.begin_download(routers_[i].stats.entropy.raw(), moe.stats().entropy);
    device_.begin_download(routers_[i].bias.raw(), moe.router_bias().value);
  }
  const std::vector<Tensor> on_device = model.exchange_stats().tensors(), here = exchanges_.tensors();
  for (size_t i = 0; i < here.size(); ++i) device_.begin_download(here[i].raw(), on_device[i]);
  has_routers_ = true;
  done_->record();
}

void StepSlot::fetch_losses(Tensor losses) {
  device_.begin_download(losses_.raw(), losses);
  has_losses_ = true;
  done_->record();
}

void StepSlot::fetch_predictions(Tensor predictions) {
  device_.begin_download(predictions_.raw(), predictions);
  done_->record();
}

void StepSlot::fetch_rounding_counts() {
  device_.begin_download(fetched_counts_.raw(), rounding_counts_);
  has_counts_ = true;
  done_->record();
}

std::span<const double> StepSlot::rounding_counts() const {
  return has_counts_ ? fetched_counts_.span<double>() : std::span<const double>();
}

StepResult StepSlot::wait() const {
  done_->wait();
  StepResult result;
  result.finite = true;
  for (size_t i = 0; i < objectives_.size(); ++i) {
    const auto& [objective, coefficient] = objectives_[i];
    const double mean = sums_.data<double>()[i] / static_cast<double>(objective->divisor(counts_));
    result.losses.push_back({objective, coefficient * mean});
    result.finite = result.finite && std::isfinite(mean);
  }
  for (size_t i = 0; i < ahead_counts_.size(); ++i) {
    const double mean =
        sums_.data<double>()[objectives_.size() + i] / static_cast<double>(std::max<int64_t>(1, ahead_counts_[i]));
    result.depths.push_back(
        {.loss = mean, .num_targets = ahead_counts_[i], .num_right = has_losses_ ? num_right(i) : 0});
    result.finite = result.finite && std::isfinite(mean);
  }
  result.grad_norm = std::sqrt(sums_.data<double>()[objectives_.size() + ahead_counts_.size()]);
  result.finite = result.finite && std::isfinite(result.grad_norm);
  if (has_losses_) result.token_losses = next_token_losses();
  if (fetched_expert_rows_.defined()) {
    const auto rows = fetched_expert_rows_.span<int32_t>();
    result.expert_rows.assign(rows.begin(), rows.end());
  }
  for (size_t i = 0; has_routers_ && i < routers_.size(); ++i) {
    const auto& [layer, stats, bias] = routers_[i];
    const std::span<const int32_t> counts = stats.counts.span<int32_t>();
    RouterHealth& health = result.routers.emplace_back();
    health.layer = layer;
    health.counts.assign(counts.begin(), counts.end());
    health.balance_loss = stats.aux_loss.data<double>()[0];
    health.z_loss = stats.aux_loss.data<double>()[1];
    health.entropy = stats.entropy.data<double>()[0] / static_cast<double>(counts_.num_tokens);
    health.bias.assign(bias.span<float>().begin(), bias.span<float>().end());
    if (exchanges_.traffic.defined()) result.traffic.push_back(traffic_of(static_cast<int64_t>(i)));
  }
  return result;
}

// Each microbatch's are the first of its objectives'.
std::vector<float> StepSlot::next_token_losses() const {
  std::vector<float> of_tokens;
  const auto all = losses_.span<float>();
  size_t first = 0;
  for (const Batch& batch : batches()) {
    const auto T = static_cast<size_t>(batch.num_tokens());
    const auto mine = all.subspan(first, T);
    of_tokens.insert(of_tokens.end(), mine.begin(), mine.end());
    first += (objectives_.size() + ahead_counts_.size()) * T;
  }
  return of_tokens;
}

int64_t StepSlot::num_right(size_t depth) const {
  int64_t count = 0;
  size_t first = 0;
  for (const Batch& batch : batches()) {
    const auto T = static_cast<size_t>(batch.num_tokens());
    const std::span<const int32_t> targets = batch.ahead[depth].targets.span<int32_t>(),
                                   predicted = predictions_.span<int32_t>().subspan(first + depth * T, T);
    for (size_t i = 0; i < T; ++i) count += targets[i] >= 0 && targets[i] == predicted[i] ? 1 : 0;
    first += batch.ahead.size() * T;
  }
  return count;
}

// Of the i-th layer with experts.
LayerTraffic StepSlot::traffic_of(int64_t i) const {
  const int64_t num_ranks = exchanges_.traffic.dim(0), in_domain = exchanges_.traffic.dim(3);
  LayerTraffic layer{.layer = routers_[static_cast<size_t>(i)].layer,
                     .ranks = std::vector<RankTraffic>(static_cast<size_t>(num_ranks))};
  for (int64_t from = 0; from < num_ranks; ++from) {
    RankTraffic& sender = layer.ranks[static_cast<size_t>(from)];
    const std::span<const int32_t> sent = exchanges_.traffic[from][i].span<int32_t>();
    const std::span<const double> waited = exchanges_.waited[from][i].span<double>();
    const std::span<const double> lasted = exchanges_.lasted[from][i].span<double>(),
                                  exposed = exchanges_.exposed[from][i].span<double>();
    for (size_t transfer = 0; transfer < kTransfers.size(); ++transfer) {
      sender.waited_ms[transfer] = 1e-6 * waited[transfer];
      sender.lasted_ms[transfer] = 1e-6 * lasted[transfer];
      // Where lanes take turns all is done when it is waited for, and nothing was done beside it.
      const double exposed_ms = device_.lanes_overlap() ? 1e-6 * exposed[transfer] : sender.lasted_ms[transfer];
      sender.exposed_ms[transfer] = std::min(exposed_ms, sender.lasted_ms[transfer]);
    }
    for (int64_t to = 0; to < in_domain; ++to) {
      const int64_t rank = from / in_domain * in_domain + to;
      const int32_t tokens = sent[static_cast<size_t>(to)], copies = sent[static_cast<size_t>(in_domain + to)];
      RankTraffic& receiver = layer.ranks[static_cast<size_t>(rank)];
      receiver.rows += copies;
      if (rank == from) continue;
      sender.sent += tokens;
      sender.sent_copies += copies;
      receiver.received += tokens;
      receiver.received_copies += copies;
    }
  }
  return layer;
}

}  // namespace nmoe
