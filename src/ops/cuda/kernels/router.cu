// MoE router: scores, top-k selection inside groups, gate weights, balance and z losses, and their gradients. Formulas:
// ops/contracts/router.h.
//
// One warp a token: a lane holds every 32nd expert, and a row that is read several times (scores and the ranks that
// selection works on, the gradient that gets scattered contributions) lies in the warp's part of shared memory. Logits
// are read and scores written once; what bounds forward are its instructions.
//
// At most kMaxExperts experts and kMaxTopK choices.
//
// Sums over tokens: every token writes its terms, one block adds them up in an order fixed by T. How often a sequence
// chose an expert is a sum of integers, so the atomics that add it up do not show.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/scratch.h"

namespace nmoe::cuda {
namespace {

// Added to sums of scores before dividing by them (ops/contracts/router.h).
constexpr double kTinySum = 1e-20;

constexpr int kMaxWarps = 4;           // of a block
constexpr int kRouteWarps = 16;        // of the one that routes few tokens
constexpr int64_t kRouteCopies = 256;  // choices that it takes
constexpr int kLoadThreads = 256;      // of the blocks that count choices
constexpr int64_t kLoadCopies = 2048;  // choices that one of them counts
constexpr int kReduceThreads = 512;
constexpr int64_t kMaxExperts = 4096, kMaxTopK = kWarp;  // a lane a choice
constexpr int kBiasThreads = 1024;
static_assert(3 * kMaxExperts * static_cast<int64_t>(sizeof(float)) <= kDefaultSharedBytes,
              "scores, ranks and the ranks of groups of a token");

// A token's terms of the losses, each [T] f64.
struct TokenTerms {
  double* z;        // logsumexp^2
  double* entropy;  // nats
  double* balance;  // sum_i f_i s_i / sum_j s_j
};

struct Rule {
  bool softmax;
  bool normalise;
  int top_k;
  int num_groups;
  int top_groups;
  float scale;

  explicit Rule(const RouterRule& rule)
      : softmax(rule.score == ScoreFunction::kSoftmax),
        normalise(rule.normalise),
        top_k(static_cast<int>(rule.top_k)),
        num_groups(static_cast<int>(rule.num_groups)),
        top_groups(static_cast<int>(rule.top_groups)),
        scale(static_cast<float>(rule.scale)) {}
};

// The warp of a token, and its part of shared memory.
struct TokenWarp {
  int64_t token;
  int lane;
  float* shared;
};

__device__ TokenWarp token_warp(float* shared, int64_t floats_per_warp) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  return {.token = static_cast<int64_t>(blockIdx.x) * warps + warp,
          .lane = static_cast<int>(threadIdx.x) % kWarp,
          .shared = shared + warp * floats_per_warp};
}

struct SoftmaxSums {
  float highest;
  float sum;  // of exp(x - highest)

  __device__ float log_sum() const { return highest + logf(sum); }
};

__device__ SoftmaxSums softmax_sums(const float* x, int num_experts, int lane) {
  float highest = -INFINITY;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) highest = fmaxf(highest, x[i]);
  highest = warp_max(highest);
  float sum = 0.0F;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) sum += expf(x[i] - highest);
  return {highest, warp_sum(sum)};
}

// Finite, NaN made the lowest: only ranks of what is not eligible are -infinity.
__device__ float eligible_rank(float rank) { return rank > -FLT_MAX ? rank : -FLT_MAX; }

