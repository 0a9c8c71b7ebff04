#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "config/layers.h"
#include "config/scaling.h"
#include "config/schema.h"

namespace nmoe {
namespace {

// Keeps the rules that do not hold.
class Rules {
 public:
  explicit Rules(const Config& config) : config_(config), fields_(describe(config_)) {}
  Rules(const Rules&) = delete;  // fields_ refers to config_
  Rules& operator=(const Rules&) = delete;

  void require(bool holds, std::vector<std::string> keys, std::string_view reason, std::string remedy) {
    const auto is_blamed = [&](const std::string& key) {
      return std::ranges::any_of(
          issues_, [&](const Issue& issue) { return std::ranges::find(issue.keys, key) != issue.keys.end(); });
    };
    if (holds || std::ranges::any_of(keys, is_blamed)) return;
    // "a = 1: reason" or "a = 1 with b = 2, c = 3: reason"
    std::string what;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i > 0) what += i == 1 ? " with " : ", ";
      what += fmt::format("{} = {}", keys[i], value_of(keys[i]));
    }
    issues_.push_back({std::move(keys), fmt::format("{}: {}", what, reason), std::move(remedy)});
  }
  // Whether the key has one under the configuration.
  bool has_effect(const std::string& key) const { return field_of(key).used(); }
  std::vector<Issue> take() { return std::move(issues_); }

 private:
  const Field& field_of(const std::string& key) const {
    const auto field = std::ranges::find(fields_, key, &Field::key);
    NMOE_CHECK(field != fields_.end(), "a rule on the unknown key {}", key);
    return *field;
  }
  std::string value_of(const std::string& key) const { return to_toml(field_of(key).get()); }

  Config config_;
  std::vector<Field> fields_;
  std::vector<Issue> issues_;
};

// A pattern by itself. True if it can be read: what is checked after it may rely on layer_specs().
bool check_pattern(Rules& rules, const ModelConfig& model) {
  if (model.layers.empty()) return true;
  const LayerPattern pattern = read_layer_pattern(model.layers);
  if (pattern.problem) {
    rules.require(false, {"model.layers"},
                  fmt::format("character {}: {}", pattern.problem->character, pattern.problem->what),
                  pattern.problem->remedy);
    return false;
  }
  const std::vector<PartSpec> parts = parts_of(pattern.layers);
  rules.require(std::ranges::any_of(parts, is_mixer, &PartSpec::kind), {"model.layers"},
                "in no layer do positions see each other",
                "write mla, gqa, mamba2, gated_deltanet or kda in some layer");
  return true;
}

void check_attention(Rules& rules, const ModelConfig& model, const std::vector<LayerSpec>& layers) {
  const auto rotates = [parts = parts_of(layers)](PartKind kind) {
    return std::ranges::any_of(parts, [kind](const PartSpec& part) { return part.kind == kind && part.rotates; });
  };
  if (rotates(PartKind::kMla)) {
    rules.require(model.mla.qk_rope_head_dim % 2 == 0, {"model.mla.qk_rope_head_dim"}, "RoPE rotates pairs",
                  "make it even");
  }
  if (count_parts(layers, PartKind::kGqa) > 0) {
    if (model.gqa.rotary_dim == 0) {
      rules.require(!rotates(PartKind::kGqa) || model.gqa.head_dim % 2 == 0, {"model.gqa.head_dim"},
                    "RoPE rotates pairs", "make it even");
    } else {
      rules.require(rotates(PartKind::kGqa), {"model.gqa.rotary_dim"}, "no layer rotates heads", "remove it");
      rules.require(model.gqa.rotary_dim % 2 == 0, {"model.gqa.rotary_dim"}, "RoPE rotates pairs", "make it even");
      rules.require(model.gqa.rotary_dim <= model.gqa.head_dim, {"model.gqa.rotary_dim", "model.gqa.head_dim"},
                    "a head has fewer values", "lower model.gqa.rotary_dim");
    }
    rules.require(model.num_heads % model.gqa.num_kv_heads == 0, {"model.gqa.num_kv_heads", "model.num_heads"},
                  "key and value heads share the query heads evenly",
                  "let model.gqa.num_kv_heads divide model.num_heads");
  }
  if (model.layers.empty() && model.window > 0) {
    rules.require(model.attn_global_every > 1 && model.num_layers > 1,
                  {"model.window", "model.attn_global_every", "model.num_layers"},
                  "every layer is global, so the window has no effect",
                  "remove model.window, or set model.attn_global_every > 1 with several layers");
  }
  if (model.rope.scaling != RopeScaling::kNone) {
    rules.require(model.yarn.factor == 1.0, {"model.rope.scaling", "model.yarn.factor"},
                  "frequencies are changed in one way", "remove one of them");
    rules.require(
        model.rope.scaling != RopeScaling::kLlama3 || model.rope.low_freq_factor < model.rope.high_freq_factor,
        {"model.rope.low_freq_factor", "model.rope.high_freq_factor"}, "the ramp goes from slowed to kept pairs",
        "raise model.rope.high_freq_factor above model.rope.low_freq_factor");
  }
  if (model.yarn.factor > 1.0) {
    rules.require(model.yarn.beta_fast >= model.yarn.beta_slow, {"model.yarn.beta_fast", "model.yarn.beta_slow"},
                  "the ramp goes from kept to slowed wavelengths",
                  "raise model.yarn.beta_fast to model.yarn.beta_slow or more");
  }
}

