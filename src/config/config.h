// The whole of a run's configuration as plain structs. config/schema.cpp describes every key once
// (name, meaning, limits, whether it defines the run, when it has an effect); reading, printing and
// fingerprinting all follow that description.
//
// TOML sections are the struct names below; [model.moe] is Config::model.moe, and so on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/kinds.h"
#include "config/per_layer.h"
#include "config/span.h"

namespace nmoe {

// The kinds of parts that layers are made of (config/layers.h).
enum class PartKind {
  // Mixers, in which the positions of a sequence see each other.
  kMla,            // multi-head latent attention: model/parts/mla.h
  kGqa,            // grouped-query attention: model/parts/gqa.h
  kMamba2,         // state-space duality: model/parts/mamba2.h
  kGatedDeltaNet,  // the gated delta rule: model/parts/gated_deltanet.h
  // Feed-forward parts, which work on each position separately.
  kDense,  // an MLP: model/parts/mlp.h
  kMoe,    // a mixture of experts: model/parts/moe.h
};
constexpr bool is_mixer(PartKind kind) { return kind < PartKind::kDense; }
constexpr bool is_attention(PartKind kind) { return kind == PartKind::kMla || kind == PartKind::kGqa; }
constexpr bool is_recurrent(PartKind kind) { return is_mixer(kind) && !is_attention(kind); }
// The format of activations and of weights in products: kDevice is bf16 on CUDA and fp32 on the CPU. With the low
// precisions it is the same, and the operands of the layers' products are rounded to the named format (OperandFormat,
// base/kinds.h) first. Master weights, gradients and moments are fp32 either way.
enum class Precision { kDevice, kBf16, kFp32, kFp8, kMxFp8, kNvFp4 };
constexpr bool is_low(Precision precision) { return precision >= Precision::kFp8; }
// The same for a part of the model; kRun: as run.precision.
enum class PartPrecision { kRun, kDevice, kFp8, kMxFp8, kNvFp4 };
// What happens if a part of a layer cannot bear its format (train/precision/precision_watch.h).
enum class PrecisionFallback {
  kReport,  // it is reported
  kAct,     // it is computed as with kDevice from then on
  kOff,     // it is not noticed: nothing is measured
};
enum class ScheduleUnit { kSteps, kTokens };
enum class DecayShape { kCosine, kLinear, kSqrt };  // kSqrt: 1 - sqrt(progress)
enum class OptimizerKind { kAdamW, kMuon };
enum class MomentFormat { kFp32, kBf16, kFp8 };
// Which state of optimizers lies in host memory: none of it, what has no room on the device, or all.
enum class Offload { kNone, kFit, kState };

struct RunConfig {
  std::string name = "run";            // letters, digits, '.', '_' and '-'
  std::string experiment = "default";  // group of runs
  std::string dir = "runs";            // folder of experiments.db, metrics/ and checkpoints/
  std::string device = "cpu";          // "cpu" or "cuda"
  Precision precision = Precision::kDevice;
  int64_t threads = 0;  // CPU threads of all ranks of a process together; 0: one per available CPU
  int64_t seed = 1;     // initialisation, data order, stochastic rounding
};

// If run.precision is low: the products that are exempt from it. Embedding, head, router, norms and what is in
// attention between its projections always are.
struct PrecisionConfig {
  PartPrecision mixer = PartPrecision::kRun;    // projections of mixers
  PartPrecision dense = PartPrecision::kRun;    // dense MLPs
  PartPrecision shared = PartPrecision::kRun;   // shared experts
  PartPrecision experts = PartPrecision::kRun;  // routed experts
  int64_t keep_first = 0;                       // number of first layers that stay kDevice, whatever the above says
  int64_t keep_last = 0;                        // number of last layers that do
  bool fp8_weight_gradients = false;            // FP8: routed experts' weight gradients too; else as with kDevice
  bool nvfp4_transform = true;                  // NVFP4: transform the operands of weight gradients
  bool nvfp4_random_rounding = true;            // NVFP4: round gradients of outputs stochastically
  RowFormat wire = RowFormat::kDevice;  // on the way to routed experts, on their own rank too; with any run.precision
  // Pre-activations of MLPs and experts, kept for backward; likewise.
  PerLayer<RowFormat> saved = RowFormat::kDevice;
  PrecisionFallback fallback = PrecisionFallback::kReport;
  int64_t check_every = 100;  // steps between measurements of what rounding loses
};
constexpr bool checks_precision(const PrecisionConfig& precision) {
  return precision.fallback != PrecisionFallback::kOff;
}

// What becomes of RoPE's frequencies where texts are longer than those that a model was first trained on; YaRN has a
// section of its own.
enum class RopeScaling {
  kNone,
  kLinear,  // all are divided by the factor (arXiv 2306.15595)
  kLlama3,  // slow ones are, fast ones are not, with a ramp in between (Llama 3.1)
};
struct RopeConfig {
  double theta = 10000.0;
  RopeLayout layout = RopeLayout::kInterleaved;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 8.0;
  // Llama 3's ramp, in turns over the original context: below `low` divided, above `high` kept.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 8192;
};

// YaRN (arXiv 2309.00071): context extension by a factor over original_max_positions. factor 1 is
// plain RoPE.
struct YarnConfig {
  double factor = 1.0;
  int64_t original_max_positions = 4096;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;          // DeepSeek's magnitude correction of cos and sin ...
  double mscale_all_dim = 0.0;  // ... and of the softmax scale
  bool truncate = true;         // the ramp's ends are rounded to whole pairs
};

struct MlaConfig {
  int64_t q_lora_rank = 0;  // 0: queries projected directly
  int64_t kv_lora_rank = 64;
  int64_t qk_nope_head_dim = 32;
  int64_t qk_rope_head_dim = 16;
  int64_t v_head_dim = 32;
  double norm_eps =
      1e-6;  // of the norms of latent queries, keys and values; DeepSeek fixes it, whatever model.norm_eps
};

// Over what the norms of queries and keys go: each head, with one gain for all, or all heads together, before they are
// divided.
enum class QkNormOver { kHead, kAllHeads };
// Which of attention's projections have a bias.
enum class AttentionBias { kNone, kQkv, kAll };
struct GqaConfig {
  int64_t num_kv_heads = 1;
  int64_t head_dim = 64;
  bool qk_norm = false;  // RMSNorm of queries and keys before RoPE
  QkNormOver qk_norm_over = QkNormOver::kHead;
  int64_t rotary_dim = 0;  // values of a head that RoPE rotates, its first; 0: all
  AttentionBias bias = AttentionBias::kNone;
  bool sinks = false;        // a learned logit of each head without a value, in the softmax's denominator
  bool output_gate = false;  // heads' outputs are multiplied by sigmoid(x W), W as wide as they are

