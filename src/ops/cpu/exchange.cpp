#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/wait_clock.h"
#include "ops/cpu/operations.h"
#include "ops/peers.h"

namespace nmoe::cpu {
namespace {

// How long a rank that waits spins before it sleeps, and how often it then looks at whether a peer has failed.
constexpr int kSpins = 2000;
constexpr auto kNap = std::chrono::microseconds(50);

template <class Real>
std::vector<Real*> pointers_of(const Peers& peers, const Tensor& mine) {
  std::vector<Real*> pointers;
  for (int64_t rank = 0; rank < peers.count(); ++rank) pointers.push_back(peers.on(rank, mine).data<Real>());
  return pointers;
}

// The rows of a matrix, as bytes, on their way to where other ranks have theirs.
class RowBytes {
 public:
  RowBytes(const Peers& peers, const Tensor& rows, const Tensor& inbox)
      : source_(static_cast<const std::byte*>(rows.raw())),
        size_(rows.dim(1) * static_cast<int64_t>(dtype_bytes(rows.dtype()))) {
    for (int64_t rank = 0; rank < peers.count(); ++rank) {
      targets_.push_back(static_cast<std::byte*>(peers.on(rank, inbox).raw()));
    }
  }
  void put(int64_t from, size_t rank, int64_t to) const {
    std::memcpy(targets_[rank] + to * size_, source_ + from * size_, static_cast<size_t>(size_));
  }

 private:
  const std::byte* source_;
  int64_t size_;
  std::vector<std::byte*> targets_;  // by rank
};

void wait_for(const Peers& peers, std::atomic_ref<int64_t> arrived, const Peers::Report& wait) {
  WaitClock clock;
  int64_t patience = peers.patience_ns_with(wait.missing);
  for (int spins = 0; arrived.load(std::memory_order_acquire) < wait.barrier; ++spins) {
    if (spins < kSpins) continue;
    peers.check();
    if (const int64_t now = peers.patience_ns_with(wait.missing); now != patience) {
      patience = now;
      clock.restart();
    }
    if (clock.waited() > std::chrono::nanoseconds(patience)) throw peers.waited_too_long(wait);
    std::this_thread::sleep_for(kNap);
  }
}

// Whether a rank's own tokens go the way of all others': OwnRows.
bool own_are_returned(const Tensor& all_rows, const Tensor& rows) {
  return all_rows.defined() && *all_rows.data<int32_t>() > rows.dim(0);
}

// sum = the rows of the token that this rank received from itself as its `token`th, in the order of its choices.
template <class Real>
void sum_own(const OwnRows& own, int64_t token, std::vector<Real>& sum) {
  const int64_t width = own.rows.dim(1), top_k = own.row_of.dim(1);
  const int32_t* copies = own.row_of.data<int32_t>() + token * top_k;
  std::ranges::fill(sum, Real{0});
  for (int64_t k = 0; k < top_k; ++k) {
    if (copies[k] < 0) continue;
    const Real* source = own.rows.data<Real>() + copies[k] * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sum[static_cast<size_t>(i)] += source[i];
  }
}

}  // namespace

template <class Real>
void peer_barrier(Context& ctx, const PeerBarrier& args) {
  const Peers& peers = args.peers;
  if (ctx.counting() || peers.alone()) return;
  const Peers::Barrier& state = peers.barrier();
  const int64_t barrier = ++*state.count.data<int64_t>();
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t rank = 0; rank < peers.count(); ++rank) {
    int64_t& mine = peers.on(rank, state.arrivals).data<int64_t>()[peers.index()];
    std::atomic_ref(mine).store(barrier, std::memory_order_release);
  }
  for (int64_t rank = 0; rank < peers.count(); ++rank) {
    wait_for(peers, std::atomic_ref(state.arrivals.data<int64_t>()[rank]),
             {.rank = peers.index(),
              .missing = rank,
              .barrier = barrier,
              .work = static_cast<int64_t>(args.place.work),
              .layer = args.place.layer});
  }
  if (!args.waited.defined()) return;
  *args.waited.data<double>() +=
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

template <class Real>
void build_exchange_plan(Context& ctx, const BuildExchangePlan& args) {
  const ExchangePlan& plan = args.plan;
  const int64_t num_tokens = args.top_idx.dim(0), top_k = args.top_idx.dim(1), num_experts = plan.placement.dim(0),
                num_ranks = plan.num_sent.dim(0);
  if (ctx.counting()) return;
  const int32_t* experts = args.top_idx.data<int32_t>();
  const int32_t* placement = plan.placement.data<int32_t>();
  int32_t* send_row = plan.send_row.data<int32_t>();
  int32_t* num_sent = plan.num_sent.data<int32_t>();
  std::fill_n(num_sent, num_ranks, 0);
  std::fill_n(send_row, num_tokens * num_ranks, -1);
  int32_t* counts = args.counts.data_or_null<int32_t>();
  int32_t* traffic = args.traffic.data_or_null<int32_t>();
  for (int64_t token = 0; token < num_tokens; ++token) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t expert = experts[token * top_k + k];
      NMOE_CHECK(expert >= 0 && expert < num_experts, "token {} goes to expert {} of {}", token, expert, num_experts);
      if (counts != nullptr) ++counts[expert];
      const int64_t rank = placement[expert] / plan.num_slots;
      if (traffic != nullptr) ++traffic[num_ranks + rank];
      int32_t& row = send_row[token * num_ranks + rank];
      if (row < 0) row = num_sent[rank]++;
    }
  }
  for (int64_t rank = 0; traffic != nullptr && rank < num_ranks; ++rank) traffic[rank] += num_sent[rank];
}

