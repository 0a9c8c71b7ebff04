// The operations that cuDNN matches its attention kernels by. With scores = scale * q k^T, -inf where they are masked:
//
//   forward    out = softmax(scores) v;  lse = log of the sum of exp(scores)
//   backward   delta = sum over a head of dout * out;  p = exp(scores - lse);  dv = p^T dout
//              ds = p * (dout v^T - delta) * scale;  dk = ds^T q;  dq = ds k
//
// (arXiv 2307.08691, algorithms 1 and 2, without the tiles.) dq is a second product over a stored ds, so that it has
// one order: blocks of keys do not add to it.
//
// Matrix-bound: 2 * B * H * S^2 * (Dk + Dv) / 2 FLOP forward when causal, 2.5 times that backward.
#include "ops/cuda/vendor/cudnn_attention.h"

#include <algorithm>
#include <compare>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"
#include "ops/cuda/vendor/cudnn_graph.h"
#include "ops/cuda/vendor/cudnn_library.h"

namespace nmoe::cuda {
namespace {

struct DestroyHandle {
  void operator()(cudnnHandle_t handle) const noexcept { cudnn().destroy(handle); }
};
using Handle = std::unique_ptr<cudnnContext, DestroyHandle>;

// Elements from a token of queries, keys and values to the next, or of their gradients.
struct Strides {
  int64_t q, k, v;

  auto operator<=>(const Strides&) const = default;
};
Strides strides_of(const Tensor& q, const Tensor& k, const Tensor& v) { return {q.stride(), k.stride(), v.stride()}; }

// What a plan depends on. It works on the first num_seqs sequences, and there on the first kv_heads key/value heads
// with their query heads, of tensors of `all_kv_heads`.
struct Key {
  int64_t num_seqs, seq_len, kv_heads, all_kv_heads, group;  // group: query heads that share a key/value head
  int64_t key_size, value_size;
  Strides strides;
  int64_t window;  // 0: none
  double scale;
  bool has_first_keys;
  std::optional<Strides> gradients;  // of backward

  bool backward() const { return gradients.has_value(); }