  int64_t rotated() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
};

// Mamba-2 (arXiv 2405.21060).
struct Mamba2Config {
  int64_t num_heads = 8;
  int64_t head_dim = 64;    // values of a head; all heads' together are the width of the scan, whatever dim is
  int64_t state_dim = 128;  // values of state to each of these
  int64_t num_groups = 1;   // of heads that share B and C, and whose values are normed together
  int64_t conv_width = 4;   // tokens that the convolution sees, the token itself included
  int64_t chunk = 128;      // tokens of a chunk of the scan, counted from a document's beginning
  // Between which the steps of a model with random weights are, when nothing is added to their biases.
  double step_min = 0.001, step_max = 0.1;

  int64_t width() const { return num_heads * head_dim; }
  int64_t group_width() const { return num_groups * state_dim; }  // of B, or of C
  int64_t conv_channels() const { return width() + 2 * group_width(); }
};

// Gated DeltaNet (arXiv 2412.06464).
struct GatedDeltaNetConfig {
  int64_t num_key_heads = 4;    // of queries and keys
  int64_t num_value_heads = 8;  // of values and states; so many share a key head, in their order
  int64_t key_head_dim = 64;
  int64_t value_head_dim = 64;
  int64_t conv_width = 4;  // tokens that the convolution sees, the token itself included

