#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kTaskTokens = 64;  // tokens routed by one task

template <class Real>
Real total(const Real* x, int64_t size) {
  Real result = 0;
#pragma omp simd reduction(+ : result)
  for (int64_t i = 0; i < size; ++i) result += x[i];
  return result;
}

// y = softmax(x); returns logsumexp(x).
template <class Real>
Real softmax(const Real* x, Real* y, int64_t size) {
  const Real highest = highest_of(x, size);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    y[i] = exp_approx(x[i] - highest);
    sum += y[i];
  }
  const Real inverse = 1 / sum;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) y[i] *= inverse;
  return highest + std::log(sum);
}

template <class Real>
void sigmoid(const Real* x, Real* y, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) y[i] = 1 / (1 + exp_approx(-x[i]));
}

// Nats; 0 log 0 = 0.
template <class Real>
double entropy_of_scores(const Real* scores, int64_t num_experts) {
  const double sum = static_cast<double>(total(scores, num_experts)) + kTinySum;
  double entropy = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const double p = static_cast<double>(scores[expert]) / sum;
    if (p > 0) entropy -= p * std::log(p);
  }
  return entropy;
}

// Selection works on ranks. Those that are not eligible are kOut; every other is made finite first,
// NaN included, so that only eligible indices are ever chosen.
template <class Real>
constexpr Real kOut = -std::numeric_limits<Real>::infinity();

template <class Real>
Real eligible_rank(Real rank) {
  constexpr Real kLowest = std::numeric_limits<Real>::lowest();
  return rank > kLowest ? rank : kLowest;  // lets no NaN through
}

// The `count` largest ranks in falling order, the lower index of equals first. Each is the best of
// those behind its predecessor in that order: passes without branches and without stores, which for
// the few experts of a token beat a heap or a partial sort.
template <class Real>
void select_top(const Real* ranks, int32_t size, int64_t count, int32_t* chosen) {
  Real last = std::numeric_limits<Real>::infinity();
  int32_t last_index = -1;
  for (int64_t k = 0; k < count; ++k) {
    Real best = kOut<Real>;
#pragma omp simd reduction(max : best)
    for (int32_t i = 0; i < size; ++i) {
      const bool behind = (ranks[i] < last) | ((ranks[i] == last) & (i > last_index));
      const Real candidate = behind ? ranks[i] : kOut<Real>;
      best = candidate > best ? candidate : best;
    }
    const int32_t after = best == last ? last_index : -1;
    int32_t index = size;
#pragma omp simd reduction(min : index)
    for (int32_t i = 0; i < size; ++i) {
      const int32_t candidate = (ranks[i] == best) & (i > after) ? i : size;
      index = candidate < index ? candidate : index;
    }
    chosen[k] = last_index = index;
    last = best;
  }
}

// The sum of a group's two best s + bias, or its best.
template <class Real>
Real group_rank(const Real* ranks, int64_t group_size, ScoreFunction score) {
  Real best = kOut<Real>, second = kOut<Real>;
  for (int64_t i = 0; i < group_size; ++i) {
    second = std::max(second, std::min(best, ranks[i]));
    best = std::max(best, ranks[i]);
  }
  return score == ScoreFunction::kSigmoid && group_size > 1 ? best + second : best;
}

// One thread's buffers for the selection of one token.
template <class Real>
struct SelectionBuffers {
  Real* ranks;             // [E] s + bias
  Real* group_ranks;       // [num_groups]
  int32_t* chosen_groups;  // [top_groups]
};

