#include "train/plan/engine_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "config/layers.h"
#include "model/experts_exchange.h"
#include "train/step/batch_shape.h"
#include "train/step/engine.h"
#include "train/step/live_generation.h"

namespace nmoe {
namespace {

// Steps of one shape, and what goes with the run's own sequence length: validation, and what is generated.
void count_steps(Engine& engine, const Config& config, const BatchShape& shape) {
  const std::vector<int32_t> ids(static_cast<size_t>(shape.microbatch_tokens()));
  Documents documents;
  if (config.data.mask_documents) find_documents({}, shape.microbatch_seqs, shape.seq_len, documents);
  engine.use_seq_len(shape.seq_len);
  // A step that is checked has values where others leave codes alone: each may need what the other does not.
  const int64_t checked = config.precision.check_every;
  for (const int64_t step : {checked, checked + 1}) {
    for (int64_t i = 0; i < engine.num_microbatches(); ++i) engine.load(i, microbatch_of(ids, ids, documents));
    engine.step({.steps = step, .tokens = 1}, 1);
    if (!engine.checks_precision()) break;
  }
  if (shape.seq_len != config.data.seq_len) return;
  std::vector<float> losses(ids.size());
  engine.evaluate(ids, ids, losses, documents);
  if (const LiveGenerationNeeds needs = live_generation_needs(config); needs && LiveGeneration::is_possible(engine)) {
    const LiveGeneration generation(config, engine, /*tokenizer=*/nullptr, needs);
    return;
  }
  if (config.train.sample_prompts.empty()) return;
  const auto prompts = std::min(shape.microbatch_seqs, std::ssize(config.train.sample_prompts));
  const std::vector<int32_t> rows(static_cast<size_t>(prompts));
  std::vector<float> logits;
  engine.next_logits(ids, rows, logits, documents);
}

struct RankPlan {
  StoragePlan storage;
  std::vector<PrecisionRole> precision;  // Engine::precision
};

struct Place {
  int64_t rank, in_domain;
  std::optional<GpuPart> part;
  std::span<const int64_t> seq_lens;
};

RankPlan plan_rank(const Config& config, const Place& place, std::span<const PrecisionRole> state) {
  DeviceOptions options = device_options(config.run, place.in_domain);
  options.part = place.part;
  const std::vector<BatchShape> shapes = batch_shapes(config, place.seq_lens);
  const auto ranks = make_null_communicator(place.rank, config.parallel.ranks, place.in_domain);
  RankPlan plan;
  plan.storage = plan_storage(options, [&](Storage& storage) {
    Engine engine(config, {storage.device(), *ranks}, storage, place.seq_lens);
    if (!state.empty()) NMOE_CHECK(engine.restore_precision(state), "a plan of {} roles of others", state.size());
    for (auto shape = shapes.rbegin(); shape != shapes.rend(); ++shape) count_steps(engine, config, *shape);
    engine.state_ring().begin();
    plan.precision = engine.precision();
  });
  return plan;
}

}  // namespace

StoragePlan plan_rank_storage(const Config& config, std::span<const PrecisionRole> state, int64_t rank,
                              int64_t in_domain, const std::optional<GpuPart>& part,
                              std::span<const int64_t> seq_lens) {
  if (in_domain == 0) in_domain = config.parallel.ranks;
  return plan_rank(config, {rank, in_domain, part, seq_lens}, state).storage;
}

StoragePlan plan_engine_storage(const Config& config, int64_t in_domain, const std::optional<GpuPart>& part,
                                std::span<const int64_t> seq_lens) {
  if (in_domain == 0) in_domain = config.parallel.ranks;
  // Ranks differ in how much they update: each has room for what the one with most of it needs. Whatever falls back,
  // they do so alike.
  StoragePlan plan;
  std::vector<PrecisionRole> state;
  for (int64_t rank = 0; rank < in_domain; ++rank) {
    RankPlan of_rank = plan_rank(config, {rank, in_domain, part, seq_lens}, {});
    plan = plan.max(of_rank.storage);
    state = std::move(of_rank.precision);
  }
  if (config.precision.fallback != PrecisionFallback::kAct) return plan;
  for (const std::vector<PrecisionRole>& left : most_demanding_states(config, state)) {
    plan = plan.max(plan_rank(config, {0, in_domain, part, seq_lens}, left).storage);
  }
  return plan;
}

std::vector<std::vector<PrecisionRole>> most_demanding_states(const Config& config,
                                                              std::span<const PrecisionRole> state) {
  const std::vector<LayerSpec> specs = all_layer_specs(config.model);
  const auto waiting = [&](int64_t layer) {
    return std::pair(config.train.recompute.of(layer), config.precision.saved.of(layer));
  };
  std::vector<std::pair<Recompute, RowFormat>> kinds;  // of what waits
  for (const PrecisionRole& role : state) {
    if (std::ranges::find(kinds, waiting(role.layer)) == kinds.end()) kinds.push_back(waiting(role.layer));
  }
  std::map<int64_t, std::vector<size_t>> roles_of;  // by layer
  for (size_t role = 0; role < state.size(); ++role) roles_of[state[role].layer].push_back(role);
  const auto is_alike = [&](int64_t a, int64_t b) {
    return specs[static_cast<size_t>(a)] == specs[static_cast<size_t>(b)] && waiting(a) == waiting(b) &&
           std::ranges::equal(
               roles_of[a], roles_of[b], {}, [&](size_t role) { return state[role].part; },
               [&](size_t role) { return state[role].part; });
  };
  std::vector<int64_t> working;  // the last layer of each kind
  for (auto layer = roles_of.rbegin(); layer != roles_of.rend(); ++layer) {
    if (std::ranges::none_of(working, [&](int64_t last) { return is_alike(layer->first, last); })) {
      working.push_back(layer->first);
    }
  }
  std::vector<std::vector<PrecisionRole>> states;
  for (const int64_t layer : working) {
    const std::vector<size_t>& roles = roles_of[layer];
    for (uint32_t others = 0; others < uint32_t{1} << kinds.size(); ++others) {
      for (uint32_t left = 0; left < uint32_t{1} << roles.size(); ++left) {
        std::vector<PrecisionRole>& next = states.emplace_back(state.begin(), state.end());
        for (PrecisionRole& role : next) {
          role.in_act = (others >> (std::ranges::find(kinds, waiting(role.layer)) - kinds.begin()) & 1) != 0;
        }
        for (size_t i = 0; i < roles.size(); ++i) next[roles[i]].in_act = (left >> i & 1) != 0;
      }
    }
  }
  return states;
}

ExpertRows plan_expert_rows(const Config& config, int64_t in_domain, std::span<const int64_t> seq_lens) {
  if (in_domain == 0) in_domain = config.parallel.ranks;
  if (in_domain == 1 || config.model.moe.num_experts == 0) return {};
  return expert_rows(exchange_shape(config.model), in_domain, exchange_limits(config, batch_shapes(config, seq_lens)),
                     exchange_form(config).received);
}

}  // namespace nmoe
