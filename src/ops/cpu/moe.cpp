#include <cstring>

#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/operations.h"

namespace nmoe::cpu {

// A counting sort in three passes: every chunk of tokens counts its copies per expert, a prefix sum
// over (expert, chunk) gives each chunk its first row in each expert, and the chunks place their
// copies.
template <class Real>
void build_moe_plan(Context& ctx, const BuildMoePlan& args) {
  const Tensor top_idx = args.top_idx;
  const MoePlan& plan = args.plan;
  const Tensor counts = args.counts;
  const bool has_parts = args.part_sizes.defined();
  constexpr int64_t kMinChunkTokens = 1024, kMaxChunks = 64;
  const int64_t num_tokens = top_idx.dim(0), top_k = top_idx.dim(1), num_experts = plan.offsets.dim(0) - 1;
  const int64_t chunk_tokens = std::max(kMinChunkTokens, ceil_div(num_tokens, kMaxChunks));
  const int64_t num_chunks = ceil_div(num_tokens, chunk_tokens);
  ArenaScope scratch(ctx.scratch);
  const Tensor next_row = scratch.allocate(DType::kI32, {num_chunks, num_experts});
  if (ctx.counting()) return;
  const int32_t* experts = top_idx.data<int32_t>();
  int32_t* next_rows = next_row.data<int32_t>();
  const int32_t* part_sizes = has_parts ? args.part_sizes.data<int32_t>() : nullptr;
  const int64_t part_tokens = has_parts ? num_tokens / args.part_sizes.dim(0) : num_tokens;
  const auto is_there = [&](int64_t token) {
    return !has_parts || token % part_tokens < part_sizes[token / part_tokens];
  };

  parallel_blocks(ctx, num_tokens, chunk_tokens, [&](int64_t begin, int64_t end, int) {
    int32_t* chunk_counts = next_rows + begin / chunk_tokens * num_experts;
    std::fill(chunk_counts, chunk_counts + num_experts, 0);
    for (int64_t token = begin; token < end; ++token) {
      if (!is_there(token)) continue;
      for (int64_t copy = token * top_k; copy < (token + 1) * top_k; ++copy) {
        const int32_t expert = experts[copy];
        if (has_parts && expert == -1) continue;
        NMOE_CHECK(expert >= 0 && expert < num_experts, "token {} goes to expert {} of {}", token, expert, num_experts);
        ++chunk_counts[expert];
      }
    }
  });

  int32_t* offsets = plan.offsets.data<int32_t>();
  int32_t* loads = counts.data_or_null<int32_t>();
  int32_t row = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    offsets[expert] = row;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      int32_t& slot = next_rows[chunk * num_experts + expert];
      const int32_t chunk_count = slot;
      slot = row;
      row += chunk_count;
    }
    if (loads != nullptr) loads[expert] += row - offsets[expert];
  }
  offsets[num_experts] = row;

  int32_t* row_of = plan.row_of.data<int32_t>();
  int32_t* token_of = plan.token_of.data_or_null<int32_t>();
  parallel_blocks(ctx, num_tokens, chunk_tokens, [&](int64_t begin, int64_t end, int) {
    int32_t* chunk_rows = next_rows + begin / chunk_tokens * num_experts;
    for (int64_t token = begin; token < end; ++token) {
      const bool there = is_there(token);
      for (int64_t copy = token * top_k; copy < (token + 1) * top_k; ++copy) {
        row_of[copy] = there && experts[copy] >= 0 ? chunk_rows[experts[copy]]++ : -1;
        if (token_of != nullptr && row_of[copy] >= 0) token_of[row_of[copy]] = static_cast<int32_t>(token);
      }
    }
  });
}

template <class Real>
void divide_moe_rows(Context& ctx, const DivideMoeRows& args) {
  if (ctx.counting()) return;
  const int64_t num_offsets = args.offsets.dim(0);
  const int32_t* offsets = args.offsets.data<int32_t>();
  int32_t* parts = args.parts.data<int32_t>();
  for (int64_t part = 0; part < args.parts.dim(0); ++part) {
    const int64_t first = part == 0 ? 0 : args.capacity + (part - 1) * args.chunk;
    const int64_t most = part == 0 ? args.capacity : args.chunk;
    for (int64_t i = 0; i < num_offsets; ++i) {
      parts[part * num_offsets + i] = static_cast<int32_t>(std::clamp<int64_t>(offsets[i] - first, 0, most));
    }
  }
}

namespace {

// Which rows of a plan a tensor of `capacity` rows has.
struct RowPart {
  RowPart(const MoePlan& plan, int64_t num_rows) : first(plan.first_row), capacity(num_rows) {
    is_empty = first > 0 && plan.offsets.data<int32_t>()[plan.offsets.dim(0) - 1] == 0;
  }
  // Where a row of the plan is in the tensor; -1: not there.
  int64_t place(int64_t row) const { return row >= first && row - first < capacity ? row - first : -1; }

  int64_t first, capacity;
  bool is_empty;
};

void copy_codes(const RowCodes& from, int64_t from_row, const RowCodes& to, int64_t to_row) {
  const auto copy = [&](const Tensor& source, const Tensor& target) {
    const int64_t width = source.dim(1);
    std::memcpy(target.data<uint8_t>() + to_row * width, source.data<uint8_t>() + from_row * width,
                static_cast<size_t>(width));
  };
  copy(from.values, to.values);
  copy(from.scales, to.scales);
}

}  // namespace