template <class Real>
void select_experts(const RouterRule& rule, const Real* scores, const Real* bias, int64_t num_experts,
                    const SelectionBuffers<Real>& buffers, int32_t* top_idx) {
  Real* ranks = buffers.ranks;
#pragma omp simd
  for (int64_t i = 0; i < num_experts; ++i) ranks[i] = eligible_rank(scores[i] + bias[i]);

  if (rule.top_groups < rule.num_groups) {
    const int64_t group_size = num_experts / rule.num_groups;
    for (int64_t group = 0; group < rule.num_groups; ++group) {
      buffers.group_ranks[group] = eligible_rank(group_rank(ranks + group * group_size, group_size, rule.score));
    }
    select_top(buffers.group_ranks, static_cast<int32_t>(rule.num_groups), rule.top_groups, buffers.chosen_groups);
    int32_t* chosen_end = buffers.chosen_groups + rule.top_groups;
    for (int32_t group = 0; group < rule.num_groups; ++group) {
      if (std::find(buffers.chosen_groups, chosen_end, group) != chosen_end) continue;
      std::fill_n(ranks + group * group_size, group_size, kOut<Real>);
    }
  }
  select_top(ranks, static_cast<int32_t>(num_experts), rule.top_k, top_idx);
}

template <class Real>
Real sum_of_chosen(const Real* scores, const int32_t* top_idx, int64_t top_k) {
  Real sum = static_cast<Real>(kTinySum);
  for (int64_t k = 0; k < top_k; ++k) sum += scores[top_idx[k]];
  return sum;
}

template <class Real>
void gate_weights(const RouterRule& rule, const Real* scores, const int32_t* top_idx, Real* weights) {
  Real factor = static_cast<Real>(rule.scale);
  if (rule.normalise) factor /= sum_of_chosen(scores, top_idx, rule.top_k);
  for (int64_t k = 0; k < rule.top_k; ++k) weights[k] = scores[top_idx[k]] * factor;
}

// load_share[e] = f_e of one sequence: 1 everywhere when the experts are chosen equally often.
template <class Real>
void sequence_load(const int32_t* top_idx, int64_t seq_len, int64_t top_k, int64_t num_experts, Real* load_share) {
  std::fill(load_share, load_share + num_experts, Real{0});
  const int64_t num_copies = seq_len * top_k;
  for (int64_t copy = 0; copy < num_copies; ++copy) load_share[top_idx[copy]] += 1;
  const Real factor = static_cast<Real>(num_experts) / static_cast<Real>(num_copies);
  for (int64_t expert = 0; expert < num_experts; ++expert) load_share[expert] *= factor;
}

int64_t num_sequences(const RouterLoss& loss, int64_t num_tokens) { return num_tokens / loss.seq_len; }

// The balance loss of one sequence, coefficient excluded: sum_i f_i P_i.
template <class Real>
double sequence_balance(const Real* scores, const Real* load_share, int64_t seq_len, int64_t num_experts) {
  double loss = 0;
  for (int64_t token = 0; token < seq_len; ++token) {
    const Real* s = scores + token * num_experts;
    const Real sum = total(s, num_experts) + static_cast<Real>(kTinySum);
    loss += static_cast<double>(dot(s, load_share, num_experts) / sum);
  }
  return loss / static_cast<double>(seq_len);
}

}  // namespace

