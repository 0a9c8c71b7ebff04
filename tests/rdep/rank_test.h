// Ranks whose tokens are routed to experts of all of them, on devices of NMOE_TEST_DEVICE.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "parallel/domain.h"
#include "rdep/exchange.h"
#include "rdep/peer_transport.h"
#include "rdep/placement.h"
#include "tensor/low_precision.h"

namespace nmoe::test::rdep {

inline constexpr int64_t kExperts = 8, kTopK = 3, kWidth = 24, kRoom = 9;  // tokens of a rank at most
inline constexpr ExchangeShape kShape{.num_experts = kExperts, .top_k = kTopK, .width = kWidth};

// What a test routes: tokens of each rank, and the experts of a token.
struct Routing {
  std::vector<int64_t> num_tokens;  // by rank
  int64_t first_expert = -1;        // all tokens go to three experts from this one on; -1: at random
  std::vector<int32_t> places = places_in_order(kExperts);

  std::vector<int32_t> experts(int64_t rank, int64_t token) const {
    std::vector<int32_t> all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    if (first_expert >= 0) return {all.begin() + first_expert, all.begin() + first_expert + kTopK};
    const Philox rng(7, static_cast<uint64_t>(rank));
    for (size_t i = 0; i < kTopK; ++i) {
      const uint64_t bits = rng.bits(static_cast<uint64_t>(token) * kTopK + i);
      std::swap(all[i], all[i + bits % (kExperts - i)]);
    }
    return {all.begin(), all.begin() + kTopK};
  }
};

// Small integers, which sums in fp32 keep exact.
inline float value(int64_t rank, int64_t token, int64_t column) {
  return static_cast<float>(16 * rank + token + column % 5);
}
// What it is once it has travelled.
inline float arrived(RowFormat dispatch_format, int64_t rank, int64_t token, int64_t column) {
  if (dispatch_format == RowFormat::kDevice) return value(rank, token, column);
  const uint8_t scale = e8m0_scale(value(rank, token, 4));  // a row is one block, and this its largest
  return round_to_e4m3(value(rank, token, column) * e8m0_to_inverse(scale)) * e8m0_to_float(scale);
}
inline float weight(int64_t rank, int64_t token, int64_t choice) {
  return static_cast<float>(64 * rank + 4 * token + choice + 1);
}
// What expert e makes of a row.
inline float made_of(float x, int64_t expert) { return x * static_cast<float>(expert + 1); }

// How received tokens are processed.
struct Mode {
  std::string name;
  Received received = Received::kTogether;
  double capacity_factor = 100.0;  // so many that there is no overflow
  RowFormat dispatch_format = RowFormat::kDevice;
};

// A rank with its tokens, and an exchange through the memory of all.
struct RankTest {
  RankTest(const Routing& what, int64_t num_ranks, const Mode& mode, Communicator& communicator)
      : routing(what),
        memory(RankMemory::make({.kind = NMOE_TEST_DEVICE, .index = index_of(communicator), .num_threads = 1},
                                plan_for(num_ranks), communicator)),
        device(*memory->device),
        ops(device.ops()),
        domain({device, communicator}, memory->storage, std::chrono::seconds(20)),
        transport(domain.experts().peers(), memory->storage[ArenaKind::kPeerWindow]),
        window(transport, ops, kShape, {.max_tokens = kRoom, .capacity_factor = mode.capacity_factor},
               {.received = mode.received, .dispatch_format = mode.dispatch_format, .gives_codes = true},
               memory->storage[ArenaKind::kStepState]),
        places(memory->storage[ArenaKind::kStepState].allocate(DType::kI32, {kExperts})),
        exchange(make_remote_exchange(window, 0, places)),
        rank(communicator.index()),
        num_tokens(routing.num_tokens[static_cast<size_t>(rank)]),
        pass{.ops = ops, .activations = arena()} {
    device.upload(places, routing.places.data());
    std::vector<int32_t> experts;
    std::vector<float> values, weights;
    for (int64_t token = 0; token < num_tokens; ++token) {
      for (const int32_t expert : routing.experts(rank, token)) experts.push_back(expert);
      for (int64_t k = 0; k < kTopK; ++k) weights.push_back(weight(rank, token, k));
      for (int64_t i = 0; i < kWidth; ++i) values.push_back(value(rank, token, i));
    }
    top_idx = upload(DType::kI32, {num_tokens, kTopK}, experts.data());
    x = upload(DType::kF32, {num_tokens, kWidth}, values.data());
    sent = x;
    gate = upload(DType::kF32, {num_tokens, kTopK}, weights.data());
    if (mode.dispatch_format == RowFormat::kDevice) return;
    sent.quantised = push_row_codes(arena(), num_tokens, kWidth);
    ops.quantize(quantize_rows(x, sent.quantised));
  }

  static int index_of(const Communicator& communicator) {
    return std::string_view(NMOE_TEST_DEVICE) == "cpu" ? 0 : static_cast<int>(communicator.index());
  }
  static StoragePlan plan_for(int64_t) {
    StoragePlan plan;
    for (const ArenaKind kind : {ArenaKind::kActivations, ArenaKind::kScratch, ArenaKind::kCommunicationScratch,
                                 ArenaKind::kStepState, ArenaKind::kPeerWindow, ArenaKind::kPeerFlags}) {
      plan.set(kind, 1 << 20);
    }
    return plan;
  }
  Arena& arena() { return memory->storage[ArenaKind::kActivations]; }
  Tensor push(Shape shape) { return arena().allocate(ops.compute_dtype(), shape); }
  Tensor push_i32(Shape shape) { return arena().allocate(DType::kI32, shape); }
  Tensor push_stat(Shape shape) { return arena().allocate(ops.stat_dtype(), shape); }
  Tensor upload(DType dtype, Shape shape, const void* values) {
    const Tensor tensor = arena().allocate(dtype, shape);
    if (tensor.num_elements() > 0) device.upload(tensor, values);
    return tensor;
  }
  template <class T>
  std::vector<T> download(Tensor tensor) {
    std::vector<T> host(static_cast<size_t>(tensor.num_elements()));
    if (!host.empty()) device.download(host.data(), tensor);
    return host;
  }

  const Routing& routing;
  std::shared_ptr<RankMemory> memory;
  Device& device;
  Ops& ops;
  Domain domain;
  PeerTransport transport;
  ExchangeWindow window;
  Tensor places;
  std::unique_ptr<TokenExchange> exchange;
  int64_t rank, num_tokens;
  ExchangePass pass;
  Tensor top_idx, x, gate;
  Rows sent;  // x, and what travels of it
};

}  // namespace nmoe::test::rdep
