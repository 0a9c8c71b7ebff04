// Sums over domains (contracts/across.h), by way of NCCL.
//
// NCCL's own sums begin at each rank's own place, so that their order, and with it their bits, depend on how many there
// are and how they are connected. Here NCCL only carries: every domain gets its part of a piece from all others, adds
// in the order of domains, and sends the total back. These are the bytes that a ring sends: 2 (P - 1) / P of all on
// each of P domains. Bound by the slowest link between two of them.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/ordered_sum.cuh"
#include "ops/cuda/vendor/nccl.h"

namespace nmoe::cuda {
namespace {

// target [size] = x.at[0] + x.at[1] and so on, added in F32 and rounded at the end. `target` may be one of them. A
// thread has eight elements.
constexpr int kHalvesThreads = 256;
__global__ void __launch_bounds__(kHalvesThreads)
    sum_halves_kernel(PeerPointers<__nv_bfloat16> x, __nv_bfloat16* target, int64_t num_domains, int64_t size,
                      bool vector) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kHalvesThreads + threadIdx.x) * 8;
  if (i >= size) return;
  vector = vector && i + 8 <= size;
  float sum[8];
  load8(x.at[0], i, size, vector, sum);
  for (int64_t domain = 1; domain < num_domains; ++domain) {
    float more[8];
    load8(x.at[domain], i, size, vector, more);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += more[j];
  }
  store8(target, i, size, vector, sum);
}

void sum_pieces(Context& ctx, const PeerPointers<__nv_bfloat16>& x, __nv_bfloat16* target, int64_t num_domains,
                int64_t size) {
  bool vector = aligned16(target);
  for (int64_t domain = 0; domain < num_domains; ++domain) vector = vector && aligned16(x.at[domain]);
  sum_halves_kernel<<<grid_size(ceil_div(size, int64_t{kHalvesThreads} * 8)), kHalvesThreads, 0, ctx.stream>>>(
      x, target, num_domains, size, vector);
  NMOE_CUDA_CHECK(cudaGetLastError());
}
template <class T>
void sum_pieces(Context& ctx, const PeerPointers<T>& x, T* target, int64_t num_domains, int64_t size) {
  ordered_sum(ctx, x, target, /*accumulate=*/false, num_domains, 0, size);
}

// A piece of a round, and where what the others send of this domain's part lies.
struct Piece {
  AcrossPiece elements;
  Tensor tensor;
  std::byte* received;

  std::byte* at(int64_t element) const {
    return static_cast<std::byte*>(tensor.raw()) + element * elements.element_bytes;
  }
};

class Round {
 public:
  Round(Context& ctx, const SumAcross& args, const AcrossRound& round, std::byte* scratch)
      : ctx_(ctx), index_(args.across.index()), count_(args.across.count()) {
    for (const AcrossPiece& piece : round) {
      pieces_.push_back({piece, args.tensors[piece.tensor], scratch});
      scratch += (count_ - 1) * piece.part_room(count_);
    }
  }

  void run(NcclLink& link) const {
    link.exchange(ctx_.stream, [&] {
      for_each([&](const Piece& piece, int64_t other) {
        const Part mine = part(piece, index_), theirs = part(piece, other);
        if (theirs.bytes > 0) link.send(theirs.place, theirs.bytes, other);
        if (mine.bytes > 0) link.receive(received(piece, other), mine.bytes, other);
      });
    });
    for (const Piece& piece : pieces_) sum(piece);
    link.exchange(ctx_.stream, [&] {
      for_each([&](const Piece& piece, int64_t other) {
        const Part mine = part(piece, index_), theirs = part(piece, other);
        if (mine.bytes > 0) link.send(mine.place, mine.bytes, other);
        if (theirs.bytes > 0) link.receive(theirs.place, theirs.bytes, other);
      });
    });
  }

 private:
  struct Part {
    std::byte* place;
    int64_t bytes;
  };
  Part part(const Piece& piece, int64_t domain) const {
    const int64_t begin = piece.elements.edge(domain, count_), end = piece.elements.edge(domain + 1, count_);
    return {piece.at(begin), (end - begin) * piece.elements.element_bytes};
  }
  std::byte* received(const Piece& piece, int64_t from) const {
    return piece.received + (from < index_ ? from : from - 1) * piece.elements.part_room(count_);
  }

  template <class Fn>
  void for_each(const Fn& fn) const {
    for (const Piece& piece : pieces_) {
      for (int64_t other = 0; other < count_; ++other) {
        if (other != index_) fn(piece, other);
      }
    }
  }

  void sum(const Piece& piece) const {
    switch (piece.tensor.dtype()) {
      case DType::kF32:
        return sum_as<float>(piece);
      case DType::kBF16:
        return sum_as<__nv_bfloat16>(piece);
      case DType::kF64:
        return sum_as<double>(piece);
      default:
        return sum_as<int32_t>(piece);
    }
  }
  template <class T>
  void sum_as(const Piece& piece) const {
    const Part mine = part(piece, index_);
    if (mine.bytes == 0) return;
    PeerPointers<T> values{};
    for (int64_t domain = 0; domain < count_; ++domain) {
      values.at[domain] = reinterpret_cast<T*>(domain == index_ ? mine.place : received(piece, domain));
    }
    sum_pieces(ctx_, values, reinterpret_cast<T*>(mine.place), count_, mine.bytes / static_cast<int64_t>(sizeof(T)));
  }

  Context& ctx_;
  const int64_t index_, count_;
  std::vector<Piece> pieces_;
};

}  // namespace

void sum_across(Context& ctx, const SumAcross& args, const Tensor& scratch) {
  if (args.across.alone()) return;
  auto& link = static_cast<NcclLink&>(*args.across.link());
  for (const AcrossRound& round : across_rounds(args.tensors, kAcrossRoundBytes)) {
    Round(ctx, args, round, static_cast<std::byte*>(scratch.raw())).run(link);
  }
}

}  // namespace nmoe::cuda
