#include "train/step/engine.h"

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "data/stream/loader.h"
#include "model/weight_formats.h"

namespace nmoe {

Engine::Engine(const Config& config, const Rank& rank, Storage& storage, std::span<const int64_t> seq_lens)
    : config_(config),
      rank_(rank),
      storage_(storage),
      device_(storage.device()),
      ops_(device_.ops()),
      activations_(storage[ArenaKind::kActivations]),
      shapes_(batch_shapes(config, seq_lens)),
      upload_([this](Tensor destination, std::span<const std::byte> values) {
        device_.upload(destination, values.data());
      }),
      write_([this](Tensor destination, std::span<const std::byte> values) {
        if (!ops_.counting()) std::ranges::copy(values, static_cast<std::byte*>(destination.raw()));
      }),
      domain_(rank, storage, std::chrono::seconds(config_.parallel.timeout_s)),
      objectives_(objectives_of(config_.train)),
      weights_(describe_model(config_.model).weights,
               {.experts = {.index = domain_.experts().index(), .count = domain_.experts().count()},
                .updates = {.index = domain_.shards().index(),
                            .count = domain_.shards().count(),
                            .by_matrix = Optimizer::by_matrix(config_.optim),
                            .narrowest = Optimizer::narrowest_state(config_.optim, ops_.stat_dtype()),
                            .bucket_bytes = config_.parallel.bucket_bytes,
                            .in_order = in_order()},
                .data = {.index = rank.mesh().data().index(), .count = rank.mesh().data().count()}}),
      runner_(config_.model, weights_, device_, RunnerRoom::of(storage),
              {.max_positions = std::ranges::max(shapes_, {}, &BatchShape::seq_len).seq_len,
               .passes = {.recompute = config_.train.recompute,
                          .wire = config_.precision.wire,
                          .saved = config_.precision.saved,
                          .objectives = objectives_}}),
      model_(runner_.model()) {
  if (in_order() && !domain_.shard_replicas().alone()) {
    throw usage_error("parallel.logical_shards is for the ranks of one process",
                      "start one process, or leave out parallel.logical_shards");
  }
  NMOE_CHECK(&rank.device == &device_, "storage on the device of another rank than {}", rank.index());
  Arena& step_state = storage[ArenaKind::kStepState];
  model_.keep_inputs_in(storage[ArenaKind::kHostInputs]);
  weights_.allocate(ops_, storage[ArenaKind::kParameters], storage[ArenaKind::kGradients], Masters::kWithoutRest,
                    config_.train.gradients);
  inputs_ = allocate_step_inputs(config_, rank.index(), shapes_, step_state);
  set_operand_formats(weights_, config_, inputs_.rounding_key);
  weights_.set_gradient_key(inputs_.rounding_key);
  allocate_weight_codes(weights_, ops_, storage[ArenaKind::kWeightCodes]);
  allocate_exchange(step_state);  // which has room for rows' codes if weights have codes
  precision_ = PrecisionChecks::make(config_, weights_, step_state);
  for (const Batch& batch : inputs_.batches[0]) fill_positions(batch, upload_);
  const StateMemory state_memory{storage[ArenaKind::kOptimizer], storage[ArenaKind::kHostState],
                                 state_bytes_beside_forward(config_, shapes_[0])};
  optimizer_ =
      std::make_unique<Optimizer>(config_.optim, weights_, ops_, state_memory, inputs_.rates, inputs_.rounding_key);
  for (int64_t i = 0; i < kMaxPending; ++i) {
    slots_.emplace_back(config_, shapes_, model_, rank_, storage[ArenaKind::kExchange],
                        /*with_expert_rows=*/!experts_.rows.empty(), precision_ ? precision_->counts() : Tensor());
  }
  forget_recordings();

  const int64_t tokens = exchange_limits(config_, shapes_).max_tokens;
  const int64_t rank_tokens = step_tokens(config_) / config_.parallel.ranks;
  losses_ = step_state.allocate(ops_.stat_dtype(), {num_losses(config_) * rank_tokens});
  depth_predictions_ = step_state.allocate(DType::kI32, {config_.model.mtp.depth * rank_tokens});
  predictions_ = step_state.allocate(DType::kI32, {tokens});
  allocate_sums(step_state);
  grad_scale_ = step_state.allocate(DType::kF64, {1});
  stopped_ = step_state.allocate(DType::kI32, {1});
  bad_count_ = step_state.allocate(DType::kI32, {1});
  collect_shared_tensors();
  ops_.fill({stopped_, 0.0});
  enqueued_ = device_.make_event(Lane::kCompute);
  prefetch_ = device_.make_prefetch(inputs_.block, step_state);
}

void Engine::allocate_exchange(Arena& state) {
  if (domain_.experts().alone()) return;
  transport_.emplace(domain_.experts().peers(), storage_[ArenaKind::kPeerWindow]);
  model_.share_experts(*transport_, state, exchange_limits(config_, shapes_));
  const int64_t num_experts = config_.model.moe.num_experts;
  experts_.places.assign(model_.moe_layers().size(), places_in_order(num_experts));
  if (config_.parallel.rebalance_every > 0) {
    experts_.rows.assign(experts_.places.size(), std::vector<int64_t>(static_cast<size_t>(num_experts)));
  }
}

void Engine::collect_shared_tensors() {
  summed_ = {partial_sums_};
  summed_across_ = {partial_losses_};
  for (std::vector<Tensor>* summed : {&summed_, &summed_across_}) {
    if (model_.router_counts().defined()) {
      summed->insert(summed->end(), {model_.router_counts(), model_.router_sums()});
    }
    for (const Tensor& tensor : model_.exchange_stats().tensors()) summed->push_back(tensor);
  }
  for (const FlatWeights& flat : weights_.flat()) {
    const auto [begin, size] = flat.updated;
    grads_.push_back({flat.grads, begin, begin + size, flat.totals});
    values_.push_back({flat.values, begin, begin + size});
  }
}

void Engine::allocate_sums(Arena& state) {
  auto& weights = weights_.all();
  const auto chunks_of = [&](const Weight& weight) { return TensorChunks(ops_.stat_dtype(), weight.spec.shape); };
  int64_t num_chunks = 0;
  for (const Weight& weight : weights) num_chunks += weight.spec.is_trained() ? chunks_of(weight).count() : 0;
  const int64_t num_losses = nmoe::num_losses(config_),
                num_parts = num_losses * (in_order() ? config_.parallel.logical_shards : 1),
                num_squares = in_order() ? num_chunks : 1;
  partial_sums_ = state.allocate(DType::kF64, {num_parts + num_squares});
  partial_losses_ = partial_sums_.rows(0, num_parts);
  partial_squares_ = partial_sums_.rows(num_parts, num_parts + num_squares);
  sums_ = state.allocate(DType::kF64, {num_losses + 1});
  loss_sums_ = sums_.rows(0, num_losses);
  square_sum_ = sums_.rows(num_losses, num_losses + 1);
  all_losses_ = num_losses == 1 ? loss_sums_ : state.allocate(DType::kF64, {1});

  // Whether one product leaves the step's gradient of an expert: nothing is added by other microbatches or for other
  // ranks. What is rounded has its own squares.
  const bool experts_gradients_are_whole =
      rank_.count() == 1 && config_.train.gradients == GradientFormat::kFp32 &&
      std::ranges::all_of(inputs_.batches, [](const auto& batches) { return batches.size() == 1; });
  int64_t first_chunk = 0;  // of a weight, among all
  for (Weight& weight : weights) {
    if (!weight.spec.is_trained()) continue;
    if (weight.spec.group == WeightGroup::kExperts && experts_gradients_are_whole && weight.spec.num_passes == 1) {
      weight.squares = state.allocate(DType::kF64, square_parts(weight.shard.shape));
    }
    const TensorChunks chunks = chunks_of(weight);
    // Experts are in order so far: later it is a place's squares that are here.
    const int64_t begin = weight.shard.updated_elements().front().offset, size = weight.shard.updated.extent;
    if (!in_order() && size > 0) squares_.all.push_back({weight.total, partial_squares_, weight.squares});
    for (int64_t at = begin; in_order() && at < begin + size;) {
      const int64_t chunk = chunks.index_of(at), end = chunks[chunk].end(), entry = first_chunk + chunk;
      squares_.all.push_back(
          {weight.total.reshape({size}).rows(at - begin, end - begin), partial_squares_.rows(entry, entry + 1)});
      at = end;
    }
    first_chunk += chunks.count();
  }
  if (in_order() && shares_experts()) {
    square_order_ = state.allocate(DType::kI32, {num_chunks});
    set_places(experts_.places);
  }
}

// Of the i-th loss: one part, or one a logical shard.
Tensor Engine::parts_of_loss(int64_t i) const {
  const int64_t num_parts = partial_losses_.dim(0) / loss_sums_.dim(0);
  return partial_losses_.rows(i * num_parts, (i + 1) * num_parts);
}

void Engine::forget_recordings() {
  steps_.clear();
  steps_.resize(2 * shapes_.size());
  timed_step_ = -1;
}

bool Engine::restore_precision(std::span<const PrecisionRole> state) {
  NMOE_CHECK(num_enqueued_ == 0, "formats are restored behind {} steps", num_enqueued_);
  // A run whose checks only report computes the same without them: it may go on where there were none, and without
  // them.
  const bool decides = config_.precision.fallback == PrecisionFallback::kAct;
  if (!decides && (!precision_ || state.empty())) return true;
  return precision_ ? precision_->restore(state) : state.empty();
}

// Says where experts are to whatever goes by it.
void Engine::set_places(ExpertPlacement places) {
  experts_.places = std::move(places);
  model_.place_experts(experts_.places);
  optimizer_->place_experts();
  if (!square_order_.defined()) return;
  std::map<const Weight*, size_t> layer_of;
  for (size_t layer = 0; layer < experts_.places.size(); ++layer) {
    for (const Weight* weight : model_.moe_layers()[layer]->weights_per_expert()) layer_of.emplace(weight, layer);
  }
  std::vector<int32_t> order;
  for (const Weight& weight : weights_.all()) {
    if (!weight.spec.is_trained()) continue;
    const auto first = static_cast<int32_t>(order.size());
    const int64_t count = TensorChunks(ops_.stat_dtype(), weight.spec.shape).count();
    const auto layer = layer_of.find(&weight);
    for (int32_t chunk = 0; chunk < count; ++chunk) {
      order.push_back(first +
                      (layer == layer_of.end() ? chunk : experts_.places[layer->second][static_cast<size_t>(chunk)]));
    }
  }
  device_.upload(square_order_, order.data());
}

void Engine::place_experts(const ExpertState& experts) {
  if (!shares_experts() || experts.places.empty()) return;
  set_places(experts.places);
  if (!experts_.rows.empty() && !experts.rows.empty()) experts_.rows = experts.rows;
}

// Gradients are free between steps: each weight's have room for as many experts, and as many bytes of each, as its
// values with the rest of their master have, or one of the moments; gradients in bf16 have not, and rules of the
// configuration let no experts move then.
std::vector<MovableExperts> Engine::movable_experts() {
  std::vector<MovableExperts> all;
  for (size_t layer = 0; layer < experts_.places.size(); ++layer) {
    for (const Weight* weight : model_.moe_layers()[layer]->weights_per_expert()) {
      MovableExperts& experts =
          all.emplace_back(MovableExperts{.layer = layer, .staging = weight->grad, .turns = {{weight->value}}});
      if (weight->low.defined()) experts.turns[0].push_back(weight->low);
      for (const OptimizerState& state : optimizer_->state()) {
        if (state.weight == weight) experts.turns.push_back({state.tensor});
      }
    }
  }
  return all;
}

bool Engine::rebalance_is_due(int64_t steps) const {
  const int64_t every = config_.parallel.rebalance_every;
  return every > 0 && steps > 0 && steps % every == 0 && shares_experts();
}

Rebalancing Engine::rebalance() {
  Rebalancing done;
  if (experts_.rows.empty()) return done;
  NMOE_CHECK(num_pending() == 0, "experts are moved while {} steps are pending", num_pending());
  settle();
  ExpertPlacement places;
  for (size_t i = 0; i < experts_.places.size(); ++i) {
    const auto& before = experts_.places[i];
    const auto& after = places.emplace_back(nmoe::rebalance(experts_.rows[i], before, domain_.experts().count()));
    Rebalancing::Layer& layer = done.layers.emplace_back(
        Rebalancing::Layer{.layer = model_.moe_layers()[i]->layer(),
                           .load_before = rank_load(experts_.rows[i], before, domain_.experts().count()),
                           .load_after = rank_load(experts_.rows[i], after, domain_.experts().count())});
    for (size_t expert = 0; expert < after.size(); ++expert) layer.moves += after[expert] != before[expert] ? 1 : 0;
  }
  for (std::vector<int64_t>& rows : experts_.rows) std::ranges::fill(rows, 0);
  if (done.moves() == 0) return done;
  move_experts(ops_, *transport_, movable_experts(), experts_.places, places);
  set_places(std::move(places));
  wait();
  domain_.check();  // where a wait was given up, weights are not what they should be, and no step need follow
  return done;
}

StateRing& Engine::state_ring() {
  settle();
  if (state_ring_ != nullptr) return *state_ring_;
  // Replicas of a shard have the same; each writes some of it, in turn.
  const AcrossGroup replicas = domain_.shard_replicas();
  std::vector<StateTensor> tensors;
  const auto add = [&](const std::string& name, DType dtype, Weight& weight, const OptimizerState* state) {
    const bool others_have_it = !weight.spec.is_trained() && domain_.shards().index() != 0;
    const bool is_turn = std::ssize(tensors) % replicas.count() == replicas.index();
    tensors.push_back({.name = name,
                       .dtype = dtype,
                       .weight = &weight,
                       .state = state,
                       .is_written = is_turn && !others_have_it && weight.shard.updated.extent > 0});
  };
  for (Weight& weight : weights_.all()) add(weight.spec.name, ops_.stat_dtype(), weight, nullptr);
  const size_t num_model = tensors.size();
  for (const OptimizerState& state : optimizer_->state()) {
    add(state.name, state.tensor.dtype(), *state.weight, &state);
  }
  storage_.reserve(ArenaKind::kCheckpointStaging);
  state_ring_ = std::make_unique<StateRing>(ops_, storage_[ArenaKind::kCheckpointStaging], std::move(tensors),
                                            num_model, config_.checkpoint.staging_bytes);
  return *state_ring_;
}

void Engine::settle() { optimizer_->settle(activations_); }

RunnerRoom Engine::room_between_steps() {
  settle();
  return RunnerRoom::between_passes(storage_);
}

void Engine::initialise() {
  settle();
  weights_.initialise(ops_, static_cast<uint64_t>(config_.run.seed), config_.model.init.truncation);
  gather_values();
  ops_.fill({stopped_, 0.0});
}

void Engine::gather_values() { domain_.shards().all_gather(ops_, values_); }

StepScale Engine::step_scale(size_t shape) const {
  return {.num_seqs = shapes_[shape].batch_seqs, .num_tokens = step_tokens(config_), .loss = inputs_.loss_scale};
}

void Engine::use_seq_len(int64_t seq_len) {
  const auto shape = std::ranges::find(shapes_, seq_len, &BatchShape::seq_len);
  NMOE_CHECK(shape != shapes_.end(), "sequences of {} tokens were not planned", seq_len);
  shape_ = static_cast<size_t>(shape - shapes_.begin());
}

void Engine::load(int64_t index, const Microbatch& microbatch) {
  if (num_pending() == kMaxPending) take_result();
  while (decision_is_pending()) take_result();
  StepSlot& next = slot(num_enqueued_);
  next.set_shape(shape_);
  const Batch& batch = next.batches()[static_cast<size_t>(index)];
  NMOE_CHECK(static_cast<int64_t>(microbatch.tokens.size()) == batch.num_tokens(), "a microbatch of {} tokens, not {}",
             microbatch.tokens.size(), batch.num_tokens());
  fill_batch(batch, microbatch, write_);
  fill_ahead(batch, microbatch, write_);
}

void Engine::enqueue_inputs(const Progress& progress, const StepTargets& targets) {
  if (num_pending() == kMaxPending) take_result();
  while (decision_is_pending()) take_result();
  StepSlot& next = slot(num_enqueued_);
  next.set_targets(targets, progress);
  if (!ops_.counting()) {
    optimizer_->write_rates(progress, step_tokens(config_), next.inputs().rates);
    const Philox keys(static_cast<uint64_t>(config_.run.seed), "rounding");
    *next.inputs().rounding_key.data<int64_t>() =
        static_cast<int64_t>(keys.bits(static_cast<uint64_t>(progress.steps)));
  }
  prefetch_->send(next.inputs().block.raw());
  prefetch_->take();
  inputs_shape_ = next.shape();
}

void Engine::enqueue_begin() {
  const auto microbatches = std::ssize(inputs_.batches[inputs_shape_]);
  weights_.set_gradient_products(in_order() ? microbatches * rank_.count() : microbatches);
  optimizer_->write_held(activations_);
  model_.begin_step();
  ops_.fill({partial_sums_, 0.0});
  if (checks_) precision_->begin(ops_, /*dense=*/!in_order() || rank_.is_first());
}

void Engine::enqueue_gradients(const Marker& mark) {
  int64_t shard = rank_.index();
  const bool sums_at_once = !in_order() && !domain_.alone();
  size_t first_summed = weights_.all().size();
  int64_t highest = 0;  // of the stack, since backward began
  const GradientsReady in_last = [&](size_t first_weight) {
    highest = std::max(highest, activations_.mark());
    // What backward has popped of the stack, it has no more use for in this step.
    optimizer_->prefetch(activations_, highest - activations_.mark());
    if (!sums_at_once) return;
    sum_gradients(first_weight, first_summed);
    first_summed = first_weight;
  };
  const std::vector<Batch>& batches = inputs_.batches[inputs_shape_];
  const int64_t num_losses = loss_sums_.dim(0), depth = config_.model.mtp.depth;
  int64_t first = 0;  // of the rank's tokens
  for (const Batch& batch : batches) {
    const int64_t T = batch.num_tokens();
    const bool is_last = &batch == &batches.back();
    // What they take is known from the second on: it stands for all up to the last, which has more to do.
    if (ops_.counting() && !is_last && &batch - batches.data() >= 2) {
      first += T;
      shard += rank_.count();
      continue;
    }
    const auto of_batch = [&](const Tensor& all, int64_t rows) {
      return all.rows(first * rows, (first + T) * rows).reshape({rows, T});
    };
    const Tensor losses = of_batch(losses_, num_losses);
    const Tensor predictions = depth > 0 ? of_batch(depth_predictions_, depth) : Tensor();
    first += T;
    model_.forward_backward(batch, step_scale(inputs_shape_), activations_, losses,
                            {.mark = mark, .gradients_ready = is_last ? in_last : GradientsReady()}, predictions);
    for (int64_t i = 0; i < num_losses; ++i) {
      const Tensor parts = parts_of_loss(i);
      ops_.sum({losses[i], in_order() ? parts.rows(shard, shard + 1) : parts});
    }
    if (in_order()) domain_.shards().reduce_sum(ops_, grads_, /*accumulate=*/shard != rank_.index());
    shard += rank_.count();
  }
}

// Of the weights with these indices, when the last microbatch has completed them: over the ranks that divide their
// update, then over those that update the same, as over those that have the same experts. Nothing is left to run beside
// the last sums, which have the whole device.
void Engine::sum_gradients(size_t first_weight, size_t end_weight) {
  const WeightSet& weights = weights_;
  const auto is_ready = [&](size_t weight) { return weight >= first_weight && weight < end_weight; };
  std::vector<PeerGroup::Part> parts;
  std::vector<Tensor> mine, experts;
  for (size_t i = 0; i < grads_.size(); ++i) {
    if (!is_ready(weights.flat()[i].first_weight)) continue;
    parts.push_back(grads_[i]);
    mine.push_back(grads_[i].tensor.rows(grads_[i].begin, grads_[i].end));
  }
  for (size_t i = first_weight; i < end_weight; ++i) {
    const Weight& weight = weights.all()[i];
    if (weight.spec.per_expert) experts.push_back(weight.grad);
  }
  device_.order(Lane::kCompute, Lane::kCommunication);
  Ops& ops = device_.ops(Lane::kCommunication);
  if (!parts.empty()) {
    domain_.shards().reduce_sum(ops, parts, /*accumulate=*/false, first_weight > 0 ? kBlocksBeside : 0);
  }
  domain_.sum_replicas(ops, mine, experts);
}

void Engine::enqueue_update() {
  // On the lane of the other sums over domains, which have to be enqueued one after the other, and to wait for them.
  device_.order(Lane::kCompute, Lane::kCommunication);
  domain_.shard_replicas().sum(device_.ops(Lane::kCommunication), summed_across_);
  const std::array counts = {precision_ ? precision_->counts() : Tensor()};
  if (checks_) domain_.shard_replicas().sum(device_.ops(Lane::kCommunication), counts);
  device_.order(Lane::kCommunication, Lane::kCompute);
  if (checks_) domain_.shards().all_reduce_sum(ops_, counts);
  ops_.sums_of_squares(squares_);
  domain_.shards().all_reduce_sum(ops_, summed_);
  for (int64_t i = 0; i < loss_sums_.dim(0); ++i) ops_.sum_in_order({parts_of_loss(i), loss_sums_.rows(i, i + 1)});
  if (loss_sums_.dim(0) > 1) ops_.sum_in_order({loss_sums_, all_losses_});
  ops_.sum_in_order({partial_squares_, square_sum_, square_order_});
  ops_.clip_scale({square_sum_, all_losses_, config_.optim.clip_norm, grad_scale_, stopped_});
  optimizer_->step(grad_scale_, activations_);
  model_.update_router_bias(grad_scale_);
  gather_values();
}

void Engine::enqueue_results(bool in_detail) {
  StepSlot& current = slot(num_enqueued_);
  if (in_detail) {
    current.fetch_routers(model_);
    current.fetch_losses(losses_);
    if (config_.model.mtp.depth > 0) current.fetch_predictions(depth_predictions_);
  }
  if (checks_) {
    current.fetch_rounding_counts();
    last_check_ = num_enqueued_;
  }
  current.fetch_results(sums_);
  ++num_enqueued_;
}

void Engine::step(const Progress& progress, const StepTargets& targets, bool in_detail, bool with_phases) {
  enqueue_inputs(progress, targets);
  checks_ = precision_ && precision_->is_due(progress.steps);
  const auto work = [this] {
    enqueue_begin();
    enqueue_gradients();
    enqueue_update();
  };
  // The first step of a shape is not recorded: libraries load their kernels then, which a recording cannot hold.
  Steps& alike = steps_[2 * inputs_shape_ + (checks_ ? 1 : 0)];
  or_failure([&] {
    optimizer_->hold(activations_);
    if (!alike.warm) {
      work();
      alike.warm = true;
    } else if (with_phases && timed_step_ < num_taken_) {
      if (!alike.timed) {
        alike.clock = std::make_unique<PhaseClock>(device_);
        alike.timed = device_.record([this, &clock = *alike.clock] { enqueue_timed(clock); });
      }
      alike.timed->run();
      timed_step_ = num_enqueued_;
      timed_by_ = alike.clock.get();
    } else {
      if (!alike.recording) alike.recording = device_.record(work);
      alike.recording->run();
    }
    enqueue_results(in_detail);
  });
}

void Engine::enqueue_timed(PhaseClock& clock) {
  clock.begin();
  enqueue_begin();
  clock.end(StepPhase::kBegin, kNoLayer);
  enqueue_gradients([&](Intermediate what, int64_t layer) {
    if (const auto phase = phase_ending_with(what)) clock.end(*phase, layer);
  });
  clock.end(StepPhase::kEmbedding, kNoLayer);  // its gradient; that of earlier microbatches was in the next one's turn
  enqueue_update();
  clock.end(StepPhase::kUpdate, kNoLayer);
}

// What fails here after another rank has failed does so for that: then the other's failure is thrown.
void Engine::or_failure(const std::function<void()>& work) const {
  try {
    work();
  } catch (const std::exception&) {
    domain_.check();
    throw;
  }
}

void Engine::wait() {
  enqueued_->record();
  enqueued_->wait();
}

bool Engine::has_result() const { return num_pending() > 0 && slot(num_taken_).arrived(); }

StepResult Engine::take_result() {
  NMOE_CHECK(num_pending() > 0, "no step's result to take, of {}", num_enqueued_);
  const StepSlot& oldest = slot(num_taken_);
  const bool is_timed = num_taken_++ == timed_step_;
  StepResult result;
  or_failure([&] { result = oldest.wait(); });
  if (is_timed) result.phases = timed_by_->times();
  domain_.check();
  for (size_t i = 0, next = 0; result.finite && i < experts_.rows.size(); ++i) {
    for (int64_t& rows : experts_.rows[i]) rows += result.expert_rows[next++];
  }
  const std::span<const double> counts = oldest.rounding_counts();
  if (result.finite && !counts.empty()) {
    result.precision = precision_->observe(counts);
    if (precision_->set_formats()) forget_recordings();  // nothing is pending behind a step that may decide
  }
  return result;
}

StepResult Engine::result() {
  while (num_pending() > 1) take_result();
  return take_result();
}

std::vector<RouterHealth> Engine::router_health() {
  NMOE_CHECK(num_enqueued_ > 0, "router health before any step");
  StepSlot& last = slot(num_enqueued_ - 1);
  last.fetch_routers(model_);
  return last.wait().routers;
}

NonFinite Engine::find_non_finite() {
  NMOE_CHECK(num_taken_ > 0, "no step's result was taken");
  settle();
  const StepSlot& bad = slot(num_taken_ - 1);
  device_.upload(inputs_.block, bad.inputs().block.raw());
  inputs_shape_ = bad.shape();
  num_taken_ = num_enqueued_;
  NonFinite first;
  int64_t place = 0;
  const auto check_finite = [&](std::string_view name, Tensor value) {
    ++place;
    if (!first.name.empty() || (value.dtype() != ops_.compute_dtype() && value.dtype() != ops_.stat_dtype() &&
                                value.dtype() != DType::kBF16)) {
      return;
    }
    int32_t count = 0;
    ops_.fill({bad_count_, 0.0});
    ops_.count_non_finite({value, bad_count_});
    device_.download(&count, bad_count_);
    if (count > 0) {
      first = {fmt::format("{} ({} of {} values are not finite)", name, count, value.num_elements()), place};
    }
  };
  for (const Weight& weight : weights_.all()) check_finite("weight " + weight.spec.name, weight.value);
  for (const Batch& batch : inputs_.batches[inputs_shape_]) {
    model_.begin_step();
    model_.forward_backward(batch, step_scale(inputs_shape_), activations_,
                            losses_.rows(0, loss_sums_.dim(0) * batch.num_tokens()),
                            {.inspect = [&](Intermediate what, int64_t layer, Tensor value, Tensor num_rows) {
                              int32_t count = 0;
                              if (num_rows.defined() && first.name.empty()) {
                                device_.download(&count, num_rows);
                                value = value.rows(0, count);
                              }
                              check_finite(intermediate_name(what, layer), value);
                            }});
    for (const Weight& weight : weights_.all()) {
      if (weight.grad.defined()) check_finite("gradient of " + weight.spec.name, weight.grad);
    }
  }
  return first;
}

// In the place of a step's microbatch, which the next step brings anew. What is computed then may have all of the
// stack.
Batch Engine::place(const Microbatch& microbatch) {
  settle();
  const Batch& where = inputs_.batches[0][0];
  if (inputs_shape_ != 0) fill_positions(where, upload_);
  inputs_shape_ = 0;
  return fill_batch(where, microbatch, upload_);
}

void Engine::evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets, std::span<float> losses,
                      const Documents& documents, std::span<int32_t> predictions) {
  NMOE_CHECK(losses.size() == inputs.size() && (predictions.empty() || predictions.size() == inputs.size()),
             "{} losses and {} predictions for {} inputs", losses.size(), predictions.size(), inputs.size());
  const Batch batch = place(microbatch_of(inputs, targets, documents));
  const Tensor batch_losses = losses_.rows(0, batch.num_tokens());
  const Tensor batch_predictions = predictions.empty() ? Tensor() : predictions_.rows(0, batch.num_tokens());
  model_.forward(batch, activations_, batch_losses, batch_predictions);
  device_.download(losses.data(), batch_losses);
  domain_.check();
  if (!predictions.empty()) device_.download(predictions.data(), batch_predictions);
}