  auto operator<=>(const Key&) const = default;
  int64_t heads() const { return kv_heads * group; }
  int64_t all_heads() const { return all_kv_heads * group; }
};

// A plan, its tensors (where it has them), and a handle of its own, so that plans can be built side by side.
struct Plan {
  CudnnTensor q, k, v, out, lse, first_keys, dout, dq, dk, dv, delta;
  Handle handle;
  CudnnPlan plan;
};

Key key_of(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, bool has_first_keys) {
  return {.num_seqs = shape.num_seqs,
          .seq_len = shape.seq_len,
          .kv_heads = k.dim(1),
          .all_kv_heads = k.dim(1),
          .group = q.dim(1) / k.dim(1),
          .key_size = q.dim(2),
          .value_size = v.dim(2),
          .strides = strides_of(q, k, v),
          .window = shape.window < shape.seq_len ? shape.window : 0,
          .scale = shape.scale,
          .has_first_keys = has_first_keys,
          .gradients = {}};
}

// Some heads of a [T, all heads, size] tensor, whose tokens are `stride` apart, as cuDNN's [B, heads, S, size].
CudnnTensor heads_tensor(CudnnGraph& graph, const Key& key, int64_t heads, int64_t stride, int64_t size) {
  return graph.memory(CUDNN_DATA_BFLOAT16, {key.num_seqs, heads, key.seq_len, size},
                      {key.seq_len * stride, size, stride, 1});
}
// The same as [B, heads, size, S].
CudnnTensor heads_tensor_transposed(CudnnGraph& graph, const Key& key, int64_t heads, int64_t stride, int64_t size) {
  return graph.memory(CUDNN_DATA_BFLOAT16, {key.num_seqs, heads, size, key.seq_len},
                      {key.seq_len * stride, size, 1, stride});
}
// out and dout
CudnnTensor output_tensor(CudnnGraph& graph, const Key& key) {
  return heads_tensor(graph, key, key.heads(), key.all_heads() * key.value_size, key.value_size);
}
CudnnDims row_dims(const Key& key) { return {key.num_seqs, key.heads(), key.seq_len, 1}; }
CudnnTensor lse_tensor(CudnnGraph& graph, const Key& key) {
  return graph.memory(CUDNN_DATA_FLOAT, row_dims(key), {key.all_heads() * key.seq_len, key.seq_len, 1, 1});
}

// NOTE: an equal formula in another order may find no kernel, or a slower one. This is the order of NVIDIA's own
// frontend for cuDNN.
CudnnTensor masked_scores(CudnnGraph& graph, const Key& key, Plan& plan) {
  CudnnTensor scores =
      graph.pointwise(CUDNN_POINTWISE_MUL, graph.multiply(plan.q, plan.k), graph.scalar(static_cast<float>(key.scale)));
  if (key.backward()) scores = graph.pointwise(CUDNN_POINTWISE_SUB, scores, plan.lse);
  const CudnnTensor unseen = graph.scalar(-std::numeric_limits<float>::infinity());
  if (key.has_first_keys) {
    plan.first_keys = graph.memory(CUDNN_DATA_INT32, {key.num_seqs, 1, key.seq_len, 1});
    const CudnnTensor column = graph.index(scores, 3);
    scores = graph.select(scores, unseen,
                          graph.pointwise(CUDNN_POINTWISE_CMP_GE, column, plan.first_keys, CUDNN_DATA_BOOLEAN));
  }
  {
    const CudnnTensor row = graph.index(scores, 2), column = graph.index(scores, 3);
    scores = graph.select(scores, unseen, graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, column, CUDNN_DATA_BOOLEAN));
  }
  if (key.window > 0) {
    const CudnnTensor row = graph.index(scores, 2), column = graph.index(scores, 3);
    const CudnnTensor reach =
        graph.pointwise(CUDNN_POINTWISE_ADD, column, graph.scalar(static_cast<float>(key.window)));
    scores = graph.select(scores, unseen, graph.pointwise(CUDNN_POINTWISE_CMP_GT, reach, row, CUDNN_DATA_BOOLEAN));
  }
  return scores;
}

void describe_forward(CudnnGraph& graph, const Key& key, Plan& plan) {
  plan.q = heads_tensor(graph, key, key.heads(), key.strides.q, key.key_size);
  plan.k = heads_tensor_transposed(graph, key, key.kv_heads, key.strides.k, key.key_size);
  plan.v = heads_tensor(graph, key, key.kv_heads, key.strides.v, key.value_size);
  plan.out = output_tensor(graph, key);
  plan.lse = lse_tensor(graph, key);

  const CudnnTensor scores = masked_scores(graph, key, plan);
  const CudnnTensor highest = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, row_dims(key));
  const CudnnTensor e = graph.pointwise(CUDNN_POINTWISE_EXP, graph.pointwise(CUDNN_POINTWISE_SUB, scores, highest));
  const CudnnTensor total = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, e, row_dims(key));
  graph.pointwise_into(CUDNN_POINTWISE_ADD, highest, graph.pointwise(CUDNN_POINTWISE_LOG, total), plan.lse);
  graph.multiply_into(graph.pointwise(CUDNN_POINTWISE_DIV, e, total, CUDNN_DATA_BFLOAT16), plan.v, plan.out);
}

