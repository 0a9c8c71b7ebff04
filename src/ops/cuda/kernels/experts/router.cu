// MoE router: scores, top-k selection inside groups, gate weights, balance and z losses, and their gradients. Formulas:
// ops/contracts/router.h.
//
// One warp a token. Forward reads logits and writes scores once (router_choice.cuh), but for softmax, which reads
// logits for its sum first. Backward writes a row as it is without its choices, then the gradients of these over it.
//
// At most kMaxExperts experts and kMaxTopK choices.
//
// Sums over tokens: every token writes its terms, one block adds them up in an order fixed by T. How often a sequence
// chose an expert is a sum of integers, so the atomics that add it up do not show.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/cuda/kernels/experts/router_choice.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kMaxWarps = 4;           // of a block
constexpr int kRouteWarps = 16;        // of the block that routes few tokens
constexpr int kLoadThreads = 256;      // of the blocks that count choices
constexpr int64_t kLoadCopies = 2048;  // choices that one of them counts
constexpr int kReduceThreads = 1024;
constexpr int kBiasThreads = 1024;
static_assert(kMaxTopK <= kWarp);
static_assert(2 * kMaxExperts * static_cast<int64_t>(sizeof(float)) <= kDefaultSharedBytes,
              "ranks of experts and of groups of a token");

// kExperts: how many there are, so that loops over them unroll; 0: as the argument says. kWidth: as choose() has it.
template <int kExperts, int kWidth>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    forward_kernel(const float* logits, const float* bias, float* scores, int32_t* top_idx, float* weights, Rule rule,
                   TokenTerms terms, int64_t num_tokens, int any_experts, int floats_per_warp) {
  extern __shared__ __align__(16) float shared[];
  const int num_experts = kExperts > 0 ? kExperts : any_experts;
  begin_behind_work_before();
  const TokenWarp warp = token_warp(shared, floats_per_warp);
  if (warp.token >= num_tokens) return;  // the whole warp
  const Choice choice = choose<kWidth>(logits + warp.token * num_experts, bias, scores, rule, terms, warp, num_experts);
  if (warp.lane < rule.top_k) {
    top_idx[warp.token * rule.top_k + warp.lane] = choice.expert;
    weights[warp.token * rule.top_k + warp.lane] = choice.weight;
  }
}

// Results of RouteTokens beside scores; token_of may be null.
struct Routed {
  int32_t* top_idx;
  float* weights;
  int32_t* offsets;
  int32_t* row_of;
  int32_t* token_of;
  float* row_weight;
};

// Choices of few tokens and the plan of their rows, by one block: rows are sorted by counting.
template <int kExperts, int kWidth>
__global__ void __launch_bounds__(kRouteWarps* kWarp)
    route_kernel(const float* logits, const float* bias, float* scores, Rule rule, Routed out, int num_tokens,
                 int any_experts, int floats_per_warp) {
  extern __shared__ __align__(16) float shared[];
  const int num_experts = kExperts > 0 ? kExperts : any_experts;
  let_next_start();
  prefetch_rows(bias, 1, num_experts);
  wait_for_work_before();
  const int threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int copies = num_tokens * rule.top_k;
  float* const copy_weights = shared + warps * floats_per_warp;                  // [copies]
  auto* const copy_experts = reinterpret_cast<int32_t*>(copy_weights + copies);  // [copies]
  int32_t* const rows = copy_experts + copies;  // [E]: first how many an expert has, then where they begin
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += threads) rows[i] = 0;
  __syncthreads();
  for (int token = warp; token < num_tokens; token += warps) {
    const TokenWarp own{.token = token, .lane = lane, .shared = shared + warp * floats_per_warp};
    const Choice choice =
        choose<kWidth>(logits + static_cast<int64_t>(token) * num_experts, bias, scores, rule, {}, own, num_experts);
    __syncwarp();  // what is shared has been read
    if (lane >= rule.top_k) continue;
    const int copy = token * rule.top_k + lane;
    out.top_idx[copy] = copy_experts[copy] = choice.expert;
    out.weights[copy] = copy_weights[copy] = choice.weight;
    atomicAdd(&rows[choice.expert], 1);
  }
  __syncthreads();
  if (warp == 0) {
    int base = 0;
    for (int first = 0; first < num_experts; first += kWarp) {
      const int expert = first + lane, count = expert < num_experts ? rows[expert] : 0;
      int through = count;
#pragma unroll
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int below = __shfl_up_sync(kAllLanes, through, offset);
        if (lane >= offset) through += below;
      }
      if (expert < num_experts) out.offsets[expert] = rows[expert] = base + through - count;
      base += __shfl_sync(kAllLanes, through, kWarp - 1);
    }
    if (lane == 0) out.offsets[num_experts] = base;
  }
  __syncthreads();
  for (int copy = static_cast<int>(threadIdx.x); copy < copies; copy += threads) {
    const int expert = copy_experts[copy];
    int row = rows[expert];
    for (int i = 0; i < copy; ++i) row += copy_experts[i] == expert ? 1 : 0;
    out.row_of[copy] = row;
    out.row_weight[row] = copy_weights[copy];
    if (out.token_of != nullptr) out.token_of[row] = copy / rule.top_k;
  }
}

