#include "config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/field_list.h"
#include "config/layer_use.h"
#include "config/layers.h"
#include "config/limits.h"
#include "config/names.h"
#include "config/scaling.h"

namespace nmoe {
namespace {

// What enumerators are called in TOML (config/names.h has those that layers are made of).
constexpr Named<std::string_view> kDevices[] = {{"cpu", "cpu"}, {"cuda", "cuda"}};
constexpr Named<Precision> kPrecisions[] = {{Precision::kDevice, "device"}, {Precision::kBf16, "bf16"},
                                            {Precision::kFp32, "fp32"},     {Precision::kFp8, "fp8"},
                                            {Precision::kMxFp8, "mxfp8"},   {Precision::kNvFp4, "nvfp4"}};
constexpr Named<PartPrecision> kPartPrecisions[] = {{PartPrecision::kRun, "run"},
                                                    {PartPrecision::kDevice, "device"},
                                                    {PartPrecision::kFp8, "fp8"},
                                                    {PartPrecision::kMxFp8, "mxfp8"},
                                                    {PartPrecision::kNvFp4, "nvfp4"}};
constexpr Named<PrecisionFallback> kPrecisionFallbacks[] = {
    {PrecisionFallback::kReport, "report"}, {PrecisionFallback::kAct, "act"}, {PrecisionFallback::kOff, "off"}};
constexpr Named<RowFormat> kRowFormats[] = {{RowFormat::kDevice, "device"}, {RowFormat::kFp8, "fp8"}};
constexpr Named<Activation> kActivations[] = {{Activation::kSwiGlu, "swiglu"},
                                              {Activation::kReluSquared, "relu_squared"},
                                              {Activation::kClampedSwiGlu, "clamped_swiglu"}};
constexpr Named<RopeLayout> kRopeLayouts[] = {{RopeLayout::kInterleaved, "interleaved"},
                                              {RopeLayout::kHalfSplit, "half_split"}};
constexpr Named<RopeScaling> kRopeScalings[] = {
    {RopeScaling::kNone, "none"}, {RopeScaling::kLinear, "linear"}, {RopeScaling::kLlama3, "llama3"}};
constexpr Named<QkNormOver> kQkNormOver[] = {{QkNormOver::kHead, "head"}, {QkNormOver::kAllHeads, "all_heads"}};
constexpr Named<AttentionBias> kAttentionBiases[] = {
    {AttentionBias::kNone, "none"}, {AttentionBias::kQkv, "qkv"}, {AttentionBias::kAll, "all"}};
constexpr Named<ScoreFunction> kScoreFunctions[] = {{ScoreFunction::kSigmoid, "sigmoid"},
                                                    {ScoreFunction::kSoftmax, "softmax"}};
constexpr Named<Offload> kOffloads[] = {{Offload::kNone, "none"}, {Offload::kFit, "fit"}, {Offload::kState, "state"}};
constexpr Named<MomentFormat> kMomentFormats[] = {
    {MomentFormat::kFp32, "fp32"}, {MomentFormat::kBf16, "bf16"}, {MomentFormat::kFp8, "fp8"}};
constexpr Named<MomentFormat> kMomentumFormats[] = {{MomentFormat::kFp32, "fp32"}, {MomentFormat::kBf16, "bf16"}};
constexpr Named<GradientFormat> kGradientFormats[] = {{GradientFormat::kFp32, "fp32"}, {GradientFormat::kBf16, "bf16"}};
constexpr Named<MuonProducts> kMuonProducts[] = {{MuonProducts::kDevice, "device"}, {MuonProducts::kBf16, "bf16"}};
constexpr Named<OptimizerKind> kOptimizers[] = {{OptimizerKind::kAdamW, "adamw"}, {OptimizerKind::kMuon, "muon"}};
constexpr Named<ScheduleUnit> kScheduleUnits[] = {{ScheduleUnit::kSteps, "steps"}, {ScheduleUnit::kTokens, "tokens"}};
constexpr Named<GenerationArithmetic> kGenerationArithmetics[] = {{GenerationArithmetic::kLatent, "latent"},
                                                                  {GenerationArithmetic::kTraining, "training"}};
constexpr Named<VerifyData> kVerifications[] = {{VerifyData::kNever, "never"}, {VerifyData::kOnResume, "on resume"}};
constexpr Named<Shuffle> kShuffles[] = {
    {Shuffle::kNone, "none"}, {Shuffle::kWindows, "windows"}, {Shuffle::kDocuments, "documents"}};
constexpr Named<DecayShape> kDecayShapes[] = {
    {DecayShape::kCosine, "cosine"}, {DecayShape::kLinear, "linear"}, {DecayShape::kSqrt, "sqrt"}};

constexpr Named<Recompute> kRecomputes[] = {{Recompute::kNone, "none"},
                                            {Recompute::kNorms, "norms"},
                                            {Recompute::kExperts, "experts"},
                                            {Recompute::kBlocks, "blocks"},
                                            {Recompute::kHost, "host"}};

void describe_run(FieldList& f, RunConfig& run) {
  f.section("run");
  f.key("name", run.name, kFileName, "name of the run").not_in_fingerprint();
  f.key("experiment", run.experiment, kSomeText, "group of runs that it belongs to").not_in_fingerprint();
  f.key("dir", run.dir, kSomeText, "folder of experiments.db, metrics/ and checkpoints/").not_in_fingerprint();
  f.key("device", run.device, kDevices, "device to compute on").not_in_fingerprint();
  Field& precision = f.key("precision", run.precision, kPrecisions, "format to compute in");
  if (!is_low(run.precision)) precision.not_in_fingerprint();
  f.key("threads", run.threads, Integers{0, 4096}, "CPU threads, shared by the ranks; 0: one per available CPU")
      .not_in_fingerprint();
  f.key("seed", run.seed, Integers{0}, "seed of initialisation, data order and stochastic rounding");
}

void describe_precision(FieldList& f, PrecisionConfig& precision, const RunConfig& run, const ModelConfig& model) {
  const LayerUse layers(model);
  const bool has_experts = model.moe.num_experts > 0;
  const bool has_dense = layers.by_keys()
                             ? !has_experts || model.num_dense_layers > 0
                             : layers.any([](const PartSpec& part) { return part.kind == PartKind::kDense; });
  constexpr std::string_view kExperts = "model.moe.num_experts > 0";
  f.section("precision");
  f.key("wire", precision.wire, kRowFormats, "format of tokens and gradients on their way to routed experts")
      .needs(has_experts, kExperts)
      .leave_out_if(precision.wire == RowFormat::kDevice);
  f.key("saved", precision.saved, kRowFormats, "format in which pre-activations of MLPs and experts wait for backward",
        "3 x fp8, 24 x device")
      .leave_out_if(precision.saved == RowFormat::kDevice);
  f.following_need(is_low(run.precision), "run.precision = \"fp8\", \"mxfp8\" or \"nvfp4\"");
  f.key("mixer", precision.mixer, kPartPrecisions, "format of projections");
  f.key("dense", precision.dense, kPartPrecisions, "format of dense MLPs").needs(has_dense, "a layer with a dense MLP");
  f.key("shared", precision.shared, kPartPrecisions, "format of shared experts").needs(has_experts, kExperts);
  f.key("experts", precision.experts, kPartPrecisions, "format of routed experts").needs(has_experts, kExperts);
  f.key("keep_first", precision.keep_first, kSizeOrNone, "number of first layers in which nothing is rounded");
  f.key("keep_last", precision.keep_last, kSizeOrNone, "number of last layers in which nothing is rounded");
  f.key("fp8_weight_gradients", precision.fp8_weight_gradients, kFlag,
        "compute the gradients of routed experts' weights in fp8 too")
      .needs(run.precision == Precision::kFp8, "run.precision = \"fp8\"");
  const auto is_nvfp4 = [&](PartPrecision part) {
    return part == PartPrecision::kNvFp4 || (part == PartPrecision::kRun && run.precision == Precision::kNvFp4);
  };
  const bool any_nvfp4 = is_nvfp4(precision.mixer) || is_nvfp4(precision.dense) || is_nvfp4(precision.shared) ||
                         is_nvfp4(precision.experts);
  f.key("nvfp4_transform", precision.nvfp4_transform, kFlag,
        "transform the operands of nvfp4's weight gradients (random Hadamard)")
      .needs(any_nvfp4, "a part in nvfp4")
      .leave_out_if(precision.nvfp4_transform);
  f.key("nvfp4_random_rounding", precision.nvfp4_random_rounding, kFlag,
        "round the gradients of outputs stochastically in nvfp4")
      .needs(any_nvfp4, "a part in nvfp4")
      .leave_out_if(precision.nvfp4_random_rounding);
  // Whoever only looks on changes nothing.
  const auto defines_run_if_it_acts = [&](Field& field) {
    if (precision.fallback != PrecisionFallback::kAct) field.not_in_fingerprint();
  };
  defines_run_if_it_acts(
      f.key("fallback", precision.fallback, kPrecisionFallbacks, "what to do if a format is too coarse"));
  defines_run_if_it_acts(
      f.key("check_every", precision.check_every, Integers{1, kMaxSize}, "steps between checks of what rounding loses")
          .needs(checks_precision(precision), "precision.fallback = \"report\" or \"act\""));
}

void describe_attention(FieldList& f, ModelConfig& model, const LayerUse& layers) {
  // Keys that say how positions rotate mean nothing where none do, whatever else they need.
  const auto following_need = [&f, rotates = layers.rotates()](bool met, std::string_view what) {
    f.following_need(rotates && met, rotates ? what : "a mixer with rotary positions in model.layers");
  };
  f.section("model.rope");
  following_need(true, "");
  f.key("theta", model.rope.theta, kPositive, "base of the rotary frequencies");
  f.key("layout", model.rope.layout, kRopeLayouts, "what rotates as a pair");
  RopeConfig& rope = model.rope;
  f.key("scaling", rope.scaling, kRopeScalings, "change for longer contexts")
      .leave_out_if(rope.scaling == RopeScaling::kNone);
  following_need(rope.scaling != RopeScaling::kNone, "model.rope.scaling = \"linear\" or \"llama3\"");
  f.key("factor", rope.factor, kAtLeastOne, "by which frequencies are divided");
  following_need(rope.scaling == RopeScaling::kLlama3, "model.rope.scaling = \"llama3\"");
  f.key("low_freq_factor", rope.low_freq_factor, kPositive,
        "pairs with fewer turns in the original context are slowed");
  f.key("high_freq_factor", rope.high_freq_factor, kPositive, "pairs with more turns there keep their frequency");
  f.key("original_max_positions", rope.original_max_positions, kSize, "context length before the extension");

  YarnConfig& yarn = model.yarn;
  f.section("model.yarn");
  following_need(true, "");
  f.key("factor", yarn.factor, Reals{.min = 1.0}, "factor by which the context is extended; 1: plain RoPE");
  following_need(yarn.factor > 1.0, "model.yarn.factor > 1");
  f.key("original_max_positions", yarn.original_max_positions, kSize, "context length before the extension");
  f.key("beta_fast", yarn.beta_fast, kPositive, "pairs that rotate more often in that context keep their frequency");
  f.key("beta_slow", yarn.beta_slow, kPositive, "pairs that rotate less often are slowed by factor");
  f.key("mscale", yarn.mscale, kNonNegative, "coefficient of the magnitude correction of cos and sin");
  f.key("mscale_all_dim", yarn.mscale_all_dim, kNonNegative,
        "coefficient of the magnitude correction of the softmax scale");
  f.key("truncate", yarn.truncate, kFlag, "round the ends of the ramp from kept to slowed pairs to whole pairs")
      .leave_out_if(yarn.truncate);

  MlaConfig& mla = model.mla;
  f.section("model.mla");
  f.following_need(layers.has_mixer(model, PartKind::kMla),
                   layers.by_keys() ? "model.attention = \"mla\"" : "a layer with mla in model.layers");
  f.key("q_lora_rank", mla.q_lora_rank, kSizeOrNone, "rank of latent queries; 0: queries are projected directly");
  f.key("kv_lora_rank", mla.kv_lora_rank, kSize, "rank of latent keys and values");
  f.key("qk_nope_head_dim", mla.qk_nope_head_dim, kSize, "size of the part of a query or key head without RoPE");
  f.key("qk_rope_head_dim", mla.qk_rope_head_dim, kSize, "size of the part with RoPE, whose key all heads share");
  f.key("v_head_dim", mla.v_head_dim, kSize, "size of a value head");
  f.key("norm_eps", mla.norm_eps, kPositive, "epsilon of the latents' norms, as model.norm_eps");

  GqaConfig& gqa = model.gqa;
  f.section("model.gqa");
  f.following_need(layers.has_mixer(model, PartKind::kGqa),
                   layers.by_keys() ? "model.attention = \"gqa\"" : "a layer with gqa in model.layers");
  f.key("num_kv_heads", gqa.num_kv_heads, kSize, "number of key/value heads; divides num_heads");
  f.key("head_dim", gqa.head_dim, kSize, "size of a query, key or value head");
  f.key("qk_norm", gqa.qk_norm, kFlag, "apply RMSNorm to queries and keys before RoPE");
  f.key("qk_norm_over", gqa.qk_norm_over, kQkNormOver, "what it goes over: each head, or all heads together")
      .needs(gqa.qk_norm, "model.gqa.qk_norm = true")
      .leave_out_if(gqa.qk_norm_over == QkNormOver::kHead);
  f.key("rotary_dim", gqa.rotary_dim, kSizeOrNone, "first values of a head that RoPE rotates; 0: all")
      .leave_out_if(gqa.rotary_dim == 0);
  f.key("bias", gqa.bias, kAttentionBiases, "projections with a bias; all: the output's, too")
      .leave_out_if(gqa.bias == AttentionBias::kNone);
  f.key("sinks", gqa.sinks, kFlag, "a learned logit of each head joins the softmax").leave_out_if(!gqa.sinks);
  f.key("output_gate", gqa.output_gate, kFlag, "multiply heads' outputs by the sigmoid of a projection")
      .leave_out_if(!gqa.output_gate);
}

void describe_mamba2(FieldList& f, Mamba2Config& mamba2, const LayerUse& layers, const ModelConfig& model) {
  f.section("model.mamba2");
  f.following_need(layers.has_mixer(model, PartKind::kMamba2), "a layer with mamba2 in model.layers");
  f.key("num_heads", mamba2.num_heads, kSize, "number of heads of the scan");
  f.key("head_dim", mamba2.head_dim, kSize, "values of a head");
  f.key("state_dim", mamba2.state_dim, kSize, "values of state to each of them");
  f.key("num_groups", mamba2.num_groups, kSize, "groups of heads that share B and C and have a norm of their own");
  f.key("conv_width", mamba2.conv_width, Integers{2, 8}, "tokens that the convolution sees, the token itself included");
  f.key("chunk", mamba2.chunk, Integers{1, 256}, "tokens of a chunk of the scan; part of its arithmetic");
  f.key("step_min", mamba2.step_min, kPositive, "least step that random weights begin with");
  f.key("step_max", mamba2.step_max, kPositive, "largest step that they begin with");
}

void describe_gated_deltanet(FieldList& f, GatedDeltaNetConfig& net, const LayerUse& layers, const ModelConfig& model) {
  f.section("model.gated_deltanet");
  f.following_need(layers.has_mixer(model, PartKind::kGatedDeltaNet), "a layer with gated_deltanet in model.layers");
  f.key("num_key_heads", net.num_key_heads, kSize, "number of heads of queries and keys");
  f.key("num_value_heads", net.num_value_heads, kSize, "number of heads of values, each with a state");
  f.key("key_head_dim", net.key_head_dim, kSize, "values of a query or key");
  f.key("value_head_dim", net.value_head_dim, kSize, "values of a head of values");
  f.key("conv_width", net.conv_width, Integers{2, 8}, "tokens that the convolution sees, the token itself included");
}

void describe_moe(FieldList& f, MoeConfig& moe, const LayerUse& layers) {
  f.section("model.moe");
  f.key("num_experts", moe.num_experts, kSizeOrNone, "number of routed experts; 0: every layer is dense");
  f.following_need(moe.num_experts > 0, "model.moe.num_experts > 0");
  f.key("top_k", moe.top_k, kSize, "routed experts per token");
  Field& expert_dim = f.key("expert_dim", moe.expert_dim, kSize, "hidden size of an expert");
  if (!layers.by_keys()) {
    expert_dim.needs(layers.leaves_width(PartKind::kMoe), "a moe layer without width in model.layers");
  }
  f.key("latent_dim", moe.latent_dim, kSizeOrNone,
        "width of what routed experts read and give, between two projections (LatentMoE); 0: model.dim, without them")
      .leave_out_if(moe.latent_dim == 0);
  f.key("biases", moe.biases, kFlag, "biases of the router and of routed experts").leave_out_if(!moe.biases);
  f.key("num_shared_experts", moe.num_shared_experts, kSizeOrNone,
        "number of experts of that size that every token uses");
  f.key("shared_dim", moe.shared_dim, kSizeOrNone, "hidden size of these together; 0: num_shared_experts * expert_dim")
      .needs(moe.num_shared_experts > 0, "model.moe.num_shared_experts > 0")
      .leave_out_if(moe.shared_dim == 0);
  f.key("shared_gate", moe.shared_gate, kFlag, "multiply what they give by the sigmoid of a projection")
      .needs(moe.num_shared_experts > 0, "model.moe.num_shared_experts > 0")
      .leave_out_if(!moe.shared_gate);
  f.key("score", moe.score, kScoreFunctions, "function from router logits to scores");
  f.key("num_groups", moe.num_groups, kSize, "number of expert groups; 1: no group limit");
  f.key("top_groups", moe.top_groups, kSize, "number of groups from which a token's experts are chosen")
      .needs(moe.num_groups > 1, "model.moe.num_groups > 1");
  f.key("normalise_weights", moe.normalise_weights, kFlag, "divide the gate weights of a token by their sum");
  f.key("routed_scale", moe.routed_scale, kPositive, "factor of the gate weights");
  f.key("bias_rate", moe.bias_rate, kNonNegative, "step size of the selection bias; 0: no bias");
  f.key("balance_loss", moe.balance_loss, kNonNegative, "coefficient of the sequence-wise balance loss");
  f.key("z_loss", moe.z_loss, kNonNegative, "coefficient of the router z-loss");
}

void describe_mtp(FieldList& f, MtpConfig& mtp) {
  f.section("model.mtp");
  f.key("depth", mtp.depth, Integers{0, MtpConfig::kMostDepths},
        "further tokens that each position predicts in training; 0: none")
      .leave_out_if(mtp.depth == 0);
  f.following_need(mtp.depth > 0, "model.mtp.depth > 0");
  f.key("shared", mtp.shared, kFlag, "one module predicts all of them, else each has its own")
      .needs(mtp.depth > 1, "model.mtp.depth > 1");
  f.key("layers", mtp.layers, kModuleLayers, "parts of a module's layers, as in model.layers")
      .leave_out_if(mtp.layers.empty());
  f.key("loss_weight", mtp.loss_weight, kNonNegative, "what the mean of their losses counts beside the main loss");
  f.key("later_from", mtp.later_from, kSpan, "steps or tokens (optim.schedule.unit) after which that changes; 0: never")
      .leave_out_if(mtp.later_from == 0);
  f.key("later_loss_weight", mtp.later_loss_weight, kNonNegative, "to what it changes")
      .needs(mtp.later_from > 0, "model.mtp.later_from > 0");
  f.key("detach", mtp.detach, kFlag, "only modules learn from their losses, not embedding, layers and head")
      .leave_out_if(!mtp.detach);
}

void describe_model(FieldList& f, ModelConfig& model) {
  constexpr std::string_view kNoPattern = "model.layers = \"\"";
  const bool has_experts = model.moe.num_experts > 0;
  const LayerUse layers(model);
  f.section("model");
  f.key("vocab_size", model.vocab_size, kSizeOrNone, "vocabulary size; 0: as many ids as the tokenizer has");
  f.key("dim", model.dim, kSize, "width of the residual stream");
  Field& pattern = f.key("layers", model.layers, kLayerPattern, "parts of every layer");
  pattern.leave_out_if(layers.by_keys()).details = kLayerPatternGrammar;
  f.key("num_layers", model.num_layers, kSize, "number of layers, each an attention and an MLP block")
      .needs(layers.by_keys(), kNoPattern);
  f.key("num_heads", model.num_heads, kSize, "number of query heads")
      .needs(layers.has_mixer(model, PartKind::kMla) || layers.has_mixer(model, PartKind::kGqa),
             "mla or gqa in model.layers");
  f.key("num_dense_layers", model.num_dense_layers, kSizeOrNone, "number of first layers that have a dense MLP")
      .needs(layers.by_keys(), kNoPattern)
      .needs(has_experts, "model.moe.num_experts > 0");
  Field& dense_dim = f.key("dense_dim", model.dense_dim, kSize, "hidden size of dense MLPs");
  if (!layers.by_keys()) {
    dense_dim.needs(layers.leaves_width(PartKind::kDense), "a dense layer without width in model.layers");
  } else if (has_experts) {
    dense_dim.needs(model.num_dense_layers > 0, "model.num_dense_layers > 0");
  }
  f.key("activation", model.activation, kActivations, "of MLPs");
  f.key("attention", model.attention, kMixerNames, "multi-head latent or grouped-query attention")
      .needs(layers.by_keys(), kNoPattern);
  f.key("window", model.window, kSizeOrNone, "sliding window of local layers, in tokens; 0: all layers are global")
      .needs(layers.by_keys(), kNoPattern);
  f.key("attn_global_every", model.attn_global_every, kSize, "every n-th layer is global, and so is the last")
      .needs(layers.by_keys(), kNoPattern)
      .needs(model.window > 0, "model.window > 0");
  f.key("max_positions", model.max_positions, kSizeOrNone, "longest text intended, in tokens; 0: data.seq_len")
      .not_in_fingerprint();
  f.key("norm_eps", model.norm_eps, kPositive, "epsilon of RMSNorm, added to the mean square");
  f.key("zero_centred_norms", model.zero_centred_norms, kFlag, "norms multiply by 1 + their weights, which begin at 0")
      .leave_out_if(!model.zero_centred_norms);
  f.key("tied_head", model.tied_head, kFlag, "the head shares the embedding table");
  describe_attention(f, model, layers);
  describe_mamba2(f, model.mamba2, layers, model);
  describe_gated_deltanet(f, model.gated_deltanet, layers, model);
  describe_moe(f, model.moe, layers);
  describe_mtp(f, model.mtp);

  describe_scaling(f, model.scaling);

  InitConfig& init = model.init;
  f.section("model.init");
  f.key("from", init.from, kAnyText, "checkpoint with the weights to start from; empty: random weights")
      .not_in_fingerprint();
  f.following_need(init.from.empty(), "model.init.from = \"\"");
  f.key("std", init.std, kNonNegative, "standard deviation of matrices and experts");
  f.key("embedding_std", init.embedding_std, kNonNegative, "standard deviation of the embedding table");
  f.key("router_std", init.router_std, kNonNegative, "standard deviation of router weights")
      .needs(has_experts, "model.moe.num_experts > 0");
  f.key("truncation", init.truncation, kPositive, "standard deviations at which the normal distribution is truncated");
  f.key("depth_scaled_outputs", init.depth_scaled_outputs, kFlag,
        "divide std by sqrt(parts of all layers) for output projections");
}

void describe_optim(FieldList& f, OptimConfig& optim, const ModelConfig& model) {
  const bool has_experts = model.moe.num_experts > 0;
  enum class Of { kAnyModel, kExperts };
  const auto group = [&f, has_experts](std::string_view section, GroupConfig& config, Of of, auto decay_limits,
                                       std::string_view decay_meaning) -> Field& {
    f.section(section);
    if (of == Of::kExperts) f.following_need(has_experts, "model.moe.num_experts > 0");
    f.key("optimizer", config.optimizer, kOptimizers, "optimizer of this parameter group");
    f.key("lr", config.lr, kNonNegative, "peak learning rate");
    return f.key("weight_decay", config.weight_decay, decay_limits, decay_meaning);
  };

  f.section("optim");
  f.shorthand("lr",
              {{"optim.matrices.lr", &optim.matrices.lr},
               {"optim.experts.lr", &optim.experts.lr},
               {"optim.router.lr", &optim.router.lr},
               {"optim.rest.lr", &optim.rest.lr}},
              kNonNegative, "peak learning rate of every group without an lr of its own");
  f.key("clip_norm", optim.clip_norm, kNonNegative, "limit of the global gradient norm; 0: no limit");

  f.key("offload", optim.offload, kOffloads, "optimizer state in host memory; fit: what lacks room")
      .not_in_fingerprint();

  group("optim.matrices", optim.matrices, Of::kAnyModel, kNonNegative,
        "decay of attention, dense MLPs and shared experts");
  group("optim.experts", optim.experts, Of::kExperts, kNonNegative, "decay of routed experts");
  group("optim.router", optim.router, Of::kExperts, kZero, "router weights never decay");
  group("optim.rest", optim.rest, Of::kAnyModel, kNonNegative,
        "decay of the head; embedding, norms and biases never decay")
      .needs(!model.tied_head, "model.tied_head = false");

  f.section("optim.adamw");
  f.key("state", optim.adamw.state, kMomentFormats,
        "format of the moments; bf16, fp8 (codes, and a scale for 128): rounded stochastically")
      .leave_out_if(optim.adamw.state == MomentFormat::kFp32);
  f.key("beta1", optim.adamw.beta1, kBelowOne, "decay rate of the first moment");
  f.key("beta2", optim.adamw.beta2, kBelowOne, "decay rate of the second moment");
  f.key("eps", optim.adamw.eps, kPositive, "added to the square root of the second moment");

  f.section("optim.muon");
  f.following_need(optim.matrices.optimizer == OptimizerKind::kMuon ||
                       (has_experts && optim.experts.optimizer == OptimizerKind::kMuon),
                   "optim.matrices.optimizer or optim.experts.optimizer = \"muon\"");
  f.key("state", optim.muon.state, kMomentumFormats, "format of the momentum; bf16: rounded stochastically")
      .leave_out_if(optim.muon.state == MomentFormat::kFp32);
  f.key("products", optim.muon.products, kMuonProducts,
        "format of Newton-Schulz's matrices; device: fp32, multiplied as TF32 by GPUs with bf16 weights")
      .leave_out_if(optim.muon.products == MuonProducts::kDevice);
  f.key("momentum", optim.muon.momentum, kBelowOne, "Nesterov momentum");
  f.key("iterations", optim.muon.iterations, Integers{1, 100}, "Newton-Schulz iterations");

  ScheduleConfig& schedule = optim.schedule;
  const bool decays = !schedule.decay.is_none();
  f.section("optim.schedule");
  const bool rates_change = !schedule.warmup.is_none() || decays;
  Field& unit = f.key("unit", schedule.unit, kScheduleUnits, "unit of warmup, hold, decay, model.mtp.later_from");
  unit.needs(rates_change || model.mtp.later_from > 0,
             "optim.schedule.warmup, optim.schedule.decay or model.mtp.later_from > 0");
  if (!rates_change) unit.not_in_fingerprint();  // as model.mtp.later_from, which alone asks for it then
  f.key("warmup", schedule.warmup, kSpan.max, /*may_be_rest=*/false, "length of the linear rise from 0 to the peak");
  f.key("hold", schedule.hold, kSpan.max, /*may_be_rest=*/true,
        "length at the peak, between warmup and decay; rest: what they leave")
      .needs(decays, "optim.schedule.decay > 0");
  f.key("decay", schedule.decay, kSpan.max, /*may_be_rest=*/false,
        "length of the fall from peak to floor; 0: the peak is held for ever");
  f.key("length", schedule.length, kSpan, "what shares are of; 0: the run's length when it first starts")
      .needs(schedule.needs_length(), "a share in optim.schedule")
      .leave_out_if(schedule.length == 0);
  f.following_need(decays, "optim.schedule.decay > 0");
  f.key("shape", schedule.shape, kDecayShapes, "shape of the decay; sqrt: 1 - sqrt(progress)");
  f.key("floor", schedule.floor, kNonNegative, "absolute learning rate below which no group decays");
}

void describe_train(FieldList& f, TrainConfig& train, const ModelConfig& model) {
  f.section("train");
  f.key("steps", train.steps, kSpan, "step at which to stop; 0: where the plan of data.mixture ends")
      .needs(train.tokens == 0, "train.tokens = 0")
      .needs(train.epochs == 0.0, "train.epochs = 0")
      .not_in_fingerprint();
  f.key("tokens", train.tokens, kSpan, "the same as tokens, in as many whole steps as they fill; 0: not by tokens")
      .needs(train.epochs == 0.0, "train.epochs = 0")
      .not_in_fingerprint()
      .leave_out_if(train.tokens == 0);
  f.key("epochs", train.epochs, kNonNegative,
        "the same as passes over data.path, in as many whole steps as they fill; 0: not by epochs")
      .not_in_fingerprint()
      .leave_out_if(train.epochs == 0.0);
  f.key("batch_seqs", train.batch_seqs, kSize, "sequences per optimizer step, over all ranks");
  // Fixes the order in which gradients are summed, and so their last bits, but not what is computed.
  f.key("microbatch_seqs", train.microbatch_seqs, kSize,
        "sequences per forward and backward pass; unless set, up to 16")
      .not_in_fingerprint();
  f.key("recompute", train.recompute, kRecomputes, "redone in backward", "3 x norms, 24 x blocks").not_in_fingerprint();
  f.key("gradients", train.gradients, kGradientFormats, "format of experts' gradients; bf16: rounded stochastically")
      .needs(model.moe.num_experts > 0, "model.moe.num_experts > 0")
      .leave_out_if(train.gradients == GradientFormat::kFp32);
  f.key("memory_limit", train.memory_limit, kBytesOrNone, "memory that the run may use; empty: what the machine has")
      .not_in_fingerprint();
  f.key("log_every", train.log_every, Integers{1, kSpan.max}, "steps between log lines").not_in_fingerprint();
  f.key("valid_every", train.valid_every, kSpan, "steps between validations; 0: only at the end").not_in_fingerprint();
  f.key("valid_seqs", train.valid_seqs, kSpan, "sequences per validation; 0: the whole split").not_in_fingerprint();
  f.key("target_loss", train.target_loss, kNonNegative, "validation loss, in nats per token, at which to stop; 0: none")
      .needs(train.valid_every > 0, "train.valid_every > 0")
      .not_in_fingerprint();
  f.key("logit_z_loss", train.logit_z_loss, kNonNegative, "coefficient of the z-loss on the head's logits; 0: none")
      .leave_out_if(train.logit_z_loss == 0.0);
  f.key("stop_on_collapse", train.stop_on_collapse, kFlag, "stop if a router has collapsed")
      .needs(model.moe.num_experts > 0, "model.moe.num_experts > 0")
      .not_in_fingerprint();
  f.key("sample_prompts", train.sample_prompts, kPrompts, "prompts that the model continues at each validation")
      .not_in_fingerprint()
      .leave_out_if(train.sample_prompts.empty());
  f.key("sample_tokens", train.sample_tokens, kSize, "most tokens per prompt")
      .needs(!train.sample_prompts.empty(), "train.sample_prompts")
      .not_in_fingerprint();
}

}  // namespace

std::vector<Field> describe(Config& config) {
  FieldList f;
  describe_run(f, config.run);
  describe_precision(f, config.precision, config.run, config.model);
  describe_model(f, config.model);

  f.section("data");
  f.key("path", config.data.path, kAnyText, "folder that `n prep` has written").not_in_fingerprint();
  f.key("mixture", config.data.mixture, kAnyText, "mixture file, instead of path").not_in_fingerprint();
  f.key("profile", config.data.profile, kAnyText, "profile of the mixture file: how much of it to train on")
      .needs(!config.data.mixture.empty(), "data.mixture")
      .not_in_fingerprint();
  f.key("shuffle", config.data.shuffle, kShuffles, "what each epoch reorders");
  f.key("seq_len", config.data.seq_len, kSize, "tokens per sequence");
  f.key("mask_documents", config.data.mask_documents, kFlag, "attention and positions restart with each document");
  f.key("align_documents", config.data.align_documents, kSize,
        "documents begin at multiples of so many tokens; 1: anywhere")
      .needs(config.data.mask_documents, "data.mask_documents = true")
      .leave_out_if(config.data.align_documents == 1);
  f.key("verify", config.data.verify, kVerifications, "when shards are hashed again").not_in_fingerprint();

  describe_optim(f, config.optim, config.model);
  describe_train(f, config.train, config.model);

  // The number of ranks fixes the order in which gradients are summed, as microbatches do, but with logical shards.
  f.section("parallel");
  f.key("ranks", config.parallel.ranks, Integers{1, 64},
        "number of ranks in all processes together; they share every batch")
      .not_in_fingerprint();
  f.key("logical_shards", config.parallel.logical_shards, Integers{0, 4096},
        "microbatches per batch, for the same bits on any number of ranks; 0: off")
      .leave_out_if(config.parallel.logical_shards == 0);
  f.key("capacity_factor", config.parallel.capacity_factor, kAtLeastOne,
        "row capacity of a rank over the average; excess takes more passes")
      .needs(config.parallel.ranks > 1, "parallel.ranks > 1")
      .needs(config.model.moe.num_experts > 0, "model.moe.num_experts > 0")
      .needs(config.parallel.logical_shards == 0, "parallel.logical_shards = 0")
      .not_in_fingerprint();
  f.key("rebalance_every", config.parallel.rebalance_every, kSpan,
        "steps between moves of experts to even out loads; 0: never")
      .needs(config.parallel.ranks > 1, "parallel.ranks > 1")
      .needs(config.model.moe.num_experts > 0, "model.moe.num_experts > 0")
      .not_in_fingerprint();
  f.key("bucket_bytes", config.parallel.bucket_bytes, Integers{1, 1'000'000'000'000'000},
        "least bytes of gradients whose sum over ranks starts in backward")
      .needs(config.parallel.ranks > 1, "parallel.ranks > 1")
      .needs(config.parallel.logical_shards == 0, "parallel.logical_shards = 0")
      .not_in_fingerprint();
  f.key("timeout_s", config.parallel.timeout_s, Integers{1, 31'536'000},
        "seconds that a rank waits for another before the run ends")
      .needs(config.parallel.ranks > 1, "parallel.ranks > 1")
      .not_in_fingerprint();
  f.key("stall_s", config.parallel.stall_s, Integers{0, 31'536'000},
        "the same within a step, beyond twice the longest step; 0: timeout_s")
      .needs(config.parallel.ranks > 1, "parallel.ranks > 1")
      .not_in_fingerprint();

  const bool evaluates = config.eval.every > 0;
  f.section("eval");
  f.key("every", config.eval.every, kSpan, "steps between evaluations, with one at the end; 0: never")
      .not_in_fingerprint();
  f.key("tasks", config.eval.tasks, kSomeText, "tasks, as in n eval --tasks")
      .needs(evaluates, "eval.every > 0")
      .not_in_fingerprint();
  f.key("limit", config.eval.limit, kSpan, "items per task; 0: all")
      .needs(evaluates, "eval.every > 0")
      .not_in_fingerprint();
  f.key("data_dir", config.eval.data_dir, kSomeText, "folder of the tasks' data (scripts/eval_data.sh)")
      .needs(evaluates, "eval.every > 0")
      .not_in_fingerprint();

  f.section("generation");
  f.key("arithmetic", config.generation.arithmetic, kGenerationArithmetics,
        "how MLA attends; training: its bits, larger cache")
      .needs(LayerUse(config.model).has_mixer(config.model, PartKind::kMla), "a layer with mla")
      .not_in_fingerprint();

  f.section("checkpoint");
  f.key("every", config.checkpoint.every, kSpan, "steps between checkpoints; 0: not by steps").not_in_fingerprint();
  f.key("every_minutes", config.checkpoint.every_minutes, kNonNegative, "minutes between checkpoints; 0: not by time")
      .not_in_fingerprint();
  f.key("keep_last", config.checkpoint.keep_last, kSpan, "number of checkpoints to keep; 0: all").not_in_fingerprint();
  f.key("staging_bytes", config.checkpoint.staging_bytes, kStagingBytes,
        "most host memory of a rank for state on its way to the disk")
      .not_in_fingerprint();

  f.section("track");
  f.key("alert_command", config.track.alert_command, kCommand,
        "program and arguments to run for each alert, with its text appended; not stored with the run")
      .not_in_fingerprint()
      .leave_out_if(config.track.alert_command.empty());
  return f.take();
}

}  // namespace nmoe
