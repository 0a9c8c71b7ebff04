// How one token's experts are chosen, by a warp: scores, ranks, the best of them, weights. Formulas:
// ops/contracts/router.h.
//
// A lane holds every 32nd expert in registers, kSlots of them: the i-th is expert 32 i + lane. Where experts are fewer
// than slots (kAll is false), those that are missing have scores of 0, which no sum shows, and ranks of -infinity.
// What is chosen inside groups of experts lies in the warp's part of shared memory meanwhile.
#pragma once

#include <cfloat>
#include <cmath>

#include "ops/contracts/router.h"
#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda {

// Added to sums of scores before dividing by them (ops/contracts/router.h).
constexpr double kTinySum = 1e-20;

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

__device__ inline TokenWarp token_warp(float* shared, int64_t floats_per_warp) {
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

__device__ inline SoftmaxSums softmax_sums(const float* x, int num_experts, int lane) {
  float highest = -INFINITY;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) highest = fmaxf(highest, x[i]);
  highest = warp_max(highest);
  float sum = 0.0F;
#pragma unroll
  for (int i = lane; i < num_experts; i += kWarp) sum += expf(x[i] - highest);
  return {highest, warp_sum(sum)};
}

// As softmax_sums(), of logits in registers.
template <int kSlots>
__device__ SoftmaxSums softmax_sums(const float (&x)[kSlots]) {
  float highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) highest = fmaxf(highest, x[i]);
  highest = warp_max(highest);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) sum += expf(x[i] - highest);
  return {highest, warp_sum(sum)};
}

// Finite, NaN made the lowest: only ranks of what is not eligible are -infinity.
__device__ inline float eligible_rank(float rank) { return rank > -FLT_MAX ? rank : -FLT_MAX; }

// An integer for every rank, in the ranks' order.
__device__ inline unsigned order_key(float rank) {
  const unsigned bits = __float_as_uint(rank + 0.0F);  // one zero
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

// The index of the largest rank that a lane offers, of equals the lowest; for every lane.
__device__ inline int index_of_largest(float rank, int index) {
  const unsigned key = order_key(rank), largest = __reduce_max_sync(kAllLanes, key);
  return __reduce_min_sync(kAllLanes, key == largest ? index : INT32_MAX);
}

// Takes the largest of a warp's ranks one after another, of equals the lowest index first; all lanes together. A lane
// knows its two best, and looks at all of its ranks again when both are gone: for the two behind those.
template <int kSlots>
class Selection {
 public:
  __device__ Selection(const float (&ranks)[kSlots], int lane) : ranks_(ranks), lane_(lane) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) look_at(i, ranks_[i]);
  }

  // The index of the next one, for every lane.
  __device__ int take() {
    const int best_at = best_slot_ == kNone ? INT32_MAX : best_slot_ * kWarp + lane_;
    const int index = index_of_largest(best_, best_at);
    if (index == best_at) {
      if (has_second_) {
        last_ = best_ = second_, last_slot_ = best_slot_ = second_slot_;
        has_second_ = false;
      } else {
        find_behind_last();
      }
    }
    return index;
  }

 private:
  static constexpr int kNone = -1;

  __device__ void find_behind_last() {
    best_ = second_ = -INFINITY;
    best_slot_ = second_slot_ = kNone;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const bool behind = ranks_[i] < last_ || (ranks_[i] == last_ && i > last_slot_);
      look_at(i, behind ? ranks_[i] : -INFINITY);
    }
    has_second_ = true;
  }
  // NOTE: slots are constants; indices of experts would each be kept in a register from one take to the next.
  __device__ void look_at(int i, float rank) {
    const bool is_best = rank > best_, is_second = rank > second_;
    second_slot_ = is_best ? best_slot_ : (is_second ? i : second_slot_);
    second_ = is_best ? best_ : fmaxf(second_, rank);
    best_slot_ = is_best ? i : best_slot_;
    best_ = fmaxf(best_, rank);
  }

  const float (&ranks_)[kSlots];
  int lane_;
  float best_ = -INFINITY, second_ = -INFINITY, last_ = -INFINITY;
  int best_slot_ = kNone, second_slot_ = kNone, last_slot_ = kNone;
  bool has_second_ = true;
};