// loads[seq][e] += how often the copies of this block chose e. Grid (parts of a sequence, sequences).
__global__ void __launch_bounds__(kLoadThreads)
    sequence_load_kernel(const int32_t* top_idx, int32_t* loads, int64_t copies_per_seq, int num_experts) {
  extern __shared__ int32_t block_loads[];
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kLoadThreads) block_loads[i] = 0;
  __syncthreads();
  const int64_t seq = blockIdx.y, begin = static_cast<int64_t>(blockIdx.x) * kLoadCopies;
  const int64_t end = min(begin + kLoadCopies, copies_per_seq);
  for (int64_t copy = begin + threadIdx.x; copy < end; copy += kLoadThreads) {
    atomicAdd(&block_loads[top_idx[seq * copies_per_seq + copy]], 1);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kLoadThreads) {
    if (block_loads[i] != 0) atomicAdd(&loads[seq * num_experts + i], block_loads[i]);
  }
}

// sum s, and sum f s with f = load * load_factor.
struct BalanceSums {
  float score_sum;
  float load_dot;
};
__device__ BalanceSums balance_sums(const float* scores, const int32_t* loads, float load_factor, int num_experts,
                                    int lane) {
  float score_sum = 0.0F, load_dot = 0.0F;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) {
    score_sum += scores[i];
    load_dot += scores[i] * (static_cast<float>(loads[i]) * load_factor);
  }
  return {warp_sum(score_sum) + static_cast<float>(kTinySum), warp_sum(load_dot)};
}

__global__ void __launch_bounds__(kMaxWarps* kWarp)
    balance_kernel(const float* scores, const int32_t* loads, double* balance, float load_factor, int64_t seq_len,
                   int64_t num_tokens, int num_experts) {
  const TokenWarp warp = token_warp(nullptr, 0);
  if (warp.token >= num_tokens) return;
  const BalanceSums sums = balance_sums(scores + warp.token * num_experts, loads + warp.token / seq_len * num_experts,
                                        load_factor, num_experts, warp.lane);
  if (warp.lane == 0) balance[warp.token] = static_cast<double>(sums.load_dot / sums.score_sum);
}

__device__ double term_sum(const double* terms, int64_t num_tokens) {
  constexpr int kAtOnce = 16;  // loads that are under way
  double sum = 0.0;
  int64_t token = threadIdx.x;
  for (; token + (kAtOnce - 1) * kReduceThreads < num_tokens; token += kAtOnce * kReduceThreads) {
    double some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) some[i] = terms[token + i * kReduceThreads];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += some[i];
  }
  for (; token < num_tokens; token += kReduceThreads) sum += terms[token];
  return block_sum(sum);
}

