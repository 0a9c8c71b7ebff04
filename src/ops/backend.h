// Backend: the one device seam. Each method is a whole operation; each device implements all of them, so that an
// operation missing on a device does not compile. Only ops/factory.cpp names the implementations.
//
// Letters used in shapes
//   B sequences   S positions of a sequence   T = B*S tokens of a microbatch   D model width   V vocabulary
//   H query heads   G key/value heads   Dk query/key head size   Dv value head size
//   E routed experts   K experts a token goes to (top_k)   R = T*K routed rows   F hidden width of an MLP
//   Z slots of a key/value cache   C positions of a slot (capacity)
//
// Conventions
// * `act` is the backend's compute dtype, of activations, their gradients and weights: F32, BF16 on GPUs, F64 for
// proofs.
//   `stat` is F32, or F64 for proofs: statistics, router scores, losses, norm gains, gradients of weights and what
//   optimizers keep. Tensors are act, row-major and dense unless a comment says otherwise; stat, i32 and f64 are named
//   where they occur.
// * A weight that trains in BF16 has a second tensor `low` (i16), so that both together are an F32 master weight: its
// bits,
//   as an integer, are the BF16 value's bits times 2^16, plus low. Undefined where the weight itself is stat.
// * A forward writes its outputs (=). A backward writes activation gradients (=) and adds weight gradients (+=),
//   unless the method says otherwise or has an `accumulate` flag.
// * Results are the same bits for any number of threads: reductions over tokens have one order fixed by shapes.
// * Methods neither allocate (scratch comes from scratch()) nor synchronise with the host; results stay in
//   tensors until download(). What changes from step to step is read from tensors, so that a recording (record()) of a
//   step is good for all steps.
// * In a counting run (counting() is true) tensors have no data: methods only claim their scratch.
// * A backend made batch invariant (ops/factory.h) gives a row of every forward's output the same bits whatever other
//   rows there are and however many: a token's result then depends on its own sequence alone. Without that, the
//   products of linear_forward and grouped_linear_forward are faster for many rows, and other in the last bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/kinds.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace nmoe {

// Rotates `rope_dim` values of every head, starting `rope_offset` into it. In place.
struct RopeArgs {
  Tensor x;          // [T, H, head_size]
  Tensor positions;  // [T] i32, < dim(0) of the tables; they restart wherever a document is to start afresh
  Tensor cos;        // [max positions, rope_dim / 2] stat, YaRN's magnitude factor already applied
  Tensor sin;        // same
  int64_t rope_offset = 0;
  RopeLayout layout = RopeLayout::kInterleaved;
};

// Causal softmax attention over B sequences of S positions; query head h reads key/value head h / (H / G).
// Position i sees positions j with i - window < j <= i, or all j <= i when window is 0, of its own document only.
// O(S) memory, beside a workspace that CUDA's backward keeps small where it can: at least one key/value head's.
//
// Documents are runs of the T tokens: document d is [cu_seqlens[d], cu_seqlens[d + 1]). cu_seqlens[0] is 0, no entry is
// less than the one before, and the last is T. None crosses from one sequence into the next: every multiple of S up
// to T is among the entries. The capacity C is at least the number of documents + 1 and may be more (it stays the same
// from batch to batch); entries that are not needed repeat T. Work is proportional to the documents' lengths on the
// CPU; on CUDA it is that of whole sequences.
struct AttentionShape {
  int64_t num_seqs = 0;    // B
  int64_t seq_len = 0;     // S
  double scale = 1.0;      // factor of q.k before the softmax
  int64_t window = 0;      // 0: full causal
  Tensor cu_seqlens = {};  // [C] i32; undefined: every sequence is one document
};
struct AttentionForward {
  AttentionShape shape;
  Tensor q;    // [T, H, Dk]
  Tensor k;    // [T, G, Dk]
  Tensor v;    // [T, G, Dv]
  Tensor out;  // = [T, H, Dv]
  Tensor lse;  // = [B, H, S] stat: natural log of the sum of exp(scale * q.k), kept for backward
};
struct AttentionBackward {
  AttentionShape shape;
  Tensor q, k, v, out, lse;  // as in forward
  Tensor dout;               // [T, H, Dv]
  Tensor dq;                 // = [T, H, Dk]
  Tensor dk;                 // = [T, G, Dk]
  Tensor dv;                 // = [T, G, Dv]
};

