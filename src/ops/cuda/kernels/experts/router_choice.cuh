// How one token's experts are chosen, by a warp: scores, ranks, the best of them, weights. Formulas:
// ops/contracts/router.h.
//
// A lane has kWidth neighbouring experts, those 32 kWidth further on, and so forth; with kWidth 4 the number of experts
// is a multiple of 128. Scores are made, written and added up a piece at a time, so that neither registers nor code
// grow with the number of experts; ranks lie in the warp's part of shared memory.
#pragma once

#include <cfloat>
#include <cmath>
#include <numbers>

#include "ops/contracts/router.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda {

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
  const int warp = static_cast<int>(threadIdx.x / kWarp), warps = static_cast<int>(blockDim.x / kWarp);
  return {.token = static_cast<int64_t>(blockIdx.x) * warps + warp,
          .lane = static_cast<int>(threadIdx.x % kWarp),
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

// Finite, NaN made the lowest: only ranks of what is not eligible are -infinity.
__device__ inline float eligible_rank(float rank) { return fmaxf(rank, -FLT_MAX); }

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

// Calls fn(first expert, their values) for each piece of a row that a lane has, with several loads under way.
template <int kWidth, class Fn>
__device__ void for_own_experts(const float* row, int num_experts, int lane, const Fn& fn) {
  constexpr int kAtOnce = kWidth == 1 ? 4 : 2, kStride = kWarp * kWidth;
  for (int begin = 0; begin < num_experts; begin += kAtOnce * kStride) {
    const auto first = [&](int i) { return begin + i * kStride + lane * kWidth; };
    const auto is_there = [&](int i) { return (kWidth == 1 ? first(i) : begin + i * kStride) < num_experts; };
    float values[kAtOnce][kWidth];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (is_there(i)) load_values(row + first(i), values[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (is_there(i)) fn(first(i), values[i]);
    }
  }
}

// Takes the largest of a token's ranks, which are shared, one after another, of equals the lowest index first; all
// lanes together. A lane knows the two best of its own; when both are gone, all lanes look for its next one.
template <int kWidth>
class Selection {
 public:
  __device__ Selection(const float* ranks, int num_experts, int lane)
      : ranks_(ranks), num_experts_(num_experts), lane_(lane) {
    for_own_experts<kWidth>(ranks, num_experts, lane, [&](int first, const float(&own)[kWidth]) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) look_at(first + j, own[j]);
    });
  }

  // The index of the next one, for every lane.
  __device__ int take() {
    const int index = index_of_largest(best_, best_at_);
    const bool is_own = index == best_at_;
    if (__any_sync(kAllLanes, is_own && second_at_ == kNone)) {
      const int next = next_of_its_lane(index);
      if (is_own) best_ = next != kNone ? ranks_[next] : -INFINITY, best_at_ = next;
    } else if (is_own) {
      best_ = second_, best_at_ = second_at_;
      second_at_ = kNone;
    }
    return index;
  }

 private:
  static constexpr int kNone = INT32_MAX;

  __device__ void look_at(int index, float rank) {
    const bool is_best = rank > best_, is_second = rank > second_;
    second_at_ = is_best ? best_at_ : (is_second ? index : second_at_);
    second_ = fmaxf(second_, fminf(best_, rank));
    best_at_ = is_best ? index : best_at_;
    best_ = fmaxf(best_, rank);
  }
  // The best behind `index` of the lane that has it.
  __device__ int next_of_its_lane(int index) const {
    const float last = ranks_[index];
    const int begin = index / kWidth % kWarp * kWidth;
    float best = -INFINITY;
    int best_at = kNone;
    for (int i = lane_; i < num_experts_ / kWarp + 1; i += kWarp) {
      const int at = begin + i / kWidth * (kWarp * kWidth) + i % kWidth;
      if (at >= num_experts_) continue;
      const float rank = ranks_[at];
      const bool behind = rank < last || (rank == last && at > index);
      if (behind && rank > best) best = rank, best_at = at;
    }
    return index_of_largest(best, best_at);
  }

  const float* ranks_;
  int num_experts_, lane_;
  float best_ = -INFINITY, second_ = -INFINITY;
  int best_at_ = kNone, second_at_ = kNone;  // kNone: gone, or none
};

// Makes the ranks of experts outside the top groups -infinity. group_ranks: [num_groups], shared.
__device__ inline void keep_top_groups(const Rule& rule, float* ranks, float* group_ranks, int num_experts, int lane) {
  const int group_size = num_experts / rule.num_groups;
  for (int group = lane; group < rule.num_groups; group += kWarp) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = group * group_size; i < (group + 1) * group_size; ++i) {
      second = fmaxf(second, fminf(best, ranks[i]));
      best = fmaxf(best, ranks[i]);
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
  for (int expert = lane; expert < num_experts; expert += kWarp) {
    if (group_ranks[expert / group_size] != -INFINITY) ranks[expert] = -INFINITY;
  }
  __syncwarp();
}