// One block. entropy may be null.
__global__ void __launch_bounds__(kReduceThreads)
    add_losses_kernel(TokenTerms terms, int64_t num_tokens, double balance_factor, double z_factor, double* aux_loss,
                      double* entropy) {
  const double balance = terms.balance != nullptr ? term_sum(terms.balance, num_tokens) : 0.0;
  const double z = terms.z != nullptr ? term_sum(terms.z, num_tokens) : 0.0;
  const double entropy_sum = terms.entropy != nullptr ? term_sum(terms.entropy, num_tokens) : 0.0;
  if (threadIdx.x != 0) return;
  aux_loss[0] += balance_factor * balance;
  aux_loss[1] += z_factor * z;
  if (entropy != nullptr) *entropy += entropy_sum;
}

struct LossFactors {
  const int32_t* loads;  // [B, E]; null: no balance loss
  float load_factor;
  float balance;  // balance / S
  int64_t seq_len;
  float z;  // 2 z; 0: no z loss
};

// A lane's choice, of lanes below top_k: the gradient of its score through the weights.
//   w_k = scale s_k / sum, or scale s_k
struct ChoiceGradient {
  int expert;
  float score, dscore;
};
__device__ ChoiceGradient choice_gradient(const float* scores, const int32_t* top_idx, const float* weights,
                                          const float* dweights, const Rule& rule, const TokenWarp& warp) {
  const bool chosen = warp.lane < rule.top_k;
  const int64_t copy = warp.token * rule.top_k + warp.lane;
  const int expert = chosen ? top_idx[copy] : 0;
  const float score = chosen ? scores[expert] : 0.0F, dweight = chosen ? dweights[copy] : 0.0F;
  float inverse_sum = 1.0F, projection = 0.0F;
  if (rule.normalise) {
    inverse_sum = 1.0F / (warp_sum(score) + static_cast<float>(kTinySum));
    projection = warp_sum(chosen ? dweight * weights[copy] : 0.0F);
  }
  return {
      .expert = expert, .score = score, .dscore = chosen ? (rule.scale * dweight - projection) * inverse_sum : 0.0F};
}

// Of sigmoids without losses: experts that were not chosen have none. kVectors: can_vectorise.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    backward_of_choices_kernel(const float* all_scores, const int32_t* top_idx, const float* weights,
                               const float* dweights, T* all_dlogits, Rule rule, int64_t num_tokens, int num_experts) {
  const TokenWarp warp = token_warp(nullptr, 0);
  if (warp.token >= num_tokens) return;  // the whole warp
  T* const dlogits = all_dlogits + warp.token * num_experts;
  constexpr int kWidth = kVectors ? 8 : 1;
  for (int i = warp.lane * kWidth; i < num_experts; i += kWarp * kWidth) {
    if constexpr (kVectors) {
      store8(dlogits + i, {});
    } else {
      dlogits[i] = from_float<T>(0.0F);
    }
  }
  const ChoiceGradient own =
      choice_gradient(all_scores + warp.token * num_experts, top_idx, weights, dweights, rule, warp);
  __syncwarp();  // the zeros come first
  if (warp.lane < rule.top_k) dlogits[own.expert] = from_float<T>(own.dscore * (own.score * (1.0F - own.score)));
}