// An integer for every rank, in the ranks' order.
__device__ unsigned order_key(float rank) {
  const unsigned bits = __float_as_uint(rank + 0.0F);  // one zero
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

// Takes the largest of `ranks` one after another, of equals the lowest index first; all lanes of a warp together. A
// lane knows its two best, and looks at all of its ranks again when both are gone. What is taken becomes -infinity.
class Selection {
 public:
  __device__ Selection(float* ranks, int size, int lane) : ranks_(ranks), size_(size), lane_(lane) { find(); }

  // The index of the next one, for every lane.
  __device__ int take() {
    const unsigned key = order_key(best_), largest = __reduce_max_sync(kAllLanes, key);
    const int index = __reduce_min_sync(kAllLanes, key == largest ? best_at_ : INT32_MAX);
    if (index == best_at_) {
      ranks_[index] = -INFINITY;
      best_ = second_, best_at_ = second_at_;
      second_ = -INFINITY, second_at_ = INT32_MAX;
      if (++taken_ == 2) find();
    }
    return index;
  }

 private:
  __device__ void find() {
    taken_ = 0;
    best_ = second_ = -INFINITY;
    best_at_ = second_at_ = INT32_MAX;
#pragma unroll
    for (int i = lane_; i < size_; i += kWarp) {
      const float rank = ranks_[i];
      if (rank > best_) {
        second_ = best_, second_at_ = best_at_;
        best_ = rank, best_at_ = i;
      } else if (rank > second_) {
        second_ = rank, second_at_ = i;
      }
    }
  }

  float* ranks_;
  int size_, lane_;
  float best_, second_;
  int best_at_, second_at_;
  int taken_;  // of the lane's two
};

// Makes the ranks of experts outside the top groups -infinity. group_ranks: [num_groups], the warp's own.
__device__ void keep_top_groups(const Rule& rule, float* ranks, float* group_ranks, int num_experts, int lane) {
  const int group_size = num_experts / rule.num_groups;
  for (int group = lane; group < rule.num_groups; group += kWarp) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = group * group_size; i < (group + 1) * group_size; ++i) {
      second = fmaxf(second, fminf(best, ranks[i]));
      best = fmaxf(best, ranks[i]);
    }
    group_ranks[group] = eligible_rank(!rule.softmax && group_size > 1 ? best + second : best);
  }
  __syncwarp();
  Selection groups(group_ranks, rule.num_groups, lane);
  for (int chosen = 0; chosen < rule.top_groups; ++chosen) groups.take();
  __syncwarp();
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) {
    if (group_ranks[i / group_size] != -INFINITY) ranks[i] = -INFINITY;
  }
}

// The entropy of scores / sum of scores, in nats, to fp32's precision however near to 0 it is: where one score is more
// than half of the sum, its logarithm comes from what the others are, which are summed without it.
__device__ float entropy_of(const float* scores, int num_experts, int lane) {
  float sum = 0.0F, sum_of_small = 0.0F, entropy = 0.0F;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) sum += scores[i];
  sum = warp_sum(sum) + static_cast<float>(kTinySum);
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) sum_of_small += scores[i] > 0.5F * sum ? 0.0F : scores[i];
  sum_of_small = warp_sum(sum_of_small);
  const float inverse = 1.0F / sum;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) {
    const float p = scores[i] * inverse;
    const float log_p = scores[i] > 0.5F * sum ? log1pf(-sum_of_small * inverse) : __logf(p);
    if (!(p <= 0.0F)) entropy -= p * log_p;  // NaN stays in the sum
  }
  return warp_sum(entropy);
}

// What a lane below top_k has chosen.
struct Choice {
  int expert;
  float weight;
};

