#include "train/proof/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "infer/load_model.h"
#include "ops/checked/checked_device.h"
#include "ops/log_sum.h"
#include "train/plan/engine_plan.h"
#include "train/proof/sampler_check.h"
#include "train/step/engine.h"
#include "train/step/look_ahead.h"

namespace nmoe {
namespace {

using Counts = std::map<std::string, int64_t>;
using Wrap = std::function<std::unique_ptr<Device>(Device& device)>;

constexpr int64_t kArenaBytes = int64_t{64} << 20;

// Sizes that tensor cores take, with blocks of low precision that are whole and short.
Config even_config(Precision precision) {
  Config config;
  config.run.precision = precision;
  config.model.vocab_size = 160;
  config.model.dim = 144;
  config.model.layers = "mla/dense, gqa:32/moe, gqa/moe";
  config.model.num_heads = 2;
  config.model.dense_dim = 272;
  config.model.mla = {.kv_lora_rank = 32, .qk_nope_head_dim = 16, .qk_rope_head_dim = 16, .v_head_dim = 32};
  config.model.gqa = {.num_kv_heads = 1, .head_dim = 64, .qk_norm = true, .bias = AttentionBias::kQkv};
  config.model.moe = {.num_experts = 4, .top_k = 2, .expert_dim = 128, .balance_loss = 1e-3, .z_loss = 1e-3};
  config.model.mtp.depth = 1;
  config.data.seq_len = 64;
  config.train.batch_seqs = 4;
  config.train.microbatch_seqs = 2;
  config.optim.matrices.optimizer = OptimizerKind::kMuon;
  config.precision.check_every = 1;
  return config;
}

// Sizes that few kernels take, the other activation, sinks, biases of experts, further depths, documents, gradients in
// BF16, and codes on the way to experts and to backward.
Config odd_config() {
  Config config = even_config(Precision::kDevice);
  config.model.dim = 36;
  config.model.activation = Activation::kReluSquared;
  config.model.dense_dim = 50;
  config.model.mla = {
      .q_lora_rank = 12, .kv_lora_rank = 20, .qk_nope_head_dim = 6, .qk_rope_head_dim = 6, .v_head_dim = 10};
  config.model.gqa = {.num_kv_heads = 2, .head_dim = 18, .rotary_dim = 10, .bias = AttentionBias::kAll, .sinks = true};
  config.model.moe.expert_dim = 22;
  config.model.moe.score = ScoreFunction::kSoftmax;
  config.model.moe.shared_gate = true;
  config.model.moe.biases = true;
  config.model.mtp = {.depth = 2, .shared = true, .detach = true};
  config.data.seq_len = 33;
  config.data.mask_documents = true;
  config.train.recompute = Recompute::kBlocks;
  config.train.gradients = GradientFormat::kBf16;
  config.precision.wire = RowFormat::kFp8;
  config.precision.saved = RowFormat::kFp8;
  return config;
}

// Layers with a state that goes from token to token, of several chunks and documents that end within them.
Config recurrent_config(bool on_cpu) {
  Config config = even_config(Precision::kDevice);
  config.model.mamba2 = {.num_heads = 4, .head_dim = 24, .state_dim = 20, .num_groups = 2, .chunk = 24};
  config.data.mask_documents = true;
  config.model.layers = "mamba2/dense, gqa/moe, gated_deltanet/moe";
  config.model.zero_centred_norms = true;
  config.model.gqa.bias = AttentionBias::kNone;  // beside which there are no gates
  config.model.gqa.output_gate = true;
  config.model.gated_deltanet = {.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = 12, .value_head_dim = 20};
  if (!on_cpu) return config;
  config.model.layers += ", kda/dense";  // of which GPUs have not all yet
  config.model.kda = {.num_heads = 2, .head_dim = 20};
  return config;
}

std::vector<int32_t> ids(int64_t count, int64_t vocab_size, uint64_t seed) {
  const Philox rng(seed, "self test");
  std::vector<int32_t> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<int32_t>(rng.bits(i) % static_cast<uint64_t>(vocab_size));
  return all;
}

// Every id 0 ends a document (data/stream/documents.h: find_documents).
std::vector<uint8_t> ends_at_zeros(const std::vector<int32_t>& inputs, int64_t seq_len) {
  std::vector<uint8_t> ends;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ends.push_back(inputs[i] == 0 ? 1 : 0);
    if ((i + 1) % static_cast<size_t>(seq_len) == 0) ends.push_back(0);  // the look-ahead
  }
  return ends;
}

// Weights as their masters, and back.
void save_and_restore(Engine& engine) {
  StateRing& ring = engine.state_ring();
  std::map<std::string, std::vector<std::byte>> saved;
  ring.begin();
  for (const StateTensor& tensor : ring.tensors()) {
    if (!tensor.is_written) continue;
    std::vector<std::byte>& bytes = saved[tensor.name];
    bytes.resize(static_cast<size_t>(tensor.num_bytes()));
    ring.read(tensor, 0, bytes);
  }
  engine.restore([&](std::span<const NamedPart> parts) {
    for (const NamedPart& part : parts) {
      const size_t begin = static_cast<size_t>(part.offset) * dtype_bytes(part.tensor.dtype());
      std::memcpy(part.tensor.raw(), saved.at(part.name).data() + begin, static_cast<size_t>(part.tensor.num_bytes()));
    }
  });
}

void train(Config config, const DeviceOptions& options, const Wrap& wrap, Counts& counts) {
  config.run.device = options.kind;
  if (options.compute_dtype == DType::kF32 && !is_low(config.run.precision)) config.run.precision = Precision::kFp32;
  const StoragePlan plan = plan_engine_storage(config);
  const std::unique_ptr<Device> device = make_device(options), tested = wrap ? wrap(*device) : nullptr;
  checked::CheckedDevice checked(tested ? *tested : *device);
  Storage storage(checked, plan);
  Engine engine(config, {checked, single_rank()}, storage);
  engine.initialise();
  const int64_t tokens = config.train.microbatch_seqs * config.data.seq_len, vocab = config.model.vocab_size;
  for (int64_t step = 1; step <= 2; ++step) {
    StepTargets all(tokens * engine.num_microbatches());
    all.ahead.resize(static_cast<size_t>(config.model.mtp.depth));
    for (int64_t i = 0; i < engine.num_microbatches(); ++i) {
      const auto inputs = ids(tokens, vocab, static_cast<uint64_t>(4 * step + i)),
                 targets = ids(tokens, vocab, static_cast<uint64_t>(4 * step + i + 100));
      Documents documents;
      if (config.data.mask_documents) {
        find_documents(ends_at_zeros(inputs, config.data.seq_len), config.train.microbatch_seqs, config.data.seq_len,
                       documents);
      }
      const Microbatch microbatch = microbatch_of(inputs, targets, documents);
      engine.load(i, microbatch);
      const std::vector<int64_t> ahead = count_targets_ahead(microbatch, config.data.seq_len, config.model.mtp.depth);
      std::ranges::transform(all.ahead, ahead, all.ahead.begin(), std::plus());
    }
    engine.step({.steps = step, .tokens = step * tokens}, all, /*in_detail=*/true);
    engine.result();
  }
  save_and_restore(engine);
  engine.find_non_finite();
  for (const auto& [name, count] : checked.checked()) counts[name] += count;
}

Tensor random_act(Ops& ops, Arena& arena, const Shape& shape, uint64_t seed) {
  const DType act = ops.compute_dtype();
  const Tensor master = arena.allocate(DType::kF32, shape), x = arena.allocate(act, shape),
               low = act == DType::kBF16 ? arena.allocate(DType::kI16, shape) : Tensor();
  ops.fill_truncated_normal({.x = master, .draws = {.seed = seed}});
  ops.split_weight({.master = master, .w = x, .low = low});
  ops.join_weight({.w = x, .low = low, .master = master});
  return x;
}

// Products of sizes that small models have not: of several tiles each way, with experts that have many rows, one and
// none, in every format that products round to themselves.
void products(checked::CheckedDevice& checked, Arena& arena) {
  Ops& ops = checked.ops();
  constexpr int64_t R = 704, E = 5, in = 336, out = 400;
  uint64_t seed = 1;
  const auto random = [&](const Shape& shape) { return random_act(ops, arena, shape, seed++); };
  const Tensor x = random({R, in}), dy = random({R, out}), w = random({E, out, in}), addend = random({R, out}),
               y = arena.allocate(ops.compute_dtype(), {R, out}), dx = random({R, in}),
               dw = arena.allocate(DType::kF32, {E, out, in}), offsets = arena.allocate(DType::kI32, {E + 1}),
               key = arena.allocate(DType::kI64, {1});
  checked.upload(offsets, std::vector<int32_t>{0, 130, 130, 131, 560, 690}.data());
  checked.upload(key, std::vector<int64_t>{77}.data());
  for (const OperandFormat format : {OperandFormat::kAct, OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
    if (format != OperandFormat::kAct && ops.weight_rounding(format) != WeightRounding::kInside) continue;
    const OperandRounding nearest{.format = format};
    OperandRounding gradient = nearest;
    if (format == OperandFormat::kNvFp4) gradient.random = {.key = key, .stream = 3};
    ops.grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = y, .rounding = nearest});
    ops.grouped_linear_backward_input({.dy = dy, .w = w, .offsets = offsets, .dx = dx, .rounding = gradient});
    for (const bool accumulate : {false, true}) {
      ops.grouped_linear_backward_weight(
          {.x = x, .dy = dy, .offsets = offsets, .dw = dw, .accumulate = accumulate, .rounding = gradient});
    }
    for (const int64_t rows : {R, int64_t{333}}) {
      const Tensor some = x.rows(0, rows), dsome = dy.rows(0, rows);
      ops.linear_forward(
          {.x = some, .w = w[0], .y = y.rows(0, rows), .addend = addend.rows(0, rows), .rounding = nearest});
      ops.linear_backward_input(
          {.dy = dsome, .w = w[0], .dx = dx.rows(0, rows), .accumulate = true, .rounding = gradient});
      ops.linear_backward_weight({.x = some, .dy = dsome, .dw = dw[0], .accumulate = true, .rounding = gradient});
    }
  }
}