template <class Real>
void router_forward(Context& ctx, const RouterForward& args) {
  const RouterRule& rule = args.rule;
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1), top_k = rule.top_k;
  const bool balance = args.loss.balance != 0, z = args.loss.z != 0, entropy = args.entropy.defined();
  const int64_t num_seqs = balance ? num_sequences(args.loss, num_tokens) : 0;
  const int64_t num_tasks = ceil_div(num_tokens, kTaskTokens);
  const DType real = DTypeOf<Real>::value;
  ArenaScope scratch(ctx.scratch);
  const Tensor thread_ranks = scratch.allocate(real, {ctx.num_threads(), num_experts});
  const Tensor thread_softmax = scratch.allocate(real, {ctx.num_threads(), num_experts});
  const Tensor thread_group_ranks = scratch.allocate(real, {ctx.num_threads(), rule.num_groups});
  const Tensor thread_groups = scratch.allocate(DType::kI32, {ctx.num_threads(), rule.top_groups});
  const Tensor task_sums = scratch.allocate(DType::kF64, {num_tasks, 2});  // z and entropy
  const Tensor load_share = scratch.allocate(real, {num_seqs, num_experts});
  const Tensor seq_balance = scratch.allocate(DType::kF64, {num_seqs});
  if (ctx.counting()) return;
  const Real* logits = args.logits.data<Real>();
  const Real* bias = args.bias.data<Real>();
  Real* scores = args.scores.data<Real>();
  int32_t* top_idx = args.top_idx.data<int32_t>();
  Real* weights = args.weights.data<Real>();
  double* sums = task_sums.data<double>();

  parallel_blocks(ctx, num_tokens, kTaskTokens, [&](int64_t begin, int64_t end, int thread) {
    const SelectionBuffers<Real> buffers{.ranks = thread_ranks[thread].data<Real>(),
                                         .group_ranks = thread_group_ranks[thread].data<Real>(),
                                         .chosen_groups = thread_groups[thread].data<int32_t>()};
    double z_sum = 0, entropy_sum = 0;
    for (int64_t token = begin; token < end; ++token) {
      const Real* x = logits + token * num_experts;
      Real* s = scores + token * num_experts;
      Real log_sum = 0;
      if (rule.score == ScoreFunction::kSoftmax) {
        log_sum = softmax(x, s, num_experts);
      } else {
        sigmoid(x, s, num_experts);
        if (z) log_sum = softmax(x, thread_softmax[thread].data<Real>(), num_experts);
      }
      if (z) z_sum += static_cast<double>(log_sum) * static_cast<double>(log_sum);
      if (entropy) entropy_sum += entropy_of_scores(s, num_experts);
      select_experts(rule, s, bias, num_experts, buffers, top_idx + token * top_k);
      gate_weights(rule, s, top_idx + token * top_k, weights + token * top_k);
    }
    sums[2 * (begin / kTaskTokens)] = z_sum;
    sums[2 * (begin / kTaskTokens) + 1] = entropy_sum;
  });

  ctx.pool.parallel_for(num_seqs, [&](int64_t seq, int) {
    const int64_t first = seq * args.loss.seq_len;
    Real* load = load_share[seq].data<Real>();
    sequence_load(top_idx + first * top_k, args.loss.seq_len, top_k, num_experts, load);
    seq_balance.data<double>()[seq] =
        sequence_balance(scores + first * num_experts, load, args.loss.seq_len, num_experts);
  });

  double balance_total = 0, z_total = 0, entropy_total = 0;
  for (int64_t seq = 0; seq < num_seqs; ++seq) balance_total += seq_balance.data<double>()[seq];
  for (int64_t task = 0; task < num_tasks; ++task) {
    z_total += sums[2 * task];
    entropy_total += sums[2 * task + 1];
  }
  if (args.aux_loss.defined()) {
    args.aux_loss.data<double>()[0] += args.loss.balance * balance_total;
    args.aux_loss.data<double>()[1] += args.loss.z * z_total;
  }
  if (entropy) *args.entropy.data<double>() += entropy_total;
}

namespace {

// ds of the chosen scores: w_k = scale s_k / sum, or scale s_k.
template <class Real>
void add_gate_gradient(const RouterRule& rule, const Real* scores, const int32_t* top_idx, const Real* weights,
                       const Real* dweights, Real* dscores) {
  const Real scale = static_cast<Real>(rule.scale);
  Real inverse_sum = 1, projection = 0;
  if (rule.normalise) {
    inverse_sum = 1 / sum_of_chosen(scores, top_idx, rule.top_k);
    for (int64_t k = 0; k < rule.top_k; ++k) projection += dweights[k] * weights[k];
  }
  for (int64_t k = 0; k < rule.top_k; ++k) {
    dscores[top_idx[k]] += (scale * dweights[k] - projection) * inverse_sum;
  }
}

// ds of coefficient * sum_i f_i s_i / sum_j s_j.
template <class Real>
void add_balance_gradient(Real coefficient, const Real* load_share, const Real* scores, Real* dscores,
                          int64_t num_experts) {
  const Real inverse_sum = 1 / (total(scores, num_experts) + static_cast<Real>(kTinySum));
  const Real mean_load = dot(load_share, scores, num_experts) * inverse_sum;
  const Real factor = coefficient * inverse_sum;
#pragma omp simd
  for (int64_t i = 0; i < num_experts; ++i) dscores[i] += factor * (load_share[i] - mean_load);
}

// d: on entry the gradient of the scores, on return that of the logits.
template <class Real>
void score_backward(ScoreFunction score, const Real* s, Real* d, int64_t num_experts) {
  if (score == ScoreFunction::kSigmoid) {
#pragma omp simd
    for (int64_t i = 0; i < num_experts; ++i) d[i] *= s[i] * (1 - s[i]);
  } else {
    const Real projection = dot(s, d, num_experts);
#pragma omp simd
    for (int64_t i = 0; i < num_experts; ++i) d[i] = s[i] * (d[i] - projection);
  }
}

}  // namespace