// Goes by token, not by row: a token's values are then read from memory once and not top_k times.
template <class Real>
void moe_dispatch(Context& ctx, const MoeDispatch& args) {
  const MoePlan& plan = args.plan;
  const Tensor rows = args.rows;
  const int64_t num_tokens = plan.row_of.dim(0), width = rows.dim(1), top_k = plan.row_of.dim(1);
  if (ctx.counting()) return;
  const Real* tokens = args.x.data_or_null<Real>();
  const int32_t* row_of = plan.row_of.data<int32_t>();
  Real* out = rows.data<Real>();
  const RowPart part(plan, rows.dim(0));
  if (part.is_empty) return;
  parallel_blocks(ctx, num_tokens, task_rows(width * top_k), [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t copy = token * top_k; copy < (token + 1) * top_k; ++copy) {
        const int64_t row = part.place(row_of[copy]);
        if (row < 0) continue;
        if (tokens == nullptr) {
          widen_row(args.codes, token, out + row * width);
          if (args.row_codes.defined()) copy_codes(args.codes, token, args.row_codes, row);
        } else {
          std::memcpy(out + row * width, tokens + token * width, static_cast<size_t>(width) * sizeof(Real));
        }
      }
    }
  });
}

// target = or += the sum of `count` rows, in order. Goes by columns, because the rows lie far apart
// in memory: reading them side by side overlaps their misses.
template <class Real>
void sum_rows(const Real* rows, const int32_t* row_idx, int64_t count, Real* target, int64_t width, bool accumulate) {
  constexpr int64_t kColumns = 64;
  for (int64_t begin = 0; begin < width; begin += kColumns) {
    const int64_t size = std::min(kColumns, width - begin);
    Real* out = target + begin;
    if (!accumulate) std::fill_n(out, size, Real{0});
    for (int64_t k = 0; k < count; ++k) {
      const Real* source = rows + row_idx[k] * width + begin;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) out[i] += source[i];
    }
  }
}

template <class Real>
void moe_combine(Context& ctx, const MoeCombine& args) {
  const Tensor rows = args.rows;
  const MoePlan& plan = args.plan;
  const Tensor y = args.y;
  const bool accumulate = args.accumulate;
  const int64_t num_tokens = y.dim(0), width = y.dim(1), top_k = plan.row_of.dim(1);
  if (ctx.counting()) return;
  const Real* in = rows.data<Real>();
  const int32_t* row_of = plan.row_of.data<int32_t>();
  Real* tokens = y.data<Real>();
  parallel_blocks(ctx, num_tokens, task_rows(width * top_k), [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      sum_rows(in, row_of + token * top_k, top_k, tokens + token * width, width, accumulate);
    }
  });
}

template <class Real>
void moe_dispatch_weights(Context& ctx, const MoeDispatchWeights& args) {
  const Tensor weights = args.weights;
  const MoePlan& plan = args.plan;
  const Tensor row_weight = args.row_weight;
  if (ctx.counting()) return;
  const Real* source = weights.data<Real>();
  const int32_t* row_of = plan.row_of.data<int32_t>();
  Real* target = row_weight.data<Real>();
  const RowPart part(plan, row_weight.dim(0));
  if (part.is_empty) return;
  parallel_blocks(ctx, weights.num_elements(), kTaskElements, [&](int64_t begin, int64_t end, int) {
    for (int64_t copy = begin; copy < end; ++copy) {
      const int64_t row = part.place(row_of[copy]);
      if (row >= 0) target[row] = source[copy];
    }
  });
}

template <class Real>
void moe_combine_weights(Context& ctx, const MoeCombineWeights& args) {
  const Tensor row_weight = args.row_weight;
  const MoePlan& plan = args.plan;
  const Tensor weights = args.weights;
  if (ctx.counting()) return;
  const Real* source = row_weight.data<Real>();
  const int32_t* row_of = plan.row_of.data<int32_t>();
  Real* target = weights.data<Real>();
  parallel_blocks(ctx, weights.num_elements(), kTaskElements, [&](int64_t begin, int64_t end, int) {
    for (int64_t copy = begin; copy < end; ++copy) target[copy] = source[row_of[copy]];
  });
}

template <class Real>
void route_tokens(Context& ctx, const RouteTokens& args) {
  router_forward<Real>(ctx, args.router());
  build_moe_plan<Real>(ctx, {.top_idx = args.top_idx, .plan = args.plan, .counts = {}});
  moe_dispatch_weights<Real>(ctx, {.weights = args.weights, .plan = args.plan, .row_weight = args.row_weight});
}

NMOE_CPU_INSTANTIATE(build_moe_plan, BuildMoePlan)
NMOE_CPU_INSTANTIATE(divide_moe_rows, DivideMoeRows)
NMOE_CPU_INSTANTIATE(moe_dispatch, MoeDispatch)
NMOE_CPU_INSTANTIATE(moe_combine, MoeCombine)
NMOE_CPU_INSTANTIATE(moe_dispatch_weights, MoeDispatchWeights)
NMOE_CPU_INSTANTIATE(moe_combine_weights, MoeCombineWeights)
NMOE_CPU_INSTANTIATE(route_tokens, RouteTokens)

}  // namespace nmoe::cpu