// Latent attention of the sizes that models have.
void latent_attention(checked::CheckedDevice& checked, Arena& arena) {
  constexpr int64_t B = 2, S = 150, T = B * S, H = 2, nope = 128, rope = 64, value = 128;
  Ops& ops = checked.ops();
  const AttentionShape shape{.num_seqs = B, .seq_len = S, .scale = 0.07};
  const Tensor q = random_act(ops, arena, {T, H, nope + rope}, 11),
               kv = random_act(ops, arena, {T, H, nope + value}, 12), k_rope = random_act(ops, arena, {T, rope}, 13),
               dout = random_act(ops, arena, {T, H, value}, 14);
  const auto room = [&](const Tensor& like) { return arena.allocate(like.dtype(), like.shape()); };
  const Tensor out = room(dout), lse = arena.allocate(ops.stat_dtype(), {B, H, S});
  ops.mla_attention_forward({.shape = shape, .q = q, .kv = kv, .k_rope = k_rope, .out = out, .lse = lse});
  ops.mla_attention_backward({.shape = shape,
                              .q = q,
                              .kv = kv,
                              .k_rope = k_rope,
                              .out = out,
                              .lse = lse,
                              .dout = dout,
                              .dq = room(q),
                              .dkv = room(kv),
                              .dk_rope = room(k_rope)});
}