  int64_t key_width() const { return num_key_heads * key_head_dim; }
  int64_t value_width() const { return num_value_heads * value_head_dim; }
  int64_t conv_channels() const { return 2 * key_width() + value_width(); }
};

struct MoeConfig {
  int64_t num_experts = 0;  // routed experts; 0: every layer is dense
  int64_t top_k = 2;
  int64_t expert_dim = 128;        // hidden width of one routed expert
  int64_t latent_dim = 0;          // width of what routed experts read and give (LatentMoE); 0: the model's
  int64_t num_shared_experts = 1;  // their width together: shared_dim, or num_shared_experts * expert_dim
  int64_t shared_dim = 0;          // 0: as that says
  bool biases = false;             // of the router's logits and of both of a routed expert's products
  bool shared_gate = false;        // what they give is multiplied by sigmoid(x w), w a weight of its own
  ScoreFunction score = ScoreFunction::kSigmoid;
  int64_t num_groups = 1;
  int64_t top_groups = 1;
  bool normalise_weights = true;
  double routed_scale = 1.0;
  double bias_rate = 0.005;   // step of the selection bias; 0: no bias
  double balance_loss = 0.0;  // sequence-wise balance loss coefficient
  double z_loss = 0.0;        // router z-loss coefficient
};

// Normal distributions with these standard deviations, truncated at
// `truncation` of them; norms start at 1.
struct InitConfig {
  std::string from;   // checkpoint with the weights to start from; empty: random weights, as follows
  double std = 0.02;  // matrices and experts
  double embedding_std = 0.02;
  double router_std = 0.02;
  double truncation = 3.0;
  bool depth_scaled_outputs = true;  // output projections: std / sqrt(number of parts of all layers)
};

// Multi-token prediction (arXiv 2412.19437, section 2.2): modules behind the layers, each of which predicts one token
// further than what is before it (model/prediction_module.h). Generation does not use them.
struct MtpConfig {
  static constexpr int64_t kMostDepths = 16;
  int64_t depth = 0;         // further tokens that are predicted; 0: none
  bool shared = false;       // one module makes all depths, else each has its own
  std::string layers;        // of a module, as a pattern; empty: one as the model's last, which has two parts
  double loss_weight = 0.3;  // what the mean of the depths' losses counts beside the main loss
  // The same from the step on that begins when so many steps or tokens (optim.schedule.unit) are done; 0: never.
  int64_t later_from = 0;
  double later_loss_weight = 0.1;
  bool detach = false;  // only modules learn from these losses: embedding, layers and head do not