// The entropy of scores / sum of scores, in nats, to fp32's precision however near to 0 it is.
//   - sum_i p_i ln p_i = ln S - sum_i s_i ln s_i / S, p_i = s_i / S
class EntropySums {
 public:
  __device__ void add(float score) {
    sum_ += score;
    product_sum_ += score * flushed_log2(fmaxf(score, FLT_MIN));  // 0 log 0 = 0
    largest_ = fmaxf(largest_, score);
  }
  // Of all lanes' scores, which are those of the row that each of them added.
  template <int kWidth>
  __device__ float entropy(const float* scores, int num_experts, int lane) const {
    const float sum = warp_sum(sum_), total = sum + static_cast<float>(kTinySum);
    if (warp_max(largest_) <= 0.5F * total) {
      const float product_sum = warp_sum(product_sum_);
      return std::numbers::ln2_v<float> * __fdividef(sum * flushed_log2(total) - product_sum, total);
    }
    return entropy_of_peak<kWidth>(scores, 1.0F / total, num_experts, lane);
  }

 private:
  // Where one score is more than half of the sum, the difference above is of equals: its logarithm comes from what the
  // others are, which are summed without it.
  template <int kWidth>
  __device__ static float entropy_of_peak(const float* scores, float inverse, int num_experts, int lane) {
    float sum_of_small = 0.0F, entropy = 0.0F;
    const auto each = [&](const auto& fn) {
      for_own_experts<kWidth>(scores, num_experts, lane, [&](int, const float(&own)[kWidth]) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) fn(own[j] * inverse);
      });
    };
    each([&](float p) { sum_of_small += p > 0.5F ? 0.0F : p; });
    const float log_of_large = log1pf(-warp_sum(sum_of_small));
    each([&](float p) {
      if (!(p <= 0.0F)) entropy -= p * (p > 0.5F ? log_of_large : __logf(p));  // NaN stays in the sum
    });
    return warp_sum(entropy);
  }

  float sum_ = 0.0F;
  float product_sum_ = 0.0F;  // of s log2 s
  float largest_ = 0.0F;
};

// What a lane below top_k has chosen.
struct Choice {
  int expert;
  float weight;
};

// A token's scores = and the choices, by its warp. warp.shared: [E + num_groups].
template <int kWidth>
__device__ Choice choose(const float* logits, const float* bias, float* all_scores, const Rule& rule,
                         const TokenTerms& terms, const TokenWarp& warp, int num_experts) {
  const int lane = warp.lane;
  float *const scores = all_scores + warp.token * num_experts, *const ranks = warp.shared;
  float highest = 0.0F, inverse = 1.0F;
  if (rule.softmax || terms.z != nullptr) {
    const SoftmaxSums sums = softmax_sums(logits, num_experts, lane);
    highest = sums.highest, inverse = 1.0F / sums.sum;
    const float log_sum = sums.log_sum();
    if (terms.z != nullptr && lane == 0)
      terms.z[warp.token] = static_cast<double>(log_sum) * static_cast<double>(log_sum);
  }
  EntropySums entropy;
  for_own_experts<kWidth>(logits, num_experts, lane, [&](int first, float(&x)[kWidth]) {
    float biases[kWidth];
    load_values(bias + first, biases);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[j] = rule.softmax ? expf(x[j] - highest) * inverse : fast_sigmoid(x[j]);
      entropy.add(x[j]);
      biases[j] = eligible_rank(__fadd_rn(x[j], biases[j]));  // of the score as it was rounded
    }
    store_values(scores + first, x);
    store_values(ranks + first, biases);
  });
  __syncwarp();  // scores and ranks that other lanes wrote
  if (terms.entropy != nullptr) {
    const float of_token = entropy.entropy<kWidth>(scores, num_experts, lane);
    if (lane == 0) terms.entropy[warp.token] = static_cast<double>(of_token);
  }

  if (rule.top_groups < rule.num_groups) keep_top_groups(rule, ranks, ranks + num_experts, num_experts, lane);
  Selection<kWidth> experts(ranks, num_experts, lane);
  Choice choice{0, 0.0F};
  for (int k = 0; k < rule.top_k; ++k) {
    const int expert = experts.take();
    if (lane == k) choice.expert = expert;
  }
  if (lane < rule.top_k) choice.weight = scores[choice.expert];
  choice.weight *= rule.normalise ? rule.scale / (warp_sum(choice.weight) + static_cast<float>(kTinySum)) : rule.scale;
  return choice;
}

}  // namespace nmoe::cuda