// Mamba-2's scan of the sizes that models have, in sequences that go on elsewhere.
void scan(checked::CheckedDevice& checked, Arena& arena) {
  constexpr int64_t B = 2, S = 150, T = B * S, H = 4, P = 64, G = 2, N = 128;
  Ops& ops = checked.ops();
  const auto act = [&](const Shape& shape, uint64_t seed) { return random_act(ops, arena, shape, seed); };
  const auto stat = [&](const Shape& shape, uint64_t seed) {
    const Tensor x = arena.allocate(ops.stat_dtype(), shape);
    ops.fill_truncated_normal({.x = x, .draws = {.seed = seed}});
    return x;
  };
  const SsdInputs in{.num_seqs = B,
                     .seq_len = S,
                     .x = act({T, H, P}, 21),
                     .b = act({T, G, N}, 22),
                     .c = act({T, G, N}, 23),
                     .dt = act({T, H}, 24),
                     .dt_bias = stat({H}, 25),
                     .a_log = stat({H}, 26),
                     .d = stat({H}, 27),
                     .initial_state = stat({B, H, P, N}, 28)};
  const auto room = [&](const Tensor& like) { return arena.allocate(like.dtype(), like.shape()); };
  ops.ssd_forward({.in = in, .y = room(in.x), .final_state = room(in.initial_state)});
  ops.ssd_backward({.in = in,
                    .dy = act({T, H, P}, 29),
                    .dfinal_state = stat({B, H, P, N}, 30),
                    .dx = room(in.x),
                    .db = room(in.b),
                    .dc = room(in.c),
                    .ddt = room(in.dt),
                    .ddt_bias = stat({H}, 31),
                    .da_log = stat({H}, 32),
                    .dd = stat({H}, 33),
                    .dinitial_state = room(in.initial_state)});
}