void Engine::next_logits(std::span<const int32_t> inputs, std::span<const int32_t> rows, std::vector<float>& logits,
                         const Documents& documents) {
  const std::vector<int32_t> targets(inputs.size(), kNoTarget);
  const Batch batch = place(microbatch_of(inputs, targets, documents));
  const ArenaScope scope(activations_);
  const Tensor wanted = activations_.allocate(DType::kI32, {std::ssize(rows)});
  const Tensor of_rows = activations_.allocate(DType::kF32, {std::ssize(rows), config_.model.vocab_size});
  logits.resize(static_cast<size_t>(of_rows.num_elements()));
  upload_(wanted, std::as_bytes(rows));
  model_.logits(batch, activations_, of_rows, wanted);
  device_.download(logits.data(), of_rows);
  domain_.check();
}

void Engine::restore(const StateRing::Load& load, Restored what) {
  StateRing& ring = state_ring();
  if (what == Restored::kModel) {
    ring.restore(ring.model(), load);
    for (const OptimizerState& state : optimizer_->state()) ops_.fill({state.tensor, 0.0});
  } else {
    ring.restore(ring.tensors(), load);
  }
  gather_values();
  ops_.fill({stopped_, 0.0});
  wait();
}

DeviceOptions device_options(const RunConfig& run, int64_t num_ranks, int64_t rank) {
  const bool on_cpu = run.device == "cpu";
  const bool is_fp32 = run.precision == Precision::kFp32 || (run.precision != Precision::kBf16 && on_cpu);
  const int64_t threads = num_ranks > 1 && run.threads == 0 ? available_cpus() : run.threads;
  return {.kind = run.device,
          .index = on_cpu ? 0 : static_cast<int>(rank),  // the CPU is one device, of which each rank has some threads
          .num_threads = static_cast<int>(num_ranks > 1 ? std::max<int64_t>(1, threads / num_ranks) : threads),
          .compute_dtype = is_fp32 ? DType::kF32 : DType::kBF16};
}

}  // namespace nmoe