void check_zero_centred_norms(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  const ModelConfig& model = config.model;
  if (!model.zero_centred_norms) return;
  rules.require(count_parts(layers, PartKind::kMla) == 0, {"model.zero_centred_norms", "model.layers"},
                "mla has no such norms", "write gqa for mla, or remove model.zero_centred_norms");
  rules.require(model.scaling.rule == ScalingRule::kNone, {"model.zero_centred_norms", "model.scaling.rule"},
                "rules of scaling change what gains begin at", "remove one of them");
}

void check_output_gate(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  if (!config.model.gqa.output_gate || count_parts(layers, PartKind::kGqa) == 0) return;
  rules.require(config.model.gqa.bias == AttentionBias::kNone, {"model.gqa.output_gate", "model.gqa.bias"},
                "gates have no biases", "remove one of them");
}

constexpr int64_t kMostGpuTaps = 4;  // of a convolution

void check_mamba2(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  if (count_parts(layers, PartKind::kMamba2) == 0) return;
  const Mamba2Config& mamba2 = config.model.mamba2;
  rules.require(mamba2.num_heads % mamba2.num_groups == 0, {"model.mamba2.num_groups", "model.mamba2.num_heads"},
                "groups share the heads evenly", "let model.mamba2.num_groups divide model.mamba2.num_heads");
  rules.require(mamba2.step_min <= mamba2.step_max, {"model.mamba2.step_min", "model.mamba2.step_max"},
                "no step is between them", "raise model.mamba2.step_max");
  rules.require(config.run.device == "cpu" || mamba2.conv_width <= kMostGpuTaps,
                {"run.device", "model.mamba2.conv_width"}, "on GPUs a convolution sees 4 tokens at most",
                "set run.device = \"cpu\" or model.mamba2.conv_width = 4");
  constexpr int64_t kMostGpuGroup = 8192;
  rules.require(config.run.device == "cpu" || mamba2.num_heads * mamba2.head_dim <= kMostGpuGroup * mamba2.num_groups,
                {"run.device", "model.mamba2.num_heads", "model.mamba2.head_dim", "model.mamba2.num_groups"},
                "on GPUs a group has 8,192 values at most",
                "set run.device = \"cpu\" or raise model.mamba2.num_groups");
}

void check_gated_deltanet(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  if (count_parts(layers, PartKind::kGatedDeltaNet) == 0) return;
  const GatedDeltaNetConfig& net = config.model.gated_deltanet;
  rules.require(net.num_value_heads % net.num_key_heads == 0,
                {"model.gated_deltanet.num_key_heads", "model.gated_deltanet.num_value_heads"},
                "key heads are shared evenly",
                "let model.gated_deltanet.num_key_heads divide model.gated_deltanet.num_value_heads");
  const bool on_cpu = config.run.device == "cpu";
  rules.require(on_cpu || net.conv_width <= kMostGpuTaps, {"run.device", "model.gated_deltanet.conv_width"},
                "on GPUs a convolution sees 4 tokens at most",
                "set run.device = \"cpu\" or model.gated_deltanet.conv_width = 4");
  constexpr int64_t kMostGpuKeys = 128;
  rules.require(on_cpu || net.key_head_dim <= kMostGpuKeys, {"run.device", "model.gated_deltanet.key_head_dim"},
                "on GPUs keys have 128 values at most",
                "set run.device = \"cpu\" or model.gated_deltanet.key_head_dim = 128");
}