// What small models have no use for.
void single_operations(const DeviceOptions& options, const Wrap& wrap, Counts& counts) {
  const std::unique_ptr<Device> device = make_device(options), tested = wrap ? wrap(*device) : nullptr;
  device->scratch(Lane::kCompute).reserve(device->memory(), kArenaBytes);
  checked::CheckedDevice checked(tested ? *tested : *device);
  Ops& ops = checked.ops();
  Arena arena("self test");
  arena.reserve(checked.memory(), kArenaBytes);
  constexpr int64_t T = 200, D = 208, E = 5, K = 2;
  const DType act = ops.compute_dtype();
  const Tensor x = random_act(ops, arena, {T, D}, /*seed=*/1);
  for (const OperandFormat format : {OperandFormat::kFp8, OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
    for (const BlockShape blocks : {BlockShape::kRows, BlockShape::kTiles}) {
      const bool tiles = blocks == BlockShape::kTiles, is_nvfp4 = format == OperandFormat::kNvFp4;
      if (tiles && format == OperandFormat::kMxFp8) continue;
      const int64_t n = block_size(format), down = tiles ? (T + n - 1) / n : T;
      const Tensor matrix = x.reshape({1, T, D}), amax = arena.allocate(DType::kF32, {1});
      ops.abs_max({.x = matrix, .amax = amax});
      ops.quantize({.format = format,
                    .blocks = blocks,
                    .x = matrix,
                    .amax = is_nvfp4 ? amax : Tensor(),
                    .values = arena.allocate(DType::kU8, {1, T, is_nvfp4 ? D / 2 : D}),
                    .scales = arena.allocate(DType::kU8, {1, down, (D + n - 1) / n})});
    }
  }
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const int64_t width = kind == Activation::kSwiGlu ? D / 2 : D;
    ops.activation_forward({.kind = kind, .pre = x, .h = arena.allocate(act, {T, width})});
  }
  const Tensor top_idx = arena.allocate(DType::kI32, {T, K});
  checked.upload(top_idx, ids(T * K, E, 3).data());
  const MoePlan plan{.offsets = arena.allocate(DType::kI32, {E + 1}), .row_of = arena.allocate(DType::kI32, {T, K})};
  ops.build_moe_plan({.top_idx = top_idx, .plan = plan, .counts = {}});
  ops.moe_dispatch({.x = x, .plan = plan, .rows = arena.allocate(act, {T * K, D})});

  // A beginning, and two texts that go on behind it.
  constexpr int32_t kBeginning = 90, kFirst = 60;
  const Tensor heads = x.reshape({T, D / 16, 16}), positions = arena.allocate(DType::kI32, {T}),
               bounds = arena.allocate(DType::kI32, {4}), parents = arena.allocate(DType::kI32, {4});
  std::vector<int32_t> places(T);
  for (int32_t row = 0; row < T; ++row)
    places[static_cast<size_t>(row)] = row < kBeginning + kFirst ? row : row - kFirst;
  checked.upload(positions, places.data());
  checked.upload(bounds, std::vector<int32_t>{0, kBeginning, kBeginning + kFirst, T}.data());
  checked.upload(parents, std::vector<int32_t>{-1, 0, 0, -1}.data());
  ops.tree_attention({.scale = 0.25,
                      .q = heads,
                      .k = heads,
                      .v = heads,
                      .out = arena.allocate(act, {T, D / 16, 16}),
                      .positions = positions,
                      .bounds = bounds,
                      .parents = parents});
  ops.mla_tree_attention({.scale = 0.25,
                          .q = heads,
                          .kv = heads,
                          .k_rope = x.columns(0, 8),
                          .out = arena.allocate(act, {T, D / 16, 8}),
                          .positions = positions,
                          .bounds = bounds,
                          .parents = parents});
  latent_attention(checked, arena);
  scan(checked, arena);
  products(checked, arena);
  for (const auto& [name, count] : checked.checked()) counts[name] += count;
}