// A token's scores = and the choices, by its warp. `shared`: floats_per_choice().
__device__ Choice choose(const float* logits, const float* bias, float* all_scores, const Rule& rule,
                         const TokenTerms& terms, const TokenWarp& warp, int num_experts) {
  const int lane = warp.lane;
  float* const scores = warp.shared;
  float* const ranks = scores + num_experts;

  float log_sum = 0.0F;
  if (rule.softmax || terms.z != nullptr) {
    const SoftmaxSums sums = softmax_sums(logits, num_experts, lane);
    log_sum = sums.log_sum();
    if (rule.softmax) {
      const float inverse = 1.0F / sums.sum;
#pragma unroll
      for (int i = lane; i < num_experts; i += kWarp) scores[i] = expf(logits[i] - sums.highest) * inverse;
    }
  }
  if (!rule.softmax) {
#pragma unroll
    for (int i = lane; i < num_experts; i += kWarp) scores[i] = 1.0F / (1.0F + expf(-logits[i]));
  }
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) {
    all_scores[warp.token * num_experts + i] = scores[i];
    ranks[i] = eligible_rank(__fadd_rn(scores[i], bias[i]));  // of the score as it was rounded
  }
  __syncwarp();  // orders the scores too, which other lanes read below

  if (terms.z != nullptr && lane == 0)
    terms.z[warp.token] = static_cast<double>(log_sum) * static_cast<double>(log_sum);
  if (terms.entropy != nullptr) {
    const float entropy = entropy_of(scores, num_experts, lane);
    if (lane == 0) terms.entropy[warp.token] = static_cast<double>(entropy);
  }

  if (rule.top_groups < rule.num_groups) keep_top_groups(rule, ranks, ranks + num_experts, num_experts, lane);
  Selection experts(ranks, num_experts, lane);
  float chosen_sum = static_cast<float>(kTinySum);
  Choice choice{0, 0.0F};
  for (int k = 0; k < rule.top_k; ++k) {
    const int expert = experts.take();
    const float score = scores[expert];
    chosen_sum += score;
    if (lane == k) choice = {expert, score};
  }
  choice.weight *= rule.normalise ? rule.scale / chosen_sum : rule.scale;
  return choice;
}

int64_t floats_per_choice(const RouterRule& rule, int64_t num_experts) { return 2 * num_experts + rule.num_groups; }

