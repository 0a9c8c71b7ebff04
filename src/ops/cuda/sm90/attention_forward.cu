// Attention over sequences, forward (attention_forward.cuh).
//
// Tiles are counted from a sequence's end: where the length is not a multiple of a tile it is the first tile, of little
// work, whose consumers stand idle.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_forward.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

template <class L>
struct Schedule;

struct Attention {
  HeadMaps whole;
  int last_heads;             // of k_last: all, or one that all share
  __nv_bfloat16* out;         // [T, H, kValueSize]
  float* lse;                 // [B, H, S]
  const int32_t* first_keys;  // [T], or null
  int num_seqs, seq_len, heads, group;
  int window;  // 0: none
  float scale;
  const float* sinks;  // of all heads, or null
  int num_tiles;       // of a sequence's rows; the first begins `missing` rows before the sequence
  int missing;         // a multiple of 64, less than a tile
  int section;         // heads whose tiles are taken before those of the next ones

  // As attention_forward.cuh wants it.
  struct Tile {
    int first_row;  // in the sequence; may be negative
    int head, seq;
  };
  static constexpr bool kHidesRest = false, kKeepsLse = true;
  template <class L>
  __device__ void prepare(std::byte*) const {}
  template <class L>
  __device__ Schedule<L> tiles(std::byte*) const;
  __device__ int first_row(const Tile&) const { return 0; }
  __device__ int end_row(const Tile&) const { return seq_len; }
  __device__ bool exists(const Tile&, int row) const { return row < seq_len; }
  __device__ bool has_rows(const Tile&, int row) const { return row >= 0; }
  __device__ bool takes_turns(const Tile&) const { return true; }
  __device__ int low_key(const Tile& tile, int row) const {
    const int document = first_keys != nullptr ? first_keys[tile.seq * seq_len + row] : 0;
    return window > 0 ? max(document, row - window + 1) : document;
  }
  template <class L>
  __device__ void load_queries(const Tile& tile, int row, std::byte* target, uint64_t* full) const {
    load_query_rows<L, kRows>(whole.q, tile.head, {row, tile.seq}, target, full);
  }
  __device__ SequencePlace key_place(const Tile& tile, int position) const { return {position, tile.seq}; }
  __device__ int64_t out_row(const Tile& tile, int row) const { return static_cast<int64_t>(tile.seq) * seq_len + row; }
  __device__ float* lse_of(const Tile& tile, int row) const {
    return lse + (static_cast<int64_t>(tile.seq) * heads + tile.head) * seq_len + row;
  }
};

// Tiles in the order of the sections, within one those of all heads' last rows first. Block b of a grid of n takes the
// tiles b, 2 n - 1 - b, 2 n + b, ... of that order; so all have much the same work if the section is well chosen
// (balanced_section), and work on few heads at a time, whose keys and values stay in L2.
template <class L>
struct Schedule {
  const Attention& a;
  int turn = 0;

  __device__ bool next(Attention::Tile& tile) {
    const int n = static_cast<int>(gridDim.x), b = static_cast<int>(blockIdx.x);
    const int place = turn * n + (turn % 2 == 0 ? b : n - 1 - b);
    const int heads = a.num_seqs * a.heads;
    if (place >= heads * a.num_tiles) return false;
    ++turn;
    const int section = place / (a.section * a.num_tiles), rest = place - section * a.section * a.num_tiles;
    const int section_heads = min(a.section, heads - section * a.section), row = rest / section_heads;
    const int head = section * a.section + rest - row * section_heads;  // of all sequences
    tile = {(a.num_tiles - 1 - row) * L::kTileRows - a.missing, head % a.heads, head / a.heads};
    return true;
  }
};

template <class L>
__device__ Schedule<L> Attention::tiles(std::byte*) const {
  return {*this};
}

// How many heads make a section, of keys and values of some 4 to 24 MiB: the number, among some, for which the block
// with the most work has the least, without documents. The order repeats itself, so that some are bad: with 256 tiles
// of a section for 132 blocks, the same blocks would take the longest tiles in turn after turn.
template <class L>
int balanced_section(const Attention& a, int num_blocks) {
  constexpr int64_t kLeastBytes = int64_t{4} << 20, kMostBytes = int64_t{24} << 20;
  constexpr int kCandidates = 8;
  const int64_t group_bytes = static_cast<int64_t>(a.seq_len) * (L::kKeySize + L::kValueSize) * 2;
  const int groups = a.num_seqs * a.heads / a.group;
  const int least = static_cast<int>(std::clamp<int64_t>(kLeastBytes / group_bytes, 1, groups));
  const int most = static_cast<int>(std::clamp<int64_t>(kMostBytes / group_bytes, 1, groups));
  std::vector<int64_t> work(
      static_cast<size_t>(a.num_tiles));  // blocks of keys of a tile, and one for what a tile costs
  for (int row = 0; row < a.num_tiles; ++row) {
    const int first = row * L::kTileRows - a.missing, last = std::min(first + L::kTileRows, a.seq_len) - 1;
    const int low = a.window > 0 ? std::max(first - a.window + 1, 0) : 0;
    work[static_cast<size_t>(row)] = last / L::kKeys - low / L::kKeys + 2;
  }
  int best = 0;
  int64_t least_work = std::numeric_limits<int64_t>::max();
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const int section = (least + (most - least) * candidate / (kCandidates - 1)) * a.group;
    std::vector<int64_t> loads(static_cast<size_t>(num_blocks));
    int turn = 0, block = 0;
    for (int first = 0; first < a.num_seqs * a.heads; first += section) {
      const int heads = std::min(section, a.num_seqs * a.heads - first);
      for (int row = a.num_tiles - 1; row >= 0; --row) {
        for (int head = 0; head < heads; ++head) {
          loads[static_cast<size_t>(turn % 2 == 0 ? block : num_blocks - 1 - block)] += work[static_cast<size_t>(row)];
          if (++block == num_blocks) {
            block = 0;
            ++turn;
          }
        }
      }
    }
    const int64_t most_work = *std::max_element(loads.begin(), loads.end());
    if (most_work < least_work) {
      least_work = most_work;
      best = section;
    }
  }
  return best;
}