void check_mla_nope(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  const bool is_there = std::ranges::any_of(
      parts_of(layers), [](const PartSpec& part) { return part.kind == PartKind::kMla && !part.rotates; });
  rules.require(!is_there || config.run.device == "cpu", {"run.device", "model.layers"},
                "mla_nope does not run on GPUs yet", "set run.device = \"cpu\"");
}

void check_kda(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  if (count_parts(layers, PartKind::kKda) == 0) return;
  rules.require(config.run.device == "cpu", {"run.device", "model.layers"}, "kda does not run on GPUs yet",
                "set run.device = \"cpu\"");
}

void check_moe(Rules& rules, const ModelConfig& model, const std::vector<LayerSpec>& layers) {
  const MoeConfig& moe = model.moe;
  const bool has_moe = count_parts(layers, PartKind::kMoe) > 0;
  if (moe.num_experts == 0) {
    return rules.require(!has_moe, {"model.layers", "model.moe.num_experts"}, "its moe layers have no experts",
                         "set model.moe.num_experts, or write dense for moe");
  }
  if (model.layers.empty()) {
    rules.require(has_moe, {"model.num_dense_layers", "model.num_layers"}, "no layer is left to the experts",
                  "lower model.num_dense_layers, or set model.moe.num_experts = 0");
  } else {
    rules.require(has_moe, {"model.layers", "model.moe.num_experts"}, "no layer has experts",
                  "write moe for dense in some layer, or set model.moe.num_experts = 0");
  }
  rules.require(moe.top_k <= moe.num_experts, {"model.moe.top_k", "model.moe.num_experts"},
                "a token cannot go to more experts than there are", "lower model.moe.top_k");
  if (moe.num_groups == 1) return;
  rules.require(moe.num_experts % moe.num_groups == 0, {"model.moe.num_groups", "model.moe.num_experts"},
                "all groups have the same number of experts", "let model.moe.num_groups divide model.moe.num_experts");
  const int64_t group_size = moe.num_experts / moe.num_groups;
  rules.require(moe.score != ScoreFunction::kSigmoid || group_size >= 2,
                {"model.moe.num_groups", "model.moe.num_experts", "model.moe.score"},
                "with sigmoid scores a group ranks by its two best experts, and has but one",
                "lower model.moe.num_groups, or set model.moe.score = \"softmax\"");
  rules.require(moe.top_groups <= moe.num_groups, {"model.moe.top_groups", "model.moe.num_groups"},
                "a token cannot choose more groups than there are", "lower model.moe.top_groups");
  rules.require(moe.top_k <= moe.top_groups * group_size,
                {"model.moe.top_k", "model.moe.top_groups", "model.moe.num_groups", "model.moe.num_experts"},
                fmt::format("the groups a token chooses have only {} experts", moe.top_groups * group_size),
                "lower model.moe.top_k or raise model.moe.top_groups");
}

void check_mtp(Rules& rules, const Config& config, const std::vector<LayerSpec>& layers) {
  const MtpConfig& mtp = config.model.mtp;
  if (mtp.depth == 0) return;
  rules.require(mtp.depth < config.data.seq_len, {"model.mtp.depth", "data.seq_len"},
                "no position has a token so far ahead in its sequence", "lower model.mtp.depth");
  if (mtp.layers.empty()) {
    rules.require(layers.back().parts.size() == 2, {"model.mtp.depth", "model.layers"},
                  "a module has a layer as the model's last, which has a single part",
                  "set model.mtp.layers, as to \"gqa, moe\"");
    return;
  }
  const LayerPattern pattern = read_layer_pattern(mtp.layers);
  if (pattern.problem) {
    rules.require(false, {"model.mtp.layers"},
                  fmt::format("character {}: {}", pattern.problem->character, pattern.problem->what),
                  pattern.problem->remedy);
    return;
  }
  const std::vector<PartSpec> parts = parts_of(pattern.layers);
  rules.require(std::ranges::any_of(parts, is_mixer, &PartSpec::kind), {"model.mtp.layers"},
                "in no layer of a module do positions see each other",
                "write mla, gqa, mamba2, gated_deltanet or kda in some layer");
  const bool are_known =
      std::ranges::all_of(parts, [&](const PartSpec& part) { return count_parts(layers, part.kind) > 0; });
  rules.require(are_known, {"model.mtp.layers"}, "it has a part of a kind that no layer of the model has",
                "write kinds of parts that the model's layers have");
}