void describe_backward(CudnnGraph& graph, const Key& key, Plan& plan) {
  plan.q = heads_tensor(graph, key, key.heads(), key.strides.q, key.key_size);
  plan.k = heads_tensor_transposed(graph, key, key.kv_heads, key.strides.k, key.key_size);
  plan.v = heads_tensor_transposed(graph, key, key.kv_heads, key.strides.v, key.value_size);
  plan.out = output_tensor(graph, key);
  plan.dout = output_tensor(graph, key);
  plan.lse = lse_tensor(graph, key);
  plan.dq = heads_tensor(graph, key, key.heads(), key.gradients->q, key.key_size);
  plan.dk = heads_tensor(graph, key, key.kv_heads, key.gradients->k, key.key_size);
  plan.dv = heads_tensor(graph, key, key.kv_heads, key.gradients->v, key.value_size);
  plan.delta = graph.memory(CUDNN_DATA_FLOAT, row_dims(key));

  const CudnnTensor products = graph.pointwise(CUDNN_POINTWISE_MUL, plan.dout, plan.out);
  const CudnnTensor sums = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, row_dims(key));
  graph.pointwise_into(CUDNN_POINTWISE_MUL, sums, graph.scalar(1.0F), plan.delta);

  // Where heads are shared: a gradient for each query head, then their sum.
  const auto multiply_into_shared = [&](const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& gradient) {
    if (key.group == 1) return graph.multiply_into(a, b, gradient);
    graph.reduce_into(CUDNN_REDUCE_TENSOR_ADD, graph.multiply(a, b, CUDNN_DATA_BFLOAT16), gradient);
  };
  const CudnnTensor p = graph.pointwise(CUDNN_POINTWISE_EXP, masked_scores(graph, key, plan));
  multiply_into_shared(graph.transpose(p), plan.dout, plan.dv);

  const CudnnTensor dp = graph.pointwise(CUDNN_POINTWISE_SUB, graph.multiply(plan.dout, plan.v), plan.delta);
  const CudnnTensor ds = graph.pointwise(CUDNN_POINTWISE_MUL, graph.pointwise(CUDNN_POINTWISE_MUL, dp, p),
                                         graph.scalar(static_cast<float>(key.scale)));
  multiply_into_shared(graph.transpose(ds), plan.q, plan.dk);

  graph.multiply_into(ds, graph.transpose(plan.k), plan.dq);
}

// Of the device, which the calling thread may not have used before.
Plan make_plan(int device_index, const Key& key) {
  make_current(device_index);
  Plan plan;
  cudnnHandle_t handle = nullptr;
  NMOE_CUDNN_CHECK(cudnn().create(&handle));
  plan.handle.reset(handle);
  CudnnGraph graph(handle);
  if (key.backward()) {
    describe_backward(graph, key, plan);
  } else {
    describe_forward(graph, key, plan);
  }
  plan.plan = graph.build(fmt::format("attention {} over {} sequences of {}, {} heads of {} and {} for {} queries each",
                                      key.backward() ? "backward" : "forward", key.num_seqs, key.seq_len, key.kv_heads,
                                      key.key_size, key.value_size, key.group));
  return plan;
}

AttentionSizes sizes_of(const Key& key) {
  return {.num_seqs = key.num_seqs,
          .seq_len = key.seq_len,
          .kv_heads = key.all_kv_heads,
          .group = key.group,
          .key_size = key.key_size,
          .value_size = key.value_size};
}

// Calls work(first sequence, first key/value head, key of the part) over all parts.
template <class Work>
void for_each_part(const Key& whole, const AttentionPart& part, const Work& work) {
  Key key = whole;
  for (int64_t seq = 0; seq < whole.num_seqs; seq += part.num_seqs) {
    for (int64_t head = 0; head < whole.kv_heads; head += part.kv_heads) {
      key.num_seqs = std::min(part.num_seqs, whole.num_seqs - seq);
      key.kv_heads = std::min(part.kv_heads, whole.kv_heads - head);
      work(seq, head, key);
    }
  }
}

Key backward_key(Key key, const Strides& gradients) {
  key.gradients = gradients;
  return key;
}

// Memory from one element on.
template <class T>
const void* from(const Tensor& x, int64_t element) {
  return static_cast<const T*>(x.rows_raw()) + element;
}
using Bf16 = uint16_t;

}  // namespace

struct CudnnAttention::Plans {
  std::mutex mutex;  // of the map; held too while a plan runs, for its handle has one stream at a time
  std::map<Key, std::shared_future<Plan>> all;

  // The plan, being built or built already.
  std::shared_future<Plan> start(int device_index, const Key& key) {
    const std::lock_guard lock(mutex);
    auto& plan = all[key];
    if (!plan.valid()) plan = std::async(std::launch::async, make_plan, device_index, key).share();
    return plan;
  }

  void run(const Plan& plan, const Context& ctx, std::span<const CudnnPlan::Binding> bindings,
           const Tensor& workspace) {
    const std::lock_guard lock(mutex);
    NMOE_CUDNN_CHECK(cudnn().set_stream(plan.handle.get(), ctx.stream));
    plan.plan.run(plan.handle.get(), bindings, workspace.raw());
  }
};

