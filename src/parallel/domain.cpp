#include "parallel/domain.h"

#include <array>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/wait_clock.h"
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
      mesh_(rank.mesh()),
      peers_(mesh_.process().index(), mesh_.process().count()),
      across_(
          mesh_.shard_replicas().index(), mesh_.shard_replicas().count(),
          [this](std::span<const Tensor> tensors) { mesh_.shard_replicas().all_reduce_sum(tensors, Lane::kCompute); }),
      num_exceptions_(std::uncaught_exceptions()) {
  // One group of each kind stands for both divisions of the ranks.
  NMOE_CHECK(mesh_.experts().count() == peers_.count() && mesh_.shards().count() == peers_.count() &&
                 mesh_.expert_data().count() == across_.count(),
             "experts on {} ranks and updates on {}, of {} that reach each other", mesh_.experts().count(),
             mesh_.shards().count(), peers_.count());
  if (!peers_.alone()) connect(rank, storage);
  if (storage[ArenaKind::kStepState].counting()) return;
  set_patience(patience);
  if (!across_.alone()) {
    across_.set_link(device_.link_across(across_.index(), across_.count(), [this](std::string_view bytes) {
      return mesh_.shard_replicas().all_gather(bytes);
    }));
  }
  told_ = mesh_.all().on_failure([this] {
    raise_abort();
    if (across_.link() != nullptr) across_.link()->abort();
  });
}

void Domain::connect(const Rank& rank, Storage& storage) {
  Arena& window = storage[ArenaKind::kPeerWindow];
  Arena& flags = storage[ArenaKind::kPeerFlags];
  peers_.set_barrier({.arrivals = window.allocate(DType::kI64, {peers_.count()}),
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
  const std::vector<Memory> all = mesh_.process().all_gather_values(mine);
  for (const Memory& other : all) {
    NMOE_CHECK(other.num_bytes == mine.num_bytes, "ranks differ in the sizes of what they share");
    rank.device.enable_peer_access(static_cast<int>(other.device_index));
  }
  for (size_t i = 0; i < std::size(kShared); ++i) {
    std::vector<std::byte*> bases;
    for (const Memory& other : all) bases.push_back(other.blocks[i]);
    peers_.share(mine.num_bytes[i], std::move(bases));
  }
  peers_.set_check([this] { mesh_.process().check(); });
  mesh_.process().barrier();  // nobody writes to a rank that is not ready
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
  for (int64_t rank = 0; rank < peers_.count(); ++rank) {
    std::atomic_ref(*peers_.on(rank, aborted).data<int32_t>()).store(1, std::memory_order_relaxed);
  }
}

void Domain::sum_replicas(Ops& ops, std::span<const Tensor> shards, std::span<const Tensor> experts) const {
  std::vector<Tensor> all(shards.begin(), shards.end());
  all.insert(all.end(), experts.begin(), experts.end());
  shard_replicas().sum(ops, all);
}

void Domain::set_patience(std::chrono::milliseconds patience) const {
  mesh_.all().set_patience(patience);
  if (!peers_.alone()) peers_.set_patience_ns(std::chrono::nanoseconds(patience).count());
}

void Domain::check() const {
  const Peers::Barrier& barrier = peers_.barrier();
  const bool aborted = !peers_.alone() && barrier.aborted.raw() != nullptr &&
                       std::atomic_ref(*barrier.aborted.data<int32_t>()).load(std::memory_order_relaxed) != 0;
  if (!aborted) return mesh_.all().check();
  for (int64_t rank = 0; rank < peers_.count(); ++rank) {
    int64_t* const report = peers_.on(rank, barrier.report).data<int64_t>();
    if (std::atomic_ref(report[0]).load(std::memory_order_acquire) == 0) continue;
    throw peers_.waited_too_long(
        {.rank = report[1], .missing = report[2], .barrier = report[3], .work = report[4], .layer = report[5]});
  }
  // A rank failed that says why as soon as it gets to it.
  for (WaitClock clock; clock.waited() < kGracePeriod;) {
    mesh_.all().check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  NMOE_CHECK(false, "rank {} gave up an exchange that no rank ended", peers_.index());
}

}  // namespace nmoe