// Makes the ranks of experts outside the top groups -infinity. shared: [E + num_groups], the warp's own.
template <int kSlots>
__device__ void keep_top_groups(const Rule& rule, float (&ranks)[kSlots], float* shared, int num_experts, int lane) {
  const int group_size = num_experts / rule.num_groups;
  float* const group_ranks = shared + num_experts;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (i * kWarp + lane < num_experts) shared[i * kWarp + lane] = ranks[i];
  }
  __syncwarp();
  for (int group = lane; group < rule.num_groups; group += kWarp) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = group * group_size; i < (group + 1) * group_size; ++i) {
      second = fmaxf(second, fminf(best, shared[i]));
      best = fmaxf(best, shared[i]);
    }
    group_ranks[group] = eligible_rank(!rule.softmax && group_size > 1 ? best + second : best);
  }
  // A lane looks at the groups that it wrote; what is taken becomes -infinity.
  for (int chosen = 0; chosen < rule.top_groups; ++chosen) {
    float best = -INFINITY;
    int best_at = INT32_MAX;
    for (int group = lane; group < rule.num_groups; group += kWarp) {
      if (group_ranks[group] > best) best = group_ranks[group], best_at = group;
    }
    const int taken = index_of_largest(best, best_at);
    if (taken == best_at) group_ranks[taken] = -INFINITY;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int expert = i * kWarp + lane;
    if (expert < num_experts && group_ranks[expert / group_size] != -INFINITY) ranks[i] = -INFINITY;
  }
}

// The entropy of scores / sum of scores, in nats, to fp32's precision however near to 0 it is: where one score is more
// than half of the sum, its logarithm comes from what the others are, which are summed without it.
template <int kSlots>
__device__ float entropy_of(const float (&scores)[kSlots]) {
  float sum = 0.0F, sum_of_small = 0.0F, entropy = 0.0F;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) sum += scores[i];
  sum = warp_sum(sum) + static_cast<float>(kTinySum);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) sum_of_small += scores[i] > 0.5F * sum ? 0.0F : scores[i];
  sum_of_small = warp_sum(sum_of_small);
  const float inverse = 1.0F / sum, log_of_large = log1pf(-sum_of_small * inverse);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const float p = scores[i] * inverse;
    const float log_p = scores[i] > 0.5F * sum ? log_of_large : __logf(p);
    if (!(p <= 0.0F)) entropy -= p * log_p;  // NaN stays in the sum
  }
  return warp_sum(entropy);
}

// What a lane below top_k has chosen.
struct Choice {
  int expert;
  float weight;
};

// A token's scores = and the choices, by its warp. warp.shared: [E + num_groups] where there are groups to
// choose from.
template <int kSlots, bool kAll>
__device__ Choice choose(const float* logits, const float* bias, float* all_scores, const Rule& rule,
                         const TokenTerms& terms, const TokenWarp& warp, int num_experts) {
  const int lane = warp.lane;
  const int own_experts = (num_experts - lane + kWarp - 1) / kWarp;
  const auto is_expert = [&](int i) { return kAll || i < own_experts; };
  float* const scores = all_scores + warp.token * num_experts;
  float x[kSlots];  // logits, then scores, then ranks
#pragma unroll
  for (int i = 0; i < kSlots; ++i) x[i] = is_expert(i) ? logits[i * kWarp + lane] : -INFINITY;

  float highest = 0.0F, inverse = 1.0F;
  if (rule.softmax || terms.z != nullptr) {
    const SoftmaxSums sums = softmax_sums(x);
    highest = sums.highest, inverse = 1.0F / sums.sum;
    const float log_sum = sums.log_sum();
    if (terms.z != nullptr && lane == 0)
      terms.z[warp.token] = static_cast<double>(log_sum) * static_cast<double>(log_sum);
  }
  if (rule.softmax) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) x[i] = expf(x[i] - highest) * inverse;
  } else {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) x[i] = 1.0F / (1.0F + expf(-x[i]));
  }
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (is_expert(i)) scores[i * kWarp + lane] = x[i];
  }
  if (terms.entropy != nullptr) {
    const float entropy = entropy_of(x);
    if (lane == 0) terms.entropy[warp.token] = static_cast<double>(entropy);
  }
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {                 // of the score as it was rounded
    if (i % 16 == 0) asm volatile("" ::: "memory");  // no more loads at once than registers are free
    x[i] = is_expert(i) ? eligible_rank(__fadd_rn(x[i], bias[i * kWarp + lane])) : -INFINITY;
  }

  if (rule.top_groups < rule.num_groups) keep_top_groups(rule, x, warp.shared, num_experts, lane);
  Selection<kSlots> experts(x, lane);
  Choice choice{0, 0.0F};
  for (int k = 0; k < rule.top_k; ++k) {
    const int expert = experts.take();
    if (lane == k) choice.expert = expert;
  }
  __syncwarp();  // the scores that other lanes wrote
  if (lane < rule.top_k) choice.weight = scores[choice.expert];
  float chosen_sum = static_cast<float>(kTinySum);
  for (int k = 0; k < rule.top_k; ++k) chosen_sum += __shfl_sync(kAllLanes, choice.weight, k);
  choice.weight *= rule.normalise ? rule.scale / chosen_sum : rule.scale;
  return choice;
}

}  // namespace nmoe::cuda