// Prompts of two sequences, and then a token of each.
void generate(const Config& config, const DeviceOptions& options, const Wrap& wrap, Counts& counts) {
  const std::unique_ptr<Device> device = make_device(options), tested = wrap ? wrap(*device) : nullptr;
  device->scratch(Lane::kCompute).reserve(device->memory(), kArenaBytes);
  checked::CheckedDevice checked(tested ? *tested : *device);
  Arena arena("self test"), activations("activations");
  arena.reserve(checked.memory(), kArenaBytes);
  activations.reserve(checked.memory(), kArenaBytes);
  constexpr int64_t kPrompt = 20;
  WeightSet weights(describe_model(config.model).weights);
  weights.allocate(checked.ops(), arena, arena);
  weights.initialise(checked.ops(), /*seed=*/1, config.model.init.truncation);
  ModelRunner runner(config.model, weights, checked, {.kept = arena, .states = arena, .activations = activations},
                     generation_runner(2 * kPrompt, config.generation.arithmetic));
  const StateSizes sizes{.num_slots = 2, .capacity = 2 * kPrompt};
  const ModelStates states = runner.make_states(sizes);
  checked.upload(states.pages, own_pages(sizes).data());
  const auto upload = [&](const std::vector<int32_t>& values) {
    const Tensor tensor = arena.allocate(DType::kI32, {std::ssize(values)});
    checked.upload(tensor, values.data());
    return tensor;
  };
  for (const int64_t rows_each : {kPrompt, int64_t{1}}) {
    std::vector<int32_t> slots, positions, wanted;
    for (int32_t slot = 0; slot < 2; ++slot) {
      for (int64_t i = 0; i < rows_each; ++i) {
        slots.push_back(slot);
        positions.push_back(static_cast<int32_t>(rows_each == 1 ? kPrompt : i));
      }
      wanted.push_back(static_cast<int32_t>(std::ssize(slots) - 1));
    }
    const CachedRows rows{.tokens = upload(ids(std::ssize(slots), config.model.vocab_size, 7)),
                          .slots = upload(slots),
                          .positions = upload(positions)};
    const ArenaScope scope(activations);
    const DType stat = checked.ops().stat_dtype();
    const Tensor logits = arena.allocate(stat, {std::ssize(wanted), config.model.vocab_size});
    runner.model().cached_logits(rows, states, activations, upload(wanted), logits);
    checked.ops(Arithmetic::kBatchInvariant)
        .logit_sums({.logits = logits, .sums = arena.allocate(stat, {std::ssize(wanted), kLogSumMembers})});
  }
  for (const auto& [name, count] : checked.checked()) counts[name] += count;
}

// Tokens are chosen on the device itself, where it can.
void sample(const DeviceOptions& options, Counts& counts) {
  const std::unique_ptr<Device> device = make_device(options);
  if (device->token_sampler() == nullptr) return;
  device->scratch(Lane::kCompute).reserve(device->memory(), kArenaBytes);
  Arena arena("self test");
  arena.reserve(device->memory(), kArenaBytes);
  for (const auto& [name, count] : check_token_sampler(token_sampler_of(*device, arena))) counts[name] += count;
}

}  // namespace

Counts run_self_test(const DeviceOptions& options, const std::function<void(const std::string&)>& say,
                     const Wrap& wrap) {
  Counts counts;
  const std::vector<Config> configs{even_config(Precision::kDevice), odd_config(),
                                    recurrent_config(options.kind == "cpu")};
  say("single operations");
  single_operations(options, wrap, counts);
  say("training steps");
  for (const Config& config : configs) train(config, options, wrap, counts);
  say("generation");
  for (const GenerationArithmetic arithmetic : {GenerationArithmetic::kLatent, GenerationArithmetic::kTraining}) {
    for (Config config : configs) {
      config.generation.arithmetic = arithmetic;
      generate(config, options, wrap, counts);
    }
  }
  sample(options, counts);
  const auto device = make_device(options);
  for (const auto& [precision, format, name] : {std::tuple{Precision::kFp8, OperandFormat::kFp8, "fp8"},
                                                {Precision::kMxFp8, OperandFormat::kMxFp8, "mxfp8"},
                                                {Precision::kNvFp4, OperandFormat::kNvFp4, "nvfp4"}}) {
    if (device->ops().weight_rounding(format) == WeightRounding::kNone) continue;
    say(fmt::format("training steps in {}", name));
    Config config = even_config(precision);
    config.precision.fp8_weight_gradients = precision == Precision::kFp8;
    config.precision.wire = precision == Precision::kMxFp8 ? RowFormat::kFp8 : RowFormat::kDevice;
    config.precision.saved = config.precision.wire;
    train(config, options, wrap, counts);
    if (precision != Precision::kFp8) continue;
    config.precision.saved = RowFormat::kFp8;
    train(config, options, wrap, counts);
  }
  return counts;
}

}  // namespace nmoe