template <class Real>
void router_backward(Context& ctx, const RouterBackward& args) {
  const RouterRule& rule = args.rule;
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1), top_k = rule.top_k;
  const bool balance = args.loss.balance != 0, z = args.loss.z != 0;
  const int64_t num_seqs = balance ? num_sequences(args.loss, num_tokens) : 0;
  ArenaScope scratch(ctx.scratch);
  const Tensor thread_softmax = scratch.allocate(DTypeOf<Real>::value, {ctx.num_threads(), num_experts});
  const Tensor load_share = scratch.allocate(DTypeOf<Real>::value, {num_seqs, num_experts});
  if (ctx.counting()) return;
  const Real* logits = args.logits.data<Real>();
  const Real* scores = args.scores.data<Real>();
  const int32_t* top_idx = args.top_idx.data<int32_t>();
  const Real* weights = args.weights.data<Real>();
  const Real* dweights = args.dweights.data<Real>();
  Real* dlogits = args.dlogits.data<Real>();

  ctx.pool.parallel_for(num_seqs, [&](int64_t seq, int) {
    sequence_load(top_idx + seq * args.loss.seq_len * top_k, args.loss.seq_len, top_k, num_experts,
                  load_share[seq].data<Real>());
  });
  // P_i is a mean over the positions of a sequence.
  const Real balance_factor =
      balance ? static_cast<Real>(args.loss.balance / static_cast<double>(args.loss.seq_len)) : Real{0};

  parallel_blocks(ctx, num_tokens, kTaskTokens, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t token = begin; token < end; ++token) {
      const Real* x = logits + token * num_experts;
      const Real* s = scores + token * num_experts;
      Real* d = dlogits + token * num_experts;
      std::fill(d, d + num_experts, Real{0});
      add_gate_gradient(rule, s, top_idx + token * top_k, weights + token * top_k, dweights + token * top_k, d);
      if (balance) {
        const Real* load = load_share[token / args.loss.seq_len].data<Real>();
        add_balance_gradient(balance_factor, load, s, d, num_experts);
      }
      score_backward(rule.score, s, d, num_experts);
      if (z) {  // d logsumexp^2 / dx = 2 logsumexp softmax
        Real* probabilities = thread_softmax[thread].data<Real>();
        const Real factor = static_cast<Real>(2 * args.loss.z) * softmax(x, probabilities, num_experts);
#pragma omp simd
        for (int64_t i = 0; i < num_experts; ++i) d[i] += factor * probabilities[i];
      }
    }
  });
}

template <class Real>
void router_bias_update(Context& ctx, const RouterBiasUpdate& args) {
  const Tensor counts = args.counts, bias = args.bias;
  const double rate = args.rate;
  const Tensor grad_scale = args.grad_scale;
  const int64_t num_experts = counts.dim(0);
  if (ctx.counting() || !std::isfinite(*grad_scale.data<double>())) return;
  const int32_t* loads = counts.data<int32_t>();
  Real* biases = bias.data<Real>();
  int64_t sum = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) sum += loads[expert];
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t shortfall = sum - num_experts * loads[expert];  // E times (mean load - load), exact
    const int sign = (shortfall > 0) - (shortfall < 0);
    biases[expert] += static_cast<Real>(rate) * static_cast<Real>(sign);
  }
}

NMOE_CPU_INSTANTIATE(router_forward, RouterForward)
NMOE_CPU_INSTANTIATE(router_backward, RouterBackward)
NMOE_CPU_INSTANTIATE(router_bias_update, RouterBiasUpdate)

}  // namespace nmoe::cpu