// Writes what later tokens attend to: cache[slots[t], positions[t], offset ... offset + W) = rows[t].
struct CacheWrite {
  Tensor rows;       // [T, W]
  Tensor slots;      // [T] i32, < Z
  Tensor positions;  // [T] i32, < C; no two rows have both slot and position in common
  Tensor cache;      // = [Z, C, width], the named parts of it only
  int64_t offset = 0;
};
// Attention of single tokens to what is cached of their sequences: row t, at positions[t] of slots[t], sees the
// positions j of that slot with positions[t] - window < j <= positions[t], or all j <= positions[t] when window is 0.
// Query head h reads key/value head h / (H / G). Rows may be of any slots, several of one slot among them, in any
// order. A row costs work proportional to what it sees.
struct CachedAttention {
  double scale = 1.0;        // factor of q.k before the softmax
  int64_t window = 0;        // 0: all
  Tensor q;                  // [T, H, Dk]
  Tensor slots;              // [T] i32
  Tensor positions;          // [T] i32
  Tensor keys;               // [Z, C, G * Dk]
  Tensor values;             // [Z, C, G * Dv]; undefined: the first Dv values of each key are its value
  int64_t num_kv_heads = 1;  // G
  Tensor out;                // = [T, H, Dv]
};

// Scores, selection and gate weights of a MoE router (DeepSeek-V3, arXiv 2412.19437, equations 12 to 16).
//   s = sigmoid(logits) or softmax(logits)
//   selection: the top_k of s + bias; with num_groups > 1 only inside the top_groups best groups of consecutive
//     experts, a group's rank being the sum of its two best s + bias (sigmoid; DeepSeek-V3) or its best
//     (softmax; DeepSeek-V2). Ties go to the lower index.
//   weights: s of the selected (never the bias), divided by their sum (plus 1e-20, for scores that all underflow)
//     when `normalise`, times `scale`.
struct RouterRule {
  ScoreFunction score = ScoreFunction::kSigmoid;
  int64_t top_k = 1;
  int64_t num_groups = 1;
  int64_t top_groups = 1;
  bool normalise = true;
  double scale = 1.0;
};
// Auxiliary losses. Coefficients are already divided by the number of sequences or tokens of the whole step, so
// that summing over microbatches gives the mean.
//   balance, per sequence: balance * sum_i f_i P_i, f_i = E/(K S) * (times i was selected), a constant to the
//     gradient; P_i = mean over positions of s_i / sum_j s_j (arXiv 2412.19437, equations 17 to 20)
//   z, per token: z * logsumexp(logits)^2 (ST-MoE, arXiv 2202.08906, equation 5)
struct RouterLoss {
  double balance = 0.0;
  double z = 0.0;
  int64_t seq_len = 0;  // S, to cut T into sequences
};
struct RouterForward {
  RouterRule rule;
  RouterLoss loss;
  Tensor logits;    // [T, E] stat
  Tensor bias;      // [E] stat
  Tensor scores;    // = [T, E] stat
  Tensor top_idx;   // = [T, K] i32, by falling s + bias
  Tensor weights;   // = [T, K] stat
  Tensor aux_loss;  // += [2] f64: balance, z
  Tensor entropy;   // += [1] f64: sum over tokens of the entropy (nats) of s / sum s; undefined: not computed
};
struct RouterBackward {
  RouterRule rule;
  RouterLoss loss;
  Tensor logits, scores, top_idx, weights;  // as in forward
  Tensor dweights;                          // [T, K] stat
  Tensor dlogits;                           // = [T, E], auxiliary losses' gradients included
};

// Where each (token, choice) copy goes: rows sorted by (expert, token, choice). Shared by dispatch, combine and
// both backwards. Pure integers: the same selection always lands on the same rows.
struct MoePlan {
  Tensor offsets;       // [E + 1] i32: expert e owns rows [offsets[e], offsets[e + 1])
  Tensor row_of;        // [T, K] i32: the row of a copy
  Tensor token_of_row;  // [R] i32: the inverse
};