// The base is a model of its own, in which every size that is given for it has an effect, as it has in the model.
void check_scaling(Rules& rules, const Config& config) {
  if (config.model.scaling.rule == ScalingRule::kNone) return;
  const auto key_of_base = [](std::string_view key) { return fmt::format("model.scaling.base.{}", key); };
  for (const auto& [key, value] : config.model.scaling.base.sizes) {
    rules.require(rules.has_effect("model." + key), {key_of_base(key)},
                  fmt::format("model.{} has no effect in this model", key), "remove it");
  }
  rules.require(config.model.scaling.base.layers.empty() || !config.model.layers.empty(),
                {"model.scaling.base.layers", "model.layers"}, "the model's layers are described by keys",
                "describe the base's by keys, too: model.scaling.base.num_layers");
  Config base = config;
  base.model = scaling_base(config.model);
  for (const Issue& issue : find_issues(base)) {
    if (!std::ranges::all_of(issue.keys, [](const std::string& key) { return key.starts_with("model."); })) continue;
    rules.require(false, {"model.scaling.rule"}, fmt::format("of the base model, {}", issue.what),
                  fmt::format("change [model.scaling.base]: {}", issue.remedy));
  }
}

void check_optim(Rules& rules, const OptimConfig& optim, bool has_experts) {
  if (has_experts) {
    rules.require(optim.router.optimizer != OptimizerKind::kMuon, {"optim.router.optimizer"},
                  "the router is trained by AdamW", "set it to \"adamw\" or remove it");
  }
  rules.require(optim.rest.optimizer != OptimizerKind::kMuon, {"optim.rest.optimizer"},
                "embedding, head and norms are trained by AdamW", "set it to \"adamw\" or remove it");
  const ScheduleConfig& schedule = optim.schedule;
  const double percent = schedule.warmup.percent() + schedule.hold.percent() + schedule.decay.percent();
  rules.require(percent <= 100.0 + 1e-9, {"optim.schedule.warmup", "optim.schedule.hold", "optim.schedule.decay"},
                "together they are more than the run", "let shares of it add up to 100% at most");
}

void check_run(Rules& rules, const RunConfig& run) {
  rules.require(run.device != "cpu" || run.precision != Precision::kBf16, {"run.precision", "run.device"},
                "the CPU computes in fp32", "remove run.precision, or set run.device = \"cuda\"");
}

void check_precision(Rules& rules, const Config& config, size_t num_layers) {
  const PrecisionConfig& precision = config.precision;
  if (!is_low(config.run.precision)) return;
  rules.require(precision.keep_first + precision.keep_last < static_cast<int64_t>(num_layers),
                {"precision.keep_first", "precision.keep_last"},
                fmt::format("of {} layers none is left to run.precision", num_layers),
                "lower one of them, or remove run.precision");
}

// A list for layers has all of them, and says something that one value for all does not.
template <class T>
void check_list(Rules& rules, const std::string& key, const PerLayer<T>& choice, size_t num_layers) {
  if (choice.num_layers() == 0) return;
  rules.require(choice.num_layers() == static_cast<int64_t>(num_layers), {key},
                fmt::format("a list for {} layers, of {}", choice.num_layers(), num_layers),
                "let its counts add up to the model's layers, or write one value for all");
  rules.require(choice.runs().size() > 1, {key}, "all layers have the same", "write it once, without a count");
}

// Of the inputs that travel, the last ones wait on the device: some are to be left.
void check_recompute(Rules& rules, const PerLayer<Recompute>& recompute, size_t num_layers) {
  check_list(rules, "train.recompute", recompute, num_layers);
  if (!recompute.any([](Recompute level) { return level == Recompute::kHost; })) return;
  size_t travelling = 0;
  Recompute before = Recompute::kBlocks;
  for (int64_t layer = 0; layer < static_cast<int64_t>(num_layers); ++layer) {
    const Recompute own = recompute.of(layer);
    if (input_travels(before, own)) ++travelling;
    before = own;
  }
  rules.require(travelling > kInputSlots, {"train.recompute"},
                fmt::format("of {} block inputs that could go to the host none would, since the last {} stay",
                            travelling, kInputSlots),
                "write blocks for host, or write host for more layers that follow each other, or blocks");
}

// What experts with biases do not have yet.
void check_biases(Rules& rules, const Config& config) {
  if (!config.model.moe.biases) return;
  rules.require(!config.precision.fp8_weight_gradients, {"model.moe.biases", "precision.fp8_weight_gradients"},
                "the gradients of biases need those of pre-activations as values",
                "remove precision.fp8_weight_gradients");
}