// What both forms of arguments are: q and out as in the contract.
struct Operands {
  const AttentionShape& shape;
  Tensor q;
  KeyValueRows keys;
  Tensor out, lse;
  Tensor sinks = {};
};

template <class L>
void launch(Context& ctx, const Operands& args, const Tensor& first_keys) {
  const AttentionShape& shape = args.shape;
  const KeyValueRows& keys = args.keys;
  const int64_t S = shape.seq_len, heads = shape.num_seqs * args.q.dim(1), group = args.q.dim(1) / keys.v.heads;
  const int64_t whole_rows = ceil_div<int64_t>(S, kRows) * kRows, tiles = ceil_div<int64_t>(whole_rows, L::kTileRows);
  NMOE_CHECK(heads * tiles <= INT32_MAX / 2, "attention of {} tiles", heads * tiles);
  Attention attention{.whole = {.q = head_map(head_rows(shape, args.q), kRows),
                                .k = head_map(keys.k, L::kKeys),
                                .k_last = head_map(keys.k_last, L::kKeys),
                                .v = head_map(keys.v, L::kKeys)},
                      .last_heads = static_cast<int>(keys.k_last.heads),
                      .out = args.out.data<__nv_bfloat16>(),
                      .lse = args.lse.data<float>(),
                      .first_keys = first_keys.data_or_null<int32_t>(),
                      .num_seqs = static_cast<int>(shape.num_seqs),
                      .seq_len = static_cast<int>(S),
                      .heads = static_cast<int>(args.q.dim(1)),
                      .group = static_cast<int>(group),
                      .window = shape.window < S ? static_cast<int>(shape.window) : 0,
                      .scale = static_cast<float>(shape.scale),
                      .sinks = args.sinks.data_or_null<float>(),
                      .num_tiles = static_cast<int>(tiles),
                      .missing = static_cast<int>(tiles * L::kTileRows - whole_rows),
                      .section = 0};
  const int blocks = static_cast<int>(std::min<int64_t>(heads * tiles, ctx.num_sms));
  attention.section = balanced_section<L>(attention, blocks);
  allow_dynamic_shared(attention_kernel<L, Attention>, L::kSharedBytes);
  attention_kernel<L, Attention>
      <<<static_cast<unsigned>(blocks), L::Registers::kThreads, L::kSharedBytes, ctx.stream>>>(attention);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void launch_for_sizes(Context& ctx, const Operands& args, const Tensor& first_keys) {
  const KeyValueRows& keys = args.keys;
  NMOE_CHECK(aligned16(args.q.rows_raw()) && aligned16(keys.k.data) && aligned16(keys.k_last.data) &&
                 aligned16(keys.v.data) && aligned16(args.out.raw()),
             "attention of rows that are not aligned to 16 bytes");
  const int64_t key_size = args.q.dim(2), value_size = keys.v.size;
  if (key_size == 64 && value_size == 64) return launch<Heads64>(ctx, args, first_keys);
  if (key_size == 128 && value_size == 128) return launch<Heads128>(ctx, args, first_keys);
  NMOE_CHECK(key_size == 192 && value_size == 128, "attention with heads of {} and {}", key_size, value_size);
  launch<Heads192>(ctx, args, first_keys);
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys) {
  launch_for_sizes(ctx,
                   {.shape = args.shape,
                    .q = args.q,
                    .keys = key_value_rows(args.shape, args.k, args.v),
                    .out = args.out,
                    .lse = args.lse,
                    .sinks = args.sinks},
                   first_keys);
}

void mla_attention_forward(Context& ctx, const MlaAttentionForward& args, const Tensor& first_keys) {
  launch_for_sizes(ctx,
                   {.shape = args.shape,
                    .q = args.q,
                    .keys = key_value_rows(args.shape, args.kv, args.k_rope, args.out.dim(2)),
                    .out = args.out,
                    .lse = args.lse},
                   first_keys);
}

}  // namespace nmoe::cuda::sm90