CudnnAttention::CudnnAttention(int device_index) : device_index_(device_index), plans_(std::make_unique<Plans>()) {}
CudnnAttention::~CudnnAttention() = default;

int64_t CudnnAttention::forward_workspace(const AttentionForward& args, bool counting) {
  const Key key = key_of(args.shape, args.q, args.k, args.v, args.shape.cu_seqlens.defined());
  const std::shared_future<Plan> forward = plans_->start(device_index_, key);
  if (counting) {  // backward's are likely to be wanted next, and all together take as long as one
    const Key backward = backward_key(key, key.strides);  // gradients mostly lie like what they are of
    std::vector<std::shared_future<Plan>> futures;
    for_each_part(backward, attention_part(sizes_of(backward)),
                  [&](int64_t, int64_t, const Key& part) { futures.push_back(plans_->start(device_index_, part)); });
    for (const auto& future : futures) future.wait();
  }
  return forward.get().plan.workspace_bytes();
}

int64_t CudnnAttention::backward_workspace(const AttentionBackward& args, int64_t workspace_limit) {
  const Key whole = backward_key(key_of(args.shape, args.q, args.k, args.v, args.shape.cu_seqlens.defined()),
                                 strides_of(args.dq, args.dk, args.dv));
  int64_t most = 0;
  for_each_part(whole, attention_part(sizes_of(whole), workspace_limit), [&](int64_t, int64_t, const Key& part) {
    most = std::max(most, plans_->start(device_index_, part).get().plan.workspace_bytes());
  });
  return most;
}

void CudnnAttention::forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys,
                             const Tensor& workspace) {
  const Key key = key_of(args.shape, args.q, args.k, args.v, first_keys.defined());
  const std::shared_future<Plan> future = plans_->start(device_index_, key);
  const Plan& plan = future.get();
  std::vector<CudnnPlan::Binding> bindings = {{plan.q, args.q.rows_raw()},
                                              {plan.k, args.k.rows_raw()},
                                              {plan.v, args.v.rows_raw()},
                                              {plan.out, args.out.raw()},
                                              {plan.lse, args.lse.raw()}};
  if (key.has_first_keys) bindings.emplace_back(plan.first_keys, first_keys.raw());
  plans_->run(plan, ctx, bindings, workspace);
}

void CudnnAttention::backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys,
                              const AttentionBackwardScratch& scratch, int64_t workspace_limit) {
  const Strides gradients = strides_of(args.dq, args.dk, args.dv);
  const Key whole = backward_key(key_of(args.shape, args.q, args.k, args.v, first_keys.defined()), gradients);
  const int64_t H = whole.all_heads(), S = whole.seq_len;
  const int64_t Dk = whole.key_size, Dv = whole.value_size;
  for_each_part(
      whole, attention_part(sizes_of(whole), workspace_limit), [&](int64_t seq, int64_t kv_head, const Key& key) {
        const std::shared_future<Plan> future = plans_->start(device_index_, key);
        const Plan& plan = future.get();
        const int64_t token = seq * S, head = kv_head * key.group, out = token * H * Dv + head * Dv;
        std::vector<CudnnPlan::Binding> bindings = {{plan.q, from<Bf16>(args.q, token * key.strides.q + head * Dk)},
                                                    {plan.k, from<Bf16>(args.k, token * key.strides.k + kv_head * Dk)},
                                                    {plan.v, from<Bf16>(args.v, token * key.strides.v + kv_head * Dv)},
                                                    {plan.out, from<Bf16>(args.out, out)},
                                                    {plan.dout, from<Bf16>(args.dout, out)},
                                                    {plan.lse, from<float>(args.lse, (seq * H + head) * S)},
                                                    {plan.dq, from<Bf16>(args.dq, token * gradients.q + head * Dk)},
                                                    {plan.dk, from<Bf16>(args.dk, token * gradients.k + kv_head * Dk)},
                                                    {plan.dv, from<Bf16>(args.dv, token * gradients.v + kv_head * Dv)},
                                                    {plan.delta, scratch.delta.raw()}};
        if (key.has_first_keys) bindings.emplace_back(plan.first_keys, from<int32_t>(first_keys, seq * S));
        plans_->run(plan, ctx, bindings, scratch.workspace);
      });
}

}  // namespace nmoe::cuda