// The language-model head fused with softmax cross-entropy; logits exist only in chunks of rows.
struct HeadLoss {
  Tensor x;                 // [T, D]
  Tensor w;                 // [V, D]
  Tensor targets;           // [T] i32; negative: no loss at this position
  Tensor grad_scale;        // [1] f64, dloss/d(token loss): 1 / (number of target tokens in the whole step)
  Tensor losses;            // = [T] stat: token losses in nats, 0 where there is no target
  Tensor dx;                // = [T, D]; undefined: loss only, no gradients, grad_scale undefined too
  Tensor dw;                // += [V, D] stat, = without `accumulate`; undefined with dx
  Tensor predictions = {};  // = [T] i32: the id of the largest logit, the lowest of equals; undefined: not wanted
  bool accumulate = true;
};

// AdamW with decoupled decay (arXiv 1711.05101): m, v updated, then
//   w -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)
struct AdamWStep {
  Tensor w, low;      // updated
  Tensor grad;        // stat; read only
  Tensor m, v;        // stat; updated
  Tensor grad_scale;  // [1] f64: gradients are multiplied by it first (clipping). Not finite: nothing is changed
  Tensor rates;       // [3] f64: lr, 1 / (1 - beta1^t) and 1 / (1 - beta2^t) for step t, from 1
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
};

// Muon, the Moonlight recipe (arXiv 2502.16982, section 2): for every matrix of a [batch, rows, cols] stack,
//   m = momentum * m + g;  u = g + momentum * m (Nesterov);  o = NewtonSchulz5(u), quintic, `iterations` times;
//   w -= lr * (0.2 * sqrt(max(rows, cols)) * o + weight_decay * w)
struct MuonStep {
  Tensor w, low;      // [rows, cols] or [batch, rows, cols], updated
  Tensor grad;        // same, stat
  Tensor momentum;    // same, stat, updated
  Tensor grad_scale;  // [1] f64, as for AdamW
  Tensor rates;       // [1] f64 or more: lr
  double beta = 0.95, weight_decay = 0.0;
  int iterations = 5;
};

// Random numbers std * z, z standard normal but |z| <= truncation: element i is draw i of Philox(seed, stream)
// (base/rng.h). The same bits on every device.
struct TruncatedNormal {
  uint64_t seed = 0;
  uint64_t stream = 0;
  double std = 1.0;
  double truncation = 3.0;
};

// Work that was recorded once and runs as often as wanted, on what its tensors hold then.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void run() = 0;
};

// What lies between these operations and a device of its own, for reports; empty where there is none.
struct SoftwareVersions {
  std::string driver;
  std::string toolkit;  // "CUDA 13.0"
};

// A point in the order of enqueued work, to wait for from the host.
class Event {
 public:
  virtual ~Event() = default;
  virtual void set() = 0;            // behind everything that is enqueued by now
  virtual bool reached() const = 0;  // true before the first set()
  virtual void wait() const = 0;     // from any thread
};

// A tensor whose next content travels to the device while work on the present one goes on.
class Prefetch {
 public:
  virtual ~Prefetch() = default;
  // Begins to copy: `host`, in host_memory(), is as large as the tensor and stays as it is until an event set after
  // take() is reached.
  virtual void send(const void* host) = 0;
  // Enqueued like any other work: from here on the tensor holds what was sent last.
  virtual void take() = 0;
};