template <class Real>
void exchange_send(Context& ctx, const ExchangeSend& args) {
  const Peers& peers = args.peers;
  if (ctx.counting()) return;
  const bool as_codes = args.codes.defined();
  const int64_t num_tokens = args.plan.send_row.dim(0), num_ranks = peers.count();
  const int64_t part = peers.index() * args.inbox.slots.dim(1);  // this rank's rows in an inbox
  // What a row is made of.
  std::vector<RowBytes> pieces;
  if (as_codes) {
    pieces = {RowBytes(peers, args.codes.values, args.inbox.codes.values),
              RowBytes(peers, args.codes.scales, args.inbox.codes.scales)};
  } else {
    pieces = {RowBytes(peers, args.x, args.inbox.rows)};
  }
  const bool with_choices = args.top_idx.defined();
  const int64_t top_k = with_choices ? args.top_idx.dim(1) : 0;
  const int32_t* send_row = args.plan.send_row.data<int32_t>();
  const int32_t* placement = args.plan.placement.data<int32_t>();
  const auto slots = with_choices ? pointers_of<int32_t>(peers, args.inbox.slots) : std::vector<int32_t*>();
  const auto weights = with_choices ? pointers_of<Real>(peers, args.inbox.weights) : std::vector<Real*>();
  if (with_choices) {
    const auto counts = pointers_of<int32_t>(peers, args.inbox.counts);
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      counts[static_cast<size_t>(rank)][peers.index()] = args.plan.num_sent.data<int32_t>()[rank];
    }
  }
  const auto tokens = with_choices && args.inbox.tokens.defined() ? pointers_of<int32_t>(peers, args.inbox.tokens)
                                                                  : std::vector<int32_t*>();
  const int32_t* loads = args.loads.data_or_null<int32_t>();
  const int64_t width = as_codes ? args.codes.values.dim(1) : args.x.dim(1);
  parallel_blocks(ctx, num_tokens, task_rows(width * num_ranks), [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        const auto to = static_cast<size_t>(rank);
        const int64_t sent = send_row[token * num_ranks + rank];
        if (sent < 0 || (loads != nullptr && loads[rank] <= args.room)) continue;
        const int64_t row = part + sent;
        for (const RowBytes& piece : pieces) piece.put(token, to, row);
        if (!tokens.empty()) tokens[to][row] = static_cast<int32_t>(token);
        for (int64_t k = 0; k < top_k; ++k) {
          const int64_t place = placement[args.top_idx.data<int32_t>()[token * top_k + k]];
          const bool is_there = place / args.plan.num_slots == rank;
          slots[to][row * top_k + k] = is_there ? static_cast<int32_t>(place % args.plan.num_slots) : -1;
          weights[to][row * top_k + k] = args.weights.data<Real>()[token * top_k + k];
        }
      }
    }
  });
}