// kExperts: how many there are, so that loops over them unroll; 0: as the argument says.
template <int kExperts, class T>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    backward_kernel(const float* all_logits, const float* all_scores, const int32_t* top_idx, const float* weights,
                    const float* dweights, T* all_dlogits, Rule rule, LossFactors loss, int64_t num_tokens,
                    int any_experts) {
  const int num_experts = kExperts > 0 ? kExperts : any_experts;
  const TokenWarp warp = token_warp(nullptr, 0);
  if (warp.token >= num_tokens) return;  // the whole warp
  const int lane = warp.lane;
  const float* logits = all_logits + warp.token * num_experts;
  const float* scores = all_scores + warp.token * num_experts;
  T* dlogits = all_dlogits + warp.token * num_experts;
  const ChoiceGradient own = choice_gradient(scores, top_idx, weights, dweights, rule, warp);

  const int32_t* loads = nullptr;
  float mean_load = 0.0F, load_weight = 0.0F;
  if (loss.loads != nullptr) {
    loads = loss.loads + warp.token / loss.seq_len * num_experts;
    const BalanceSums sums = balance_sums(scores, loads, loss.load_factor, num_experts, lane);
    mean_load = sums.load_dot / sums.score_sum, load_weight = loss.balance / sums.score_sum;
  }
  // Of a score through the balance loss.
  const auto balance_gradient = [&](int i) {
    return loads != nullptr ? load_weight * (static_cast<float>(loads[i]) * loss.load_factor - mean_load) : 0.0F;
  };

  float score_projection = 0.0F;
  if (rule.softmax) {
    score_projection = own.score * own.dscore;
    if (loads != nullptr) {
#pragma unroll
      for (int i = lane; i < num_experts; i += kWarp) score_projection += scores[i] * balance_gradient(i);
    }
    score_projection = warp_sum(score_projection);
  }
  // d logsumexp^2 / dx = 2 logsumexp softmax
  float z_factor = 0.0F, highest = 0.0F;
  if (loss.z != 0.0F) {
    const SoftmaxSums sums = softmax_sums(logits, num_experts, lane);
    highest = sums.highest;
    z_factor = loss.z * sums.log_sum() / sums.sum;
  }
  const auto write = [&](int i, float s, float dscore) {
    float dlogit = rule.softmax ? s * (dscore - score_projection) : dscore * (s * (1.0F - s));
    if (loss.z != 0.0F) dlogit += z_factor * expf(logits[i] - highest);
    dlogits[i] = from_float<T>(dlogit);
  };
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) write(i, scores[i], balance_gradient(i));
  __syncwarp();  // what is not a choice's comes first
  if (lane < rule.top_k) write(own.expert, own.score, own.dscore + balance_gradient(own.expert));
}

// One block.
__global__ void __launch_bounds__(kBiasThreads)
    bias_update_kernel(const int32_t* counts, float* bias, float rate, const double* grad_scale, int num_experts) {
  if (!isfinite(*grad_scale)) return;
  long long sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kBiasThreads) sum += counts[i];
  sum = block_sum(sum);
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kBiasThreads) {
    const long long shortfall = sum - static_cast<long long>(num_experts) * counts[i];  // E (mean load - load), exact
    bias[i] += rate * static_cast<float>((shortfall > 0) - (shortfall < 0));
  }
}

// Blocks of warps, one a token, that fit in shared memory.
struct TokenLaunch {
  unsigned blocks;
  unsigned threads;
  size_t shared_bytes;
};
TokenLaunch token_launch(int64_t num_tokens, int64_t floats_per_warp) {
  const int64_t warp_bytes = floats_per_warp * static_cast<int64_t>(sizeof(float));
  const int64_t warps = std::clamp<int64_t>(kDefaultSharedBytes / std::max<int64_t>(warp_bytes, 1), 1, kMaxWarps);
  return {.blocks = static_cast<unsigned>(ceil_div(num_tokens, warps)),
          .threads = static_cast<unsigned>(warps * kWarp),
          .shared_bytes = static_cast<size_t>(warps * warp_bytes)};
}

// Calls fn with the number of experts as a type, 0 unless it is one that kernels are made for.
template <class Fn>
void dispatch_experts(int64_t num_experts, const Fn& fn) {
  switch (num_experts) {
    case 64:
      return fn(std::integral_constant<int, 64>{});
    case 128:
      return fn(std::integral_constant<int, 128>{});
    case 256:
      return fn(std::integral_constant<int, 256>{});
    default:
      return fn(std::integral_constant<int, 0>{});
  }
}

// As dispatch_experts(), and with how many neighbouring experts a lane of choose() has.
template <class Fn>
void dispatch_choice(const RouterForward& args, const Fn& fn) {
  constexpr int kVector = 4;
  const int64_t num_experts = args.logits.dim(1);
  const bool vectors = can_vectorise(num_experts, args.logits, args.bias, args.scores);
  dispatch_experts(num_experts, [&](auto experts) {
    if constexpr (experts % (kVector * kWarp) == 0) {
      if (vectors && num_experts % (kVector * kWarp) == 0) {
        return fn(experts, std::integral_constant<int, kVector>{});
      }
    }
    fn(experts, std::integral_constant<int, 1>{});
  });
}