void check_data(Rules& rules, const ModelConfig& model, const DataConfig& data, const TrainConfig& train) {
  rules.require(model.max_positions == 0 || data.seq_len <= model.max_positions,
                {"data.seq_len", "model.max_positions"}, "sequences are longer than the model is meant for",
                "lower data.seq_len or raise model.max_positions");
  rules.require(data.seq_len % data.align_documents == 0, {"data.seq_len", "data.align_documents"},
                "sequences are no multiple of what documents are aligned to",
                "choose a multiple of data.align_documents, or a divisor of data.seq_len");
  const bool has_mixture = !data.mixture.empty();
  rules.require(!has_mixture || data.path.empty(), {"data.mixture", "data.path"}, "a run reads one of them",
                "remove data.path, or data.mixture and data.profile");
  rules.require(!has_mixture || !data.profile.empty(), {"data.profile", "data.mixture"},
                "a profile says how much of the mixture to train on", "set it to one of the mixture's [profiles.NAME]");
  const bool has_end = has_mixture || train.steps > 0 || train.tokens > 0 || train.epochs > 0.0;
  rules.require(has_end, {"train.steps"}, "without data.mixture the data has no end",
                "set train.steps, train.tokens or train.epochs");
}

void check_train(Rules& rules, const TrainConfig& train) {
  rules.require(train.batch_seqs % train.microbatch_seqs == 0, {"train.microbatch_seqs", "train.batch_seqs"},
                "a batch is cut into equal microbatches", "let train.microbatch_seqs divide train.batch_seqs");
}

void check_parallel(Rules& rules, const Config& config) {
  const int64_t ranks = config.parallel.ranks;
  rules.require(config.train.batch_seqs % (ranks * config.train.microbatch_seqs) == 0,
                {"parallel.ranks", "train.batch_seqs", "train.microbatch_seqs"},
                "every rank takes an equal share of a batch, in whole microbatches",
                "let parallel.ranks * train.microbatch_seqs divide train.batch_seqs");
  rules.require(config.train.gradients == GradientFormat::kFp32 || ranks == 1 || config.parallel.rebalance_every == 0,
                {"train.gradients", "parallel.rebalance_every", "parallel.ranks"},
                "experts move by way of the memory of their gradients, which have room for them in fp32 alone",
                "set parallel.rebalance_every = 0, or leave out train.gradients");
  const int64_t shards = config.parallel.logical_shards;
  rules.require(shards == 0 || config.train.batch_seqs == shards * config.train.microbatch_seqs,
                {"parallel.logical_shards", "train.batch_seqs", "train.microbatch_seqs"},
                "a logical shard is a microbatch of its batch",
                "let train.batch_seqs be parallel.logical_shards * train.microbatch_seqs");
  // What several depths add to an expert's gradient comes shard by shard for each of them.
  rules.require(shards == 0 || !config.model.mtp.shared || config.model.moe.num_experts == 0,
                {"parallel.logical_shards", "model.mtp.shared", "model.moe.num_experts"},
                "depths that share experts add to their gradients in an order that depends on the ranks",
                "set model.mtp.shared = false, or leave out parallel.logical_shards");
}

}  // namespace

std::vector<Issue> find_issues(const Config& config) {
  Rules rules(config);
  check_run(rules, config.run);
  if (check_pattern(rules, config.model)) {
    const std::vector<LayerSpec> layers = layer_specs(config.model);
    check_attention(rules, config.model, layers);
    check_zero_centred_norms(rules, config, layers);
    check_output_gate(rules, config, layers);
    check_mamba2(rules, config, layers);
    check_gated_deltanet(rules, config, layers);
    check_mla_nope(rules, config, layers);
    check_kda(rules, config, layers);
    check_moe(rules, config.model, layers);
    check_mtp(rules, config, layers);
    check_precision(rules, config, layers.size());
    check_list(rules, "precision.saved", config.precision.saved, layers.size());
    check_recompute(rules, config.train.recompute, layers.size());
    check_biases(rules, config);
    check_scaling(rules, config);
  }
  check_optim(rules, config.optim, config.model.moe.num_experts > 0);
  check_data(rules, config.model, config.data, config.train);
  check_train(rules, config.train);
  check_parallel(rules, config);
  return rules.take();
}

}  // namespace nmoe