template <class Real>
void exchange_return(Context& ctx, const ExchangeReturn& args) {
  const Peers& peers = args.peers;
  if (ctx.counting()) return;
  const int64_t max_tokens = args.returns.rows.dim(1), width = args.rows.dim(1), top_k = args.row_of.dim(1);
  const int64_t part = peers.index() * max_tokens;  // this rank's rows in what others get back
  const bool with_weights = args.row_weight.defined();
  const Real* rows = args.rows.data<Real>();
  const int32_t* row_of = args.row_of.data<int32_t>();
  const int32_t* counts = args.counts.data<int32_t>();
  const int64_t first_row = args.first_row, end_row = first_row + args.rows.dim(0);
  if (first_row > 0 && *args.num_rows.data<int32_t>() == 0) return;
  const auto returned = pointers_of<Real>(peers, args.returns.rows);
  const auto weights = with_weights ? pointers_of<Real>(peers, args.returns.weights) : std::vector<Real*>();
  for (int64_t rank = 0; rank < peers.count(); ++rank) {
    if (rank == peers.index() && !own_are_returned(args.all_rows, args.rows)) continue;
    const auto home = static_cast<size_t>(rank);
    parallel_blocks(ctx, counts[rank], task_rows(width * top_k), [&](int64_t begin, int64_t end, int) {
      for (int64_t token = begin; token < end; ++token) {
        const int32_t* copies = row_of + (rank * max_tokens + token) * top_k;
        Real* const target = returned[home] + (part + token) * width;
        if (first_row == 0) std::fill_n(target, width, Real{0});
        if (first_row == 0 && with_weights) std::fill_n(weights[home] + (part + token) * top_k, top_k, Real{0});
        for (int64_t k = 0; k < top_k; ++k) {
          if (copies[k] < first_row || copies[k] >= end_row) continue;
          const int64_t row = copies[k] - first_row;
          if (with_weights) weights[home][(part + token) * top_k + k] = args.row_weight.data<Real>()[row];
          const Real* source = rows + row * width;
#pragma omp simd
          for (int64_t i = 0; i < width; ++i) target[i] += source[i];
        }
      }
    });
  }
}

template <class Real>
void exchange_return_copies(Context& ctx, const ExchangeReturnCopies& args) {
  const Peers& peers = args.peers;
  if (ctx.counting()) return;
  const int64_t num_rows = args.rows.dim(1), width = args.rows.dim(2), max_tokens = args.tokens.dim(1),
                top_k = args.row_of.dim(2);
  const bool with_weights = args.row_weight.defined();
  const auto copies = pointers_of<Real>(peers, args.copies);
  const auto weights = with_weights ? pointers_of<Real>(peers, args.weights) : std::vector<Real*>();
  for (int64_t rank = 0; rank < peers.count(); ++rank) {
    const auto home = static_cast<size_t>(rank);
    const int32_t* row_of = args.row_of.data<int32_t>() + rank * max_tokens * top_k;
    const int32_t* tokens = args.tokens.data<int32_t>() + rank * max_tokens;
    parallel_blocks(ctx, args.counts.data<int32_t>()[rank], task_rows(width * top_k),
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t copy = begin * top_k; copy < end * top_k; ++copy) {
                        if (row_of[copy] < 0) continue;
                        const int64_t row = rank * num_rows + row_of[copy];
                        const int64_t target = tokens[copy / top_k] * top_k + copy % top_k;
                        std::memcpy(copies[home] + target * width, args.rows.data<Real>() + row * width,
                                    static_cast<size_t>(width) * sizeof(Real));
                        if (with_weights) weights[home][target] = args.row_weight.data<Real>()[row];
                      }
                    });
  }
}