// f_i of a sequence is its load of i times this.
float load_factor(const RouterLoss& loss, int64_t num_experts, int64_t top_k) {
  return static_cast<float>(num_experts) / static_cast<float>(loss.seq_len * top_k);
}

// loads = [B, E] i32. T > 0.
void count_sequence_loads(Context& ctx, Tensor top_idx, const RouterLoss& loss, Tensor loads) {
  const int64_t num_seqs = loads.dim(0), num_experts = loads.dim(1), copies = loss.seq_len * top_idx.dim(1);
  NMOE_CUDA_CHECK(cudaMemsetAsync(loads.raw(), 0, static_cast<size_t>(loads.num_bytes()), ctx.stream));
  const dim3 grid(static_cast<unsigned>(ceil_div(copies, kLoadCopies)), static_cast<unsigned>(num_seqs));
  sequence_load_kernel<<<grid, kLoadThreads, static_cast<size_t>(num_experts) * sizeof(int32_t), ctx.stream>>>(
      top_idx.data<int32_t>(), loads.data<int32_t>(), copies, static_cast<int>(num_experts));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void router_forward(Context& ctx, const RouterForward& args, const RouterForwardPlan& plan) {
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  const bool balance = args.loss.balance != 0, z = args.loss.z != 0, entropy = args.entropy.defined();
  const auto& [z_terms, entropy_terms, balance_terms, loads] = plan;
  if (num_tokens == 0) return;
  const TokenTerms terms{.z = z ? z_terms.data<double>() : nullptr,
                         .entropy = entropy ? entropy_terms.data<double>() : nullptr,
                         .balance = balance ? balance_terms.data<double>() : nullptr};
  const float* logits = args.logits.data<float>();
  float* scores = args.scores.data<float>();

  const int64_t floats = choice_floats(args.rule, num_experts);
  const TokenLaunch launch = token_launch(num_tokens, floats);
  dispatch_choice(args, [&](auto experts, auto width) {
    launch_early(ctx, forward_kernel<decltype(experts)::value, decltype(width)::value>, launch.blocks,
                 static_cast<int>(launch.threads), static_cast<int64_t>(launch.shared_bytes), logits,
                 args.bias.data<float>(), scores, args.top_idx.data<int32_t>(), args.weights.data<float>(),
                 Rule(args.rule), terms, num_tokens, static_cast<int>(num_experts), static_cast<int>(floats));
  });
  if (balance) {
    count_sequence_loads(ctx, args.top_idx, args.loss, loads);
    const TokenLaunch tokens = token_launch(num_tokens, 0);
    balance_kernel<<<tokens.blocks, tokens.threads, 0, ctx.stream>>>(
        scores, loads.data<int32_t>(), terms.balance, load_factor(args.loss, num_experts, args.rule.top_k),
        args.loss.seq_len, num_tokens, static_cast<int>(num_experts));
    NMOE_CUDA_CHECK(cudaGetLastError());
  }
  if (!balance && !z && !entropy) return;
  // P_i is a mean over the positions of a sequence.
  const double balance_factor = balance ? args.loss.balance / static_cast<double>(args.loss.seq_len) : 0.0;
  add_losses_kernel<<<1, kReduceThreads, 0, ctx.stream>>>(terms, num_tokens, balance_factor, args.loss.z,
                                                          args.aux_loss.data<double>(),
                                                          entropy ? args.entropy.data<double>() : nullptr);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void route_tokens(Context& ctx, const RouteTokens& args, const RouteTokensPlan& route) {
  const RouterForward router = args.router();
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  if (!route.one_block) {
    router_forward(ctx, router, route.router);
    build_moe_plan(ctx, {.top_idx = args.top_idx, .plan = args.plan, .counts = {}}, route.moe_plan);
    return moe_dispatch_weights(ctx, {.weights = args.weights, .plan = args.plan, .row_weight = args.row_weight});
  }
  static_assert(kRouteSharedBytes == kDefaultSharedBytes);
  const int64_t floats = choice_floats(args.rule, num_experts), plan_bytes = route_plan_bytes(args);
  const int64_t warp_bytes = floats * static_cast<int64_t>(sizeof(float));
  const MoePlan& plan = args.plan;
  const Routed routed{.top_idx = args.top_idx.data<int32_t>(),
                      .weights = args.weights.data<float>(),
                      .offsets = plan.offsets.data<int32_t>(),
                      .row_of = plan.row_of.data<int32_t>(),
                      .token_of = plan.token_of.data_or_null<int32_t>(),
                      .row_weight = args.row_weight.data<float>()};
  dispatch_choice(router, [&](auto experts, auto width) {
    const int64_t warps = std::min({num_tokens, int64_t{kRouteWarps}, (kDefaultSharedBytes - plan_bytes) / warp_bytes});
    launch_early(ctx, route_kernel<decltype(experts)::value, decltype(width)::value>, 1U,
                 static_cast<int>(warps) * kWarp, warps * warp_bytes + plan_bytes, args.logits.data<float>(),
                 args.bias.data<float>(), args.scores.data<float>(), Rule(args.rule), routed,
                 static_cast<int>(num_tokens), static_cast<int>(num_experts), static_cast<int>(floats));
  });
}

void router_backward(Context& ctx, const RouterBackward& args, const Tensor& loads) {
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  const bool balance = args.loss.balance != 0;
  if (num_tokens == 0) return;
  LossFactors loss{
      .loads = nullptr, .load_factor = 0.0F, .balance = 0.0F, .seq_len = 1, .z = static_cast<float>(2 * args.loss.z)};
  if (balance) {
    count_sequence_loads(ctx, args.top_idx, args.loss, loads);
    loss.loads = loads.data<int32_t>();
    loss.load_factor = load_factor(args.loss, num_experts, args.rule.top_k);
    loss.balance = static_cast<float>(args.loss.balance / static_cast<double>(args.loss.seq_len));
    loss.seq_len = args.loss.seq_len;
  }
  const TokenLaunch launch = token_launch(num_tokens, 0);
  const Rule rule(args.rule);
  const int E = static_cast<int>(num_experts);
  const auto *const logits = args.logits.data<float>(), *const scores = args.scores.data<float>(),
                    *const weights = args.weights.data<float>(), *const dweights = args.dweights.data<float>();
  const int32_t* const top_idx = args.top_idx.data<int32_t>();
  const auto run = [&]<class T>(T* dlogits) {
    if (!rule.softmax && !balance && loss.z == 0.0F) {
      const auto kernel = can_vectorise(num_experts, args.dlogits) ? backward_of_choices_kernel<T, true>
                                                                   : backward_of_choices_kernel<T, false>;
      kernel<<<launch.blocks, launch.threads, 0, ctx.stream>>>(scores, top_idx, weights, dweights, dlogits, rule,
                                                               num_tokens, E);
    } else {
      dispatch_experts(num_experts, [&](auto experts) {
        backward_kernel<decltype(experts)::value><<<launch.blocks, launch.threads, 0, ctx.stream>>>(
            logits, scores, top_idx, weights, dweights, dlogits, rule, loss, num_tokens, E);
      });
    }
    NMOE_CUDA_CHECK(cudaGetLastError());
  };
  if (args.dlogits.dtype() == DType::kBF16) {
    run(args.dlogits.data<__nv_bfloat16>());
  } else {
    run(args.dlogits.data<float>());
  }
}

void router_bias_update(Context& ctx, const RouterBiasUpdate& args) {
  const Tensor counts = args.counts, bias = args.bias;

  const int64_t num_experts = counts.dim(0);
  if (num_experts == 0) return;
  bias_update_kernel<<<1, kBiasThreads, 0, ctx.stream>>>(counts.data<int32_t>(), bias.data<float>(),
                                                         static_cast<float>(args.rate), args.grad_scale.data<double>(),
                                                         static_cast<int>(num_experts));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
