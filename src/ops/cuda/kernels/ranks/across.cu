// Sums over domains (contracts/across.h), by way of NCCL.
//
// NCCL's own sums begin at each rank's own place, so that their order, and with it their bits, depend on how many there
// are and how they are connected. Here NCCL only carries: every domain gets its part of a piece from all others, adds
// in the order of domains, and sends the total back. These are the bytes that a ring sends: 2 (P - 1) / P of all on
// each of P domains. Bound by the slowest link between two of them.
#include <type_traits>

#include "ops/cuda/kernels/ranks/sum_halves.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/ordered_sum.cuh"
#include "ops/cuda/vendor/nccl.h"

namespace nmoe::cuda {
namespace {

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
    const int64_t size = mine.bytes / static_cast<int64_t>(sizeof(T));
    const auto values_of = [&](int64_t domain) {
      return reinterpret_cast<T*>(domain == index_ ? mine.place : received(piece, domain));
    };
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      std::vector<Tensor> values;
      for (int64_t domain = 0; domain < count_; ++domain) {
        values.emplace_back(values_of(domain), DType::kBF16, Shape{size});
      }
      sum_halves(ctx_, values, values[static_cast<size_t>(index_)]);
    } else {
      PeerPointers<T> values{};
      for (int64_t domain = 0; domain < count_; ++domain) values.at[domain] = values_of(domain);
      ordered_sum(ctx_, values, values.at[index_], /*accumulate=*/false, count_, 0, size);
    }
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