template <class Real>
void exchange_collect(Context& ctx, const ExchangeCollect& args) {
  if (ctx.counting()) return;
  const int64_t num_tokens = args.y.dim(0), width = args.y.dim(1), top_k = args.top_idx.dim(1),
                num_ranks = args.plan.num_sent.dim(0), max_tokens = args.returns.rows.dim(1);
  const int32_t* send_row = args.plan.send_row.data<int32_t>();
  const int32_t* placement = args.plan.placement.data<int32_t>();
  const int32_t* experts = args.top_idx.data<int32_t>();
  const Real* rows = args.returns.rows.data<Real>();
  const OwnRows& own = args.own;
  const bool own_are_here = !own_are_returned(own.all_rows, own.rows);
  parallel_blocks(ctx, num_tokens, task_rows(width * num_ranks), [&](int64_t begin, int64_t end, int) {
    std::vector<Real> own_sum(static_cast<size_t>(width));
    for (int64_t token = begin; token < end; ++token) {
      Real* const target = args.y.data<Real>() + token * width;
      if (!args.accumulate) std::fill_n(target, width, Real{0});
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        const int64_t row = send_row[token * num_ranks + rank];
        if (row < 0) continue;
        const Real* source = rows + (rank * max_tokens + row) * width;
        if (rank == own.rank && own_are_here) {
          sum_own(own, row, own_sum);
          source = own_sum.data();
        }
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) target[i] += source[i];
      }
      for (int64_t k = 0; args.weights.defined() && k < top_k; ++k) {
        const int64_t rank = placement[experts[token * top_k + k]] / args.plan.num_slots;
        const int64_t copy = send_row[token * num_ranks + rank] * top_k + k;
        args.weights.data<Real>()[token * top_k + k] =
            rank == own.rank && own_are_here ? own.row_weight.data<Real>()[own.row_of.data<int32_t>()[copy]]
                                             : args.returns.weights.data<Real>()[rank * max_tokens * top_k + copy];
      }
    }
  });
}

namespace {

template <class T>
void sum_part(Context& ctx, const PeerSum& args) {
  const auto from = pointers_of<T>(args.peers, args.x);
  T* const target =
      args.sum.defined() ? args.sum.data<T>() : from[static_cast<size_t>(args.peers.index())] + args.begin;
  parallel_blocks(ctx, args.end - args.begin, kTaskElements, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      T sum = args.accumulate ? target[i] + from[0][args.begin + i] : from[0][args.begin + i];
      for (size_t rank = 1; rank < from.size(); ++rank) sum += from[rank][args.begin + i];
      target[i] = sum;
    }
  });
}

}  // namespace

template <class Real>
void peer_sum(Context& ctx, const PeerSum& args) {
  if (ctx.counting() || args.begin == args.end || (args.peers.alone() && !args.sum.defined())) return;
  switch (args.x.dtype()) {
    case DType::kF32:
      return sum_part<float>(ctx, args);
    case DType::kF64:
      return sum_part<double>(ctx, args);
    case DType::kI32:
      return sum_part<int32_t>(ctx, args);
    default:
      NMOE_CHECK(false, "a sum over ranks of {}", dtype_name(args.x.dtype()));
  }
}

template <class Real>
void peer_spread(Context& ctx, const PeerSpread& args) {
  if (ctx.counting() || args.peers.alone()) return;
  const auto element = static_cast<int64_t>(dtype_bytes(args.x.dtype()));
  const int64_t first = args.begin * element, num_bytes = (args.end - args.begin) * element;
  const auto* source = static_cast<const std::byte*>(args.x.raw()) + first;
  for (int64_t rank = 0; rank < args.peers.count(); ++rank) {
    if (rank == args.peers.index()) continue;
    std::byte* target = static_cast<std::byte*>(args.peers.on(rank, args.x).raw()) + first;
    parallel_blocks(ctx, num_bytes, kTaskElements * 4, [&](int64_t begin, int64_t end, int) {
      std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
    });
  }
}

template <class Real>
void peer_fetch(Context& ctx, const PeerFetch& args) {
  if (!ctx.counting()) copy<Real>(ctx, {args.peers.on(args.rank, args.x), args.destination});
}

template <class Real>
void sum_across(Context& ctx, const SumAcross& args) {
  if (!ctx.counting() && !args.across.alone()) args.across.sum_in_host(args.tensors);
}

NMOE_CPU_INSTANTIATE(peer_barrier, PeerBarrier)
NMOE_CPU_INSTANTIATE(build_exchange_plan, BuildExchangePlan)
NMOE_CPU_INSTANTIATE(exchange_send, ExchangeSend)
NMOE_CPU_INSTANTIATE(exchange_return, ExchangeReturn)
NMOE_CPU_INSTANTIATE(exchange_collect, ExchangeCollect)
NMOE_CPU_INSTANTIATE(exchange_return_copies, ExchangeReturnCopies)
NMOE_CPU_INSTANTIATE(peer_sum, PeerSum)
NMOE_CPU_INSTANTIATE(peer_spread, PeerSpread)
NMOE_CPU_INSTANTIATE(peer_fetch, PeerFetch)
NMOE_CPU_INSTANTIATE(sum_across, SumAcross)

}  // namespace nmoe::cpu
