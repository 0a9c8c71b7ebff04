#include "parallel/domain.h"

#include <array>
#include <atomic>
#include <exception>
#include <thread>

#include "base/wait_clock.h"
#include "parallel/tensor_sums.h"
#include "parallel/thread_group.h"

namespace nmoe {
namespace {

constexpr ArenaKind kShared[] = {ArenaKind::kParameters, ArenaKind::kGradients, ArenaKind::kStepState,
                                 ArenaKind::kPeerWindow, ArenaKind::kPeerFlags};

}  // namespace

std::shared_ptr<RankMemory> RankMemory::make(const DeviceOptions& options, const StoragePlan& plan,
                                             Communicator& communicator) {
  auto device = make_device(options);
  Device& on = *device;
  auto memory = std::shared_ptr<RankMemory>(new RankMemory{std::move(device), Storage(on, plan)});
  communicator.keep(memory);
  return memory;
}

Domain::Domain(const Rank& rank, Storage& storage, std::chrono::milliseconds patience)
    : device_(rank.device),
      all_ranks_(rank.communicator),
      communicator_(rank.communicator.process()),
      peers_(communicator_.index(), communicator_.count()),
      across_(rank.communicator.counterparts().index(), rank.communicator.counterparts().count(),
              [this](std::span<const Tensor> tensors) {
                all_ranks_.counterparts().all_reduce_sum(tensors, Lane::kCompute);
              }),
      num_exceptions_(std::uncaught_exceptions()) {
  if (!peers_.alone()) connect(rank, storage);
  if (storage[ArenaKind::kStepState].counting()) return;
  set_patience(patience);
  if (!across_.alone()) {
    across_.set_link(device_.link_across(across_.index(), across_.count(), [this](std::string_view bytes) {
      return all_ranks_.counterparts().all_gather(bytes);
    }));
  }
  told_ = all_ranks_.on_failure([this] {
    raise_abort();
    if (across_.link() != nullptr) across_.link()->abort();
  });
}

void Domain::connect(const Rank& rank, Storage& storage) {
  Arena& window = storage[ArenaKind::kPeerWindow];
  Arena& flags = storage[ArenaKind::kPeerFlags];
  peers_.set_barrier({.arrivals = window.allocate(DType::kI64, {count()}),
                      .count = storage[ArenaKind::kStepState].allocate(DType::kI64, {1}),
                      .aborted = flags.allocate(DType::kI32, {1}),
                      .patience = flags.allocate(DType::kI64, {1}),
                      .report = flags.allocate(DType::kI64, {6})});
  if (window.counting()) return;
  peers_.set_patience_ns(std::chrono::nanoseconds(kDefaultRankTimeout).count());

  struct Memory {
    int64_t device_index = 0;
    std::array<std::byte*, std::size(kShared)> blocks{};
    std::array<int64_t, std::size(kShared)> num_bytes{};
  };
  Memory mine{.device_index = rank.device.index()};
  for (size_t i = 0; i < std::size(kShared); ++i) {
    mine.blocks[i] = static_cast<std::byte*>(storage[kShared[i]].block());
    mine.num_bytes[i] = storage[kShared[i]].capacity();
  }
  const std::vector<Memory> all = communicator_.all_gather_values(mine);
  for (const Memory& other : all) {
    NMOE_CHECK(other.num_bytes == mine.num_bytes, "ranks differ in the sizes of what they share");
    rank.device.enable_peer_access(static_cast<int>(other.device_index));
  }
  for (size_t i = 0; i < std::size(kShared); ++i) {
    std::vector<std::byte*> bases;
    for (const Memory& other : all) bases.push_back(other.blocks[i]);
    peers_.share(mine.num_bytes[i], std::move(bases));
  }
  peers_.set_check([this] { communicator_.check(); });
  communicator_.barrier();  // nobody writes to a rank that is not ready
}

Domain::~Domain() {
  if (std::uncaught_exceptions() > num_exceptions_) {
    raise_abort();
    if (across_.link() != nullptr) across_.link()->abort();
  }
  if (alone() || device_.counting()) return;
  try {
    device_.order(Lane::kCommunication, Lane::kCompute);
    const auto done = device_.make_event(Lane::kCompute);
    done->record();
    done->wait();
  } catch (...) {  // what is wrong with the device shows elsewhere
  }
}

void Domain::raise_abort() const {
  const Tensor& aborted = peers_.barrier().aborted;
  if (peers_.alone() || aborted.raw() == nullptr) return;
  for (int64_t rank = 0; rank < count(); ++rank) {
    std::atomic_ref(*peers_.on(rank, aborted).data<int32_t>()).store(1, std::memory_order_relaxed);
  }
}

void Domain::all_reduce_sum(Ops& ops, std::span<const Tensor> tensors) const {
  if (peers_.alone()) return;
  ops.peer_barrier({peers_, {PeerWork::kSum}});
  for (const Tensor& tensor : tensors) {
    const RankPart part = part_of_rank(tensor, index(), count());
    ops.peer_sum({peers_, tensor, part.begin, part.end});
    ops.peer_spread({peers_, tensor, part.begin, part.end});
  }
  ops.peer_barrier({peers_, {PeerWork::kSum}});
}

void Domain::reduce_sum(Ops& ops, std::span<const Part> parts, bool accumulate, int64_t max_blocks) const {
  ops.peer_barrier({peers_, {PeerWork::kSum}});
  for (const Part& part : parts) {
    ops.peer_sum({.peers = peers_,
                  .x = part.tensor,
                  .begin = part.begin,
                  .end = part.end,
                  .sum = part.sum,
                  .accumulate = accumulate,
                  .max_blocks = max_blocks});
  }
  ops.peer_barrier({peers_, {PeerWork::kSum}});
}

void Domain::all_gather(Ops& ops, std::span<const Part> parts) const {
  if (peers_.alone()) return;
  ops.peer_barrier({peers_, {PeerWork::kGather}});
  for (const Part& part : parts) ops.peer_spread({peers_, part.tensor, part.begin, part.end});
  ops.peer_barrier({peers_, {PeerWork::kGather}});
}

void Domain::sum_across(Ops& ops, std::span<const Tensor> tensors) const {
  if (!across_.alone()) ops.sum_across({across_, tensors});
}

void Domain::set_patience(std::chrono::milliseconds patience) const {
  all_ranks_.set_patience(patience);
  if (!peers_.alone()) peers_.set_patience_ns(std::chrono::nanoseconds(patience).count());
}

void Domain::check() const {
  const Peers::Barrier& barrier = peers_.barrier();
  const bool aborted = !peers_.alone() && barrier.aborted.raw() != nullptr &&
                       std::atomic_ref(*barrier.aborted.data<int32_t>()).load(std::memory_order_relaxed) != 0;
  if (!aborted) return all_ranks_.check();
  for (int64_t rank = 0; rank < count(); ++rank) {
    int64_t* const report = peers_.on(rank, barrier.report).data<int64_t>();
    if (std::atomic_ref(report[0]).load(std::memory_order_acquire) == 0) continue;
    throw peers_.waited_too_long(
        {.rank = report[1], .missing = report[2], .barrier = report[3], .work = report[4], .layer = report[5]});
  }
  // A rank failed that says why as soon as it gets to it.
  for (WaitClock clock; clock.waited() < kFarewell;) {
    all_ranks_.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  NMOE_CHECK(false, "rank {} gave up an exchange that no rank ended", index());
}

}  // namespace nmoe