  int64_t num_modules() const { return shared ? std::min<int64_t>(depth, 1) : depth; }
  int64_t passes_of_a_module() const { return shared ? depth : 1; }
};

// How spreads, rates and the like follow from those of a smaller model of the same kind (model/spec/scaling.h).
enum class ScalingRule {
  kNone,       // they are as they are written
  kMup,        // with widths: maximal update parametrisation (arXiv 2203.03466)
  kCompleteP,  // with widths and depth (arXiv 2505.01618)
};
// What the base model has otherwise than the model: config/scaling.h has the keys that may be here.
struct ScalingBase {
  std::map<std::string, int64_t, std::less<>> sizes;  // of these keys below [model], such as "moe.expert_dim"
  std::string layers;                                 // model.layers; empty: the model's
};
struct ScalingConfig {
  ScalingRule rule = ScalingRule::kNone;
  ScalingBase base;
};

struct ModelConfig {
  int64_t vocab_size = 0;  // 0: the tokenizer's
  int64_t dim = 256;
  // All layers as a pattern (config/layers.h). If it is empty, num_layers, num_dense_layers, attention, window and
  // attn_global_every describe them. Use layer_specs() rather than reading either.
  std::string layers;
  int64_t num_layers = 4;
  int64_t num_heads = 4;
  int64_t num_dense_layers = 1;  // the first n layers have a dense MLP
  int64_t dense_dim = 1024;      // hidden width of dense MLPs
  Activation activation = Activation::kSwiGlu;
  PartKind attention = PartKind::kMla;  // a mixer
  int64_t window = 0;                   // sliding window of local layers; 0: all layers are global
  int64_t attn_global_every = 1;        // layers n, 2n, ... from 1 are global, the last always
  int64_t max_positions = 0;            // longest text the model is meant for; 0: data.seq_len
  double norm_eps = 1e-6;
  bool zero_centred_norms = false;  // norms multiply by 1 + their weights; not those behind a recurrence
  bool tied_head = false;           // the head shares the embedding table
  RopeConfig rope;
  YarnConfig yarn;
  MlaConfig mla;
  GqaConfig gqa;
  Mamba2Config mamba2;
  GatedDeltaNetConfig gated_deltanet;
  MoeConfig moe;
  MtpConfig mtp;
  ScalingConfig scaling;
  InitConfig init;
};

// The order in which a source is read: data/stream/order.h.
enum class Shuffle { kNone, kWindows, kDocuments };

// When every byte of a run's data is read and compared with what its manifests say.
enum class VerifyData { kNever, kOnResume };

// What to train on: one corpus, or a mixture of several.
struct DataConfig {
  std::string path;                     // folder written by `n prep`, with train/ and valid/
  std::string mixture;                  // mixture file, instead of path: config/mixture.h
  std::string profile;                  // the one of its profiles to use
  Shuffle shuffle = Shuffle::kWindows;  // new in every epoch
  int64_t seq_len = 256;                // S
  bool mask_documents = false;          // attention and positions restart with every document
  int64_t align_documents = 1;          // they begin at multiples of it: data/stream/alignment.h; 1: anywhere
  VerifyData verify = VerifyData::kNever;
};

// Peak rate and optimizer of one parameter group.
struct GroupConfig {
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double lr = 1e-3;
  double weight_decay = 0.1;
};
struct AdamWConfig {
  MomentFormat state = MomentFormat::kFp32;  // of both moments
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};
struct MuonConfig {
  MomentFormat state = MomentFormat::kFp32;  // of the momentum; not fp8
  MuonProducts products = MuonProducts::kDevice;
  double momentum = 0.95;
  int64_t iterations = 5;  // Newton-Schulz steps
};
// Warm-up (linear from 0), hold at the peak, decay to `floor`. All spans in `unit`, or as shares of `length`.
struct ScheduleConfig {
  ScheduleUnit unit = ScheduleUnit::kSteps;
  Span warmup;
  Span hold;   // may be the rest of `length`
  Span decay;  // after warmup + hold + decay the rate stays at the floor; 0: hold for ever
  // In `unit`; 0: not known yet, that of the run when it first starts (train/loop/run_length.h). A run keeps it.
  int64_t length = 0;
  DecayShape shape = DecayShape::kCosine;
  double floor = 0.0;  // absolute rate that no group decays below; a lower peak is kept