// Memory of a device apart from the host's.
struct DeviceMemoryUse {
  int64_t used_bytes = 0;  // by everything: the context, libraries, arenas, other processes
  int64_t free_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend() : scratch_("scratch") {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string description() const = 0;  // "CPU, 2 threads, AVX2, oneDNN 2.6.3"
  virtual DType compute_dtype() const = 0;      // what `act` means
  DType stat_dtype() const { return compute_dtype() == DType::kF64 ? DType::kF64 : DType::kF32; }
  virtual SoftwareVersions software() const = 0;
  virtual double peak_flops() = 0;              // FLOP/s of the compute dtype
  virtual std::string peak_source() const = 0;  // "measured: ..." or whose figure it is
  virtual MemorySource& memory() = 0;
  virtual MemorySource& host_memory() = 0;                           // that the device copies to and from
  virtual std::optional<DeviceMemoryUse> device_memory() const = 0;  // nothing where memory() is the host's
  // Temporary storage of single operations. Reserve it once after a counting run.
  Arena& scratch() { return scratch_; }
  bool counting() const { return scratch_.counting(); }

  // Records what `work` enqueues through this backend, without doing it where the device can. `work` may neither upload
  // nor download.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) = 0;

  // --- data movement
  virtual void upload(Tensor destination, const void* host) = 0;
  virtual void download(void* host, Tensor source) = 0;  // waits for the work queued before it
  // download() without waiting: `host`, in host_memory(), has the values once an event set after it is reached.
  virtual void begin_download(void* host, Tensor source) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // `arena`, in memory(), gives what a device needs to receive into.
  virtual std::unique_ptr<Prefetch> make_prefetch(Tensor destination, Arena& arena) = 0;
  virtual void fill(Tensor x, double value) = 0;                                   // any dtype
  virtual void fill_truncated_normal(Tensor x, const TruncatedNormal& draws) = 0;  // x stat
  virtual void copy(Tensor source, Tensor destination) = 0;
  // Between a weight and its master, [n] stat in the memory of the device.
  virtual void split_weight(Tensor master, Tensor w, Tensor low) = 0;
  virtual void join_weight(Tensor w, Tensor low, Tensor master) = 0;
  virtual void add(Tensor x, Tensor y) = 0;  // y += x

  // --- dense layers; weights are [out, in]
  virtual void embedding_forward(Tensor ids, Tensor table, Tensor y) = 0;     // ids [T] i32, table [V, D], y [T, D]
  virtual void embedding_backward(Tensor ids, Tensor dy, Tensor dtable) = 0;  // dtable += stat
  // y = x w^T, or += with accumulate. x [T, in], w [out, in], y [T, out] act or stat
  virtual void linear_forward(Tensor x, Tensor w, Tensor y, bool accumulate = false) = 0;
  virtual void linear_backward_input(Tensor dy, Tensor w, Tensor dx, bool accumulate = false) = 0;  // dx = dy w
  virtual void linear_backward_weight(Tensor x, Tensor dy, Tensor dw,
                                      bool accumulate = true) = 0;  // dw += dy^T x, or = without accumulate; stat
  // y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) over the last dimension (arXiv 1910.07467, equation 4).
  // x [N, D], gain [D] stat, y [N, D], rstd [N] stat, dgain stat. In backward dx may be the storage of dy.
  virtual void rms_norm_forward(Tensor x, Tensor gain, double eps, Tensor y, Tensor rstd) = 0;
  virtual void rms_norm_backward(Tensor x, Tensor gain, Tensor rstd, Tensor dy, Tensor dx, Tensor dgain,
                                 bool accumulate_dx = false) = 0;
  // SwiGLU: pre = [N, 2F] (gate | up), h = silu(gate) * up. Squared ReLU: pre = [N, F], h = max(pre, 0)^2.
  // With row_weight [N] stat defined, h is multiplied by it: the gate weight of a routed row.
  virtual void activation_forward(Activation kind, Tensor pre, Tensor row_weight, Tensor h) = 0;
  // dpre = ; drow_weight [N] = stat, undefined when row_weight is. dpre may be the storage of pre.
  virtual void activation_backward(Activation kind, Tensor pre, Tensor row_weight, Tensor dh, Tensor dpre,
                                   Tensor drow_weight) = 0;

  // --- attention
  virtual void rope_forward(const RopeArgs& args) = 0;
  virtual void rope_backward(const RopeArgs& args) = 0;  // x holds gradients; the inverse rotation
  virtual void attention_forward(const AttentionForward& args) = 0;
  virtual void attention_backward(const AttentionBackward& args) = 0;
  // MLA: kv [T, H, nope + Dv] and the shared rotated key k_rope [T, rope] -> k [T, H, nope + rope], v [T, H, Dv]
  virtual void mla_expand_forward(Tensor kv, Tensor k_rope, Tensor k, Tensor v) = 0;
  virtual void mla_expand_backward(Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) = 0;

  // --- attention to a cache, forward only
  virtual void cache_write(const CacheWrite& args) = 0;
  virtual void cached_attention(const CachedAttention& args) = 0;
  // MLA without expanding what is cached (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): a head's key is k = w_k c for
  // the latent c, so q.k = (w_k^T q).c, and a sum of values w_v c is w_v times the sum of latents. `kv_up`
  // [H * (nope + Dv), Rkv] holds a head's w_k [nope, Rkv], then its w_v [Dv, Rkv].
  // q [T, H, nope + rope] -> latent_q = [T, H, Rkv + rope]: w_k^T q, then the rotated part as it is.
  virtual void mla_absorb_query(Tensor q, Tensor kv_up, Tensor latent_q) = 0;
  // latents [T, H, Rkv] -> out = [T, H, Dv]: w_v times the latent.
  virtual void mla_expand_output(Tensor latents, Tensor kv_up, Tensor out) = 0;

  // --- mixture of experts
  virtual void router_forward(const RouterForward& args) = 0;
  virtual void router_backward(const RouterBackward& args) = 0;
  // Fills the plan from top_idx [T, K] i32 and adds each expert's rows to counts [E] i32 (+=; undefined: not wanted).
  virtual void moe_plan(Tensor top_idx, const MoePlan& plan, Tensor counts) = 0;
  virtual void moe_dispatch(Tensor x, const MoePlan& plan, Tensor rows) = 0;  // rows [R, D] = x [T, D] gathered
  virtual void moe_combine(Tensor rows, const MoePlan& plan, Tensor y, bool accumulate) = 0;  // y [T, D] sums K rows
  virtual void moe_dispatch_weights(Tensor weights, const MoePlan& plan, Tensor row_weight) = 0;  // stat [T, K] -> [R]
  virtual void moe_combine_weights(Tensor row_weight, const MoePlan& plan, Tensor weights) = 0;   // stat [R] -> [T, K]
  // Linear layers over ragged groups of rows. x [R, in], w [E, out, in], offsets [E + 1] i32, y [R, out].
  // An expert without rows is legal; what it adds to dw is nothing, without accumulate zeros.
  virtual void grouped_linear_forward(Tensor x, Tensor w, Tensor offsets, Tensor y) = 0;
  // The experts' first layer: pre = grouped_linear_forward(x, w), h = activation_forward(kind, pre, row_weight).
  virtual void grouped_activation_forward(Activation kind, Tensor x, Tensor w, Tensor offsets, Tensor row_weight,
                                          Tensor pre, Tensor h) = 0;
  virtual void grouped_linear_backward_input(Tensor dy, Tensor w, Tensor offsets, Tensor dx) = 0;  // dx =
  virtual void grouped_linear_backward_weight(Tensor x, Tensor dy, Tensor offsets, Tensor dw,
                                              bool accumulate = true) = 0;  // dw += or =, stat
  // Loss-free balancing (arXiv 2408.15664): bias += rate * sign(mean load - load), in integers. Nothing is changed
  // where grad_scale [1] f64 is not finite.
  virtual void router_bias_update(Tensor counts, Tensor bias, double rate, Tensor grad_scale) = 0;

  // --- head and reductions
  virtual void head_loss(const HeadLoss& args) = 0;
  virtual void sum(Tensor x, Tensor out) = 0;             // out [1] f64 += sum of x
  virtual void sum_of_squares(Tensor x, Tensor out) = 0;  // out [1] f64 += sum of x^2
  // scale [1] f64 = min(1, max_norm / sqrt(sum_squares)), or 1 when max_norm is 0. When sum_squares or loss_sum, [1]
  // f64 each, is not finite, stopped [1] i32 becomes 1; where that is not 0, scale is NaN.
  virtual void clip_scale(Tensor sum_squares, Tensor loss_sum, double max_norm, Tensor scale, Tensor stopped) = 0;
  virtual void count_non_finite(Tensor x, Tensor out) = 0;  // out [1] i32 += number of NaN and infinities

  // --- optimizers
  virtual void adamw_step(const AdamWStep& args) = 0;
  virtual void muon_step(const MuonStep& args) = 0;

 private:
  Arena scratch_;
};

}  // namespace nmoe