// kExperts, here and below: how many there are, so that loops over them unroll; 0: as the argument says.
template <int kExperts>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    forward_kernel(const float* logits, const float* bias, float* scores, int32_t* top_idx, float* weights, Rule rule,
                   TokenTerms terms, int64_t num_tokens, int any_experts) {
  extern __shared__ float shared[];
  const int num_experts = kExperts > 0 ? kExperts : any_experts;
  begin_behind_work_before();
  const TokenWarp warp = token_warp(shared, 2 * num_experts + rule.num_groups);
  if (warp.token >= num_tokens) return;  // the whole warp
  const Choice choice = choose(logits + warp.token * num_experts, bias, scores, rule, terms, warp, num_experts);
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
__global__ void __launch_bounds__(kRouteWarps* kWarp)
    route_kernel(const float* logits, const float* bias, float* scores, Rule rule, Routed out, int num_tokens,
                 int num_experts) {
  extern __shared__ float shared[];
  let_next_start();
  prefetch_rows(bias, 1, num_experts);
  wait_for_work_before();
  const int threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int floats = 2 * num_experts + rule.num_groups, copies = num_tokens * rule.top_k;
  float* const copy_weights = shared + warps * floats;                           // [copies]
  auto* const copy_experts = reinterpret_cast<int32_t*>(copy_weights + copies);  // [copies]
  int32_t* const rows = copy_experts + copies;  // [E]: first how many an expert has, then where they begin
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += threads) rows[i] = 0;
  __syncthreads();
  for (int token = warp; token < num_tokens; token += warps) {
    const TokenWarp own{.token = token, .lane = lane, .shared = shared + warp * floats};
    const Choice choice =
        choose(logits + static_cast<int64_t>(token) * num_experts, bias, scores, rule, {}, own, num_experts);
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

template <int kExperts, class T>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    backward_kernel(const float* all_logits, const float* all_scores, const int32_t* top_idx, const float* weights,
                    const float* dweights, T* all_dlogits, Rule rule, LossFactors loss, int64_t num_tokens,
                    int any_experts) {
  extern __shared__ float shared[];
  const int num_experts = kExperts > 0 ? kExperts : any_experts;
  const TokenWarp warp = token_warp(shared, num_experts);
  if (warp.token >= num_tokens) return;  // the whole warp
  const int lane = warp.lane;
  const float* logits = all_logits + warp.token * num_experts;
  const float* scores = all_scores + warp.token * num_experts;
  T* dlogits = all_dlogits + warp.token * num_experts;
  float* d = warp.shared;  // of the scores
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) d[i] = 0.0F;
  __syncwarp();

  // w_k = scale s_k / sum, or scale s_k.
  const bool chosen = lane < rule.top_k;
  const int64_t copy = warp.token * rule.top_k + lane;
  const int expert = chosen ? top_idx[copy] : 0;
  const float dweight = chosen ? dweights[copy] : 0.0F;
  float inverse_sum = 1.0F, projection = 0.0F;
  if (rule.normalise) {
    inverse_sum = 1.0F / (warp_sum(chosen ? scores[expert] : 0.0F) + static_cast<float>(kTinySum));
    projection = warp_sum(chosen ? dweight * weights[copy] : 0.0F);
  }
  if (chosen) d[expert] = (rule.scale * dweight - projection) * inverse_sum;  // a token's experts differ
  __syncwarp();

  if (loss.loads != nullptr) {
    const int32_t* loads = loss.loads + warp.token / loss.seq_len * num_experts;
    const BalanceSums sums = balance_sums(scores, loads, loss.load_factor, num_experts, lane);
    const float mean_load = sums.load_dot / sums.score_sum, factor = loss.balance / sums.score_sum;
#pragma unroll
    for (int i = lane; i < num_experts; i += kWarp) {
      d[i] += factor * (static_cast<float>(loads[i]) * loss.load_factor - mean_load);
    }
  }

  float score_projection = 0.0F;
  if (rule.softmax) {
#pragma unroll
    for (int i = lane; i < num_experts; i += kWarp) score_projection += scores[i] * d[i];
    score_projection = warp_sum(score_projection);
  }
  // d logsumexp^2 / dx = 2 logsumexp softmax
  float z_factor = 0.0F, highest = 0.0F;
  if (loss.z != 0.0F) {
    const SoftmaxSums sums = softmax_sums(logits, num_experts, lane);
    highest = sums.highest;
    z_factor = loss.z * sums.log_sum() / sums.sum;
  }
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) {
    const float s = scores[i];
    float dlogit = rule.softmax ? s * (d[i] - score_projection) : d[i] * (s * (1.0F - s));
    if (loss.z != 0.0F) dlogit += z_factor * expf(logits[i] - highest);
    dlogits[i] = from_float<T>(dlogit);
  }
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

void check_limits(int64_t num_experts, int64_t top_k) {
  NMOE_CHECK(num_experts <= kMaxExperts && top_k <= kMaxTopK, "{} experts, top_k {}; on CUDA at most {} and {}",
             num_experts, top_k, kMaxExperts, kMaxTopK);
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

void router_forward(Context& ctx, const RouterForward& args) {
  check_router(args.rule, args.logits, args.top_idx, args.weights);
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  check_limits(num_experts, args.rule.top_k);
  const bool balance = args.loss.balance != 0, z = args.loss.z != 0, entropy = args.entropy.defined();
  ArenaScope scratch(ctx.scratch);
  const auto [z_terms, entropy_terms, balance_terms, loads] = claim(scratch, args);
  if (ctx.counting() || num_tokens == 0) return;
  const TokenTerms terms{.z = z ? z_terms.data<double>() : nullptr,
                         .entropy = entropy ? entropy_terms.data<double>() : nullptr,
                         .balance = balance ? balance_terms.data<double>() : nullptr};
  const float* logits = args.logits.data<float>();
  float* scores = args.scores.data<float>();

  const TokenLaunch launch = token_launch(num_tokens, floats_per_choice(args.rule, num_experts));
  dispatch_experts(num_experts, [&](auto experts) {
    launch_early(ctx, forward_kernel<decltype(experts)::value>, launch.blocks, static_cast<int>(launch.threads),
                 static_cast<int64_t>(launch.shared_bytes), logits, args.bias.data<float>(), scores,
                 args.top_idx.data<int32_t>(), args.weights.data<float>(), Rule(args.rule), terms, num_tokens,
                 static_cast<int>(num_experts));
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

void route_tokens(Context& ctx, const RouteTokens& args) {
  const RouterForward router = args.router();
  check_router(args.rule, args.logits, args.top_idx, args.weights);
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1),
                copies = num_tokens * args.rule.top_k;
  check_limits(num_experts, args.rule.top_k);
  const int64_t warp_bytes = floats_per_choice(args.rule, num_experts) * static_cast<int64_t>(sizeof(float));
  const int64_t plan_bytes = (2 * copies + num_experts) * static_cast<int64_t>(sizeof(float));
  const int64_t warps = std::min({num_tokens, int64_t{kRouteWarps}, (kDefaultSharedBytes - plan_bytes) / warp_bytes});
  if (ctx.counting() || copies > kRouteCopies || warps < 1) {
    router_forward(ctx, router);
    build_moe_plan(ctx, {.top_idx = args.top_idx, .plan = args.plan, .counts = {}});
    return moe_dispatch_weights(ctx, {.weights = args.weights, .plan = args.plan, .row_weight = args.row_weight});
  }
  const MoePlan& plan = args.plan;
  const Routed routed{.top_idx = args.top_idx.data<int32_t>(),
                      .weights = args.weights.data<float>(),
                      .offsets = plan.offsets.data<int32_t>(),
                      .row_of = plan.row_of.data<int32_t>(),
                      .token_of = plan.token_of.defined() ? plan.token_of.data<int32_t>() : nullptr,
                      .row_weight = args.row_weight.data<float>()};
  launch_early(ctx, route_kernel, 1U, static_cast<int>(warps) * kWarp, warps * warp_bytes + plan_bytes,
               args.logits.data<float>(), args.bias.data<float>(), args.scores.data<float>(), Rule(args.rule), routed,
               static_cast<int>(num_tokens), static_cast<int>(num_experts));
}

void router_backward(Context& ctx, const RouterBackward& args) {
  check_router(args.rule, args.logits, args.top_idx, args.weights);
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  check_limits(num_experts, args.rule.top_k);
  const bool balance = args.loss.balance != 0;
  ArenaScope scratch(ctx.scratch);
  const Tensor loads = claim_sequence_loads(scratch, args.loss, args.logits);
  if (ctx.counting() || num_tokens == 0) return;
  LossFactors loss{
      .loads = nullptr, .load_factor = 0.0F, .balance = 0.0F, .seq_len = 1, .z = static_cast<float>(2 * args.loss.z)};
  if (balance) {
    count_sequence_loads(ctx, args.top_idx, args.loss, loads);
    loss.loads = loads.data<int32_t>();
    loss.load_factor = load_factor(args.loss, num_experts, args.rule.top_k);
    loss.balance = static_cast<float>(args.loss.balance / static_cast<double>(args.loss.seq_len));
    loss.seq_len = args.loss.seq_len;
  }
  const TokenLaunch launch = token_launch(num_tokens, num_experts);
  const auto run = [&]<class T>(T* dlogits) {
    dispatch_experts(num_experts, [&](auto experts) {
      backward_kernel<decltype(experts)::value><<<launch.blocks, launch.threads, launch.shared_bytes, ctx.stream>>>(
          args.logits.data<float>(), args.scores.data<float>(), args.top_idx.data<int32_t>(),
          args.weights.data<float>(), args.dweights.data<float>(), dlogits, Rule(args.rule), loss, num_tokens,
          static_cast<int>(num_experts));
    });
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
  NMOE_CHECK(bias.dim(0) == num_experts && num_experts <= INT32_MAX, "bias {} for counts {}", bias.shape(),
             counts.shape());
  if (ctx.counting() || num_experts == 0) return;
  bias_update_kernel<<<1, kBiasThreads, 0, ctx.stream>>>(counts.data<int32_t>(), bias.data<float>(),
                                                         static_cast<float>(args.rate), args.grad_scale.data<double>(),
                                                         static_cast<int>(num_experts));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