  bool needs_length() const { return warmup.needs_length() || hold.needs_length() || decay.needs_length(); }
};
struct OptimConfig {
  double clip_norm = 1.0;                               // global gradient norm; 0: no clipping
  GroupConfig matrices;                                 // 2-D weights of attention, dense MLPs and shared experts
  GroupConfig experts;                                  // routed experts, [E, out, in]
  GroupConfig router{.lr = 1e-4, .weight_decay = 0.0};  // router weights; never decay; docs/routing.md
  GroupConfig rest;                                     // embedding, head, norms; no decay on embedding and norms
  Offload offload = Offload::kNone;                     // of moments and lower halves of masters; changes no bit
  // With kFit, the bytes of it that stay on a rank's device; -1: not known yet (train/plan/memory_plan.h). No key.
  int64_t state_on_device = -1;
  AdamWConfig adamw;
  MuonConfig muon;
  ScheduleConfig schedule;
};

// What forward does not keep and backward computes again, with the same bits. Each level includes those before it.
enum class Recompute {
  kNone,
  kNorms,    // the outputs of a block's norms and activation functions: memory-bound work, a few per cent of a step
  kExperts,  // also dispatched rows and pre-activations: the first of a feed-forward's two products is repeated
  kBlocks,   // everything except a block's input: all of forward is repeated
  kHost,     // that too, once it is in host memory
};
// With kHost, block inputs are on the device in so many slots, in turn; the last ones stay there.
inline constexpr size_t kInputSlots = 2;
// Whether a block's input does: behind a block that keeps something, it lies among that (model/block_inputs.h). Before
// the first block is nothing that keeps anything.
constexpr bool input_travels(Recompute before, Recompute own) {
  return own == Recompute::kHost && before >= Recompute::kBlocks;
}

// In what the gradients of routed experts' weights are added up over a step's microbatches; others are fp32.
enum class GradientFormat {
  kFp32,
  kBf16,  // each microbatch is added in fp32, and the sum rounded (ops/contracts/gradient.h)
};

struct TrainConfig {
  // Where to stop, in one of three ways (train/loop/run_length.h), none of them part of the fingerprint.
  int64_t steps = 100;      // if the others are 0; 0: where the data plan ends
  int64_t tokens = 0;       // of all steps' sequences, with the padding in them; 0: not by tokens
  double epochs = 0.0;      // of data.path; 0: not by epochs
  int64_t batch_seqs = 16;  // sequences of an optimizer step, of all ranks together
  // Sequences per forward and backward pass; times parallel.ranks, it must divide batch_seqs. Unless a configuration
  // sets it, loading chooses the largest that does, up to this.
  int64_t microbatch_seqs = 16;
  PerLayer<Recompute> recompute = Recompute::kNone;
  GradientFormat gradients = GradientFormat::kFp32;
  std::string memory_limit;                 // such as "8 GiB"; empty: what the machine has
  int64_t log_every = 10;                   // steps
  int64_t valid_every = 0;                  // steps between validations; 0: only at the end
  int64_t valid_seqs = 64;                  // sequences of one validation; 0: the whole split
  double target_loss = 0.0;                 // validation loss, in nats per token, at which to stop; 0: none
  double logit_z_loss = 0.0;                // coefficient of the z-loss on logits (model/heads/logit_z.h); 0: none
  bool stop_on_collapse = true;             // stop when a router has collapsed
  std::vector<std::string> sample_prompts;  // prompts continued at validations (train/loop/sample_texts.h)
  int64_t sample_tokens = 64;               // most tokens for each
};

struct ParallelConfig {
  int64_t ranks = 1;  // of all processes together, which share every batch
  // Microbatches per batch, whose gradients are added in their order; 0: off, gradients are added in any fixed order.
  int64_t logical_shards = 0;
  // Rows that the experts of a rank have memory for in a layer, over the average of the ranks of a process. Rows beyond
  // that are processed in further passes, and computed again in backward.
  double capacity_factor = 1.5;
  // Steps between moves of experts that even out the ranks' loads; 0: experts stay where they are.
  int64_t rebalance_every = 100;
  // Least bytes of gradients whose sum over ranks is started during backward: enough for the sum to be bound by the
  // link, and few enough for it to end before backward does.
  int64_t bucket_bytes = 32 << 20;
  // Seconds that a rank waits for another before the run fails: when they meet, load, begin, validate and save.
  int64_t timeout_s = 600;
  int64_t stall_s = 5;  // the same within a step, beyond twice the longest step; 0: timeout_s
};

// Tasks that evaluate the model during training (docs/evaluation.md).
struct EvalConfig {
  int64_t every = 0;                   // steps between evaluations, with one at the end; 0: never
  std::string tasks = "core";          // as for n eval --tasks
  int64_t limit = 100;                 // items per task; 0: all
  std::string data_dir = "data/eval";  // folder of the tasks' data
};

struct CheckpointConfig {
  int64_t every = 0;            // steps between checkpoints; 0: not by steps
  double every_minutes = 30.0;  // minutes between checkpoints; 0: not by time
  int64_t keep_last = 3;        // number of checkpoints to keep; 0: all
  // Of host memory, for each rank, through which its state passes on the way to the disk and back.
  int64_t staging_bytes = int64_t{8} << 30;
};

struct TrackConfig {
  std::vector<std::string> alert_command;  // a program and its arguments (train/report/alert_desk.h); empty: none
};

// How generation computes attention of MLA; everything else it computes in one way.
enum class GenerationArithmetic {
  kLatent,    // in latent space: the smallest cache, and other sums than training's
  kTraining,  // with heads' own keys and values, as training: several times the cache
};
struct GenerationConfig {
  GenerationArithmetic arithmetic = GenerationArithmetic::kLatent;
};

struct Config {
  RunConfig run;
  PrecisionConfig precision;
  ModelConfig model;
  DataConfig data;
  OptimConfig optim;
  TrainConfig train;
  ParallelConfig parallel;
  EvalConfig eval;
  GenerationConfig generation;
  CheckpointConfig checkpoint;
  TrackConfig track;
};

}  // namespace nmoe
