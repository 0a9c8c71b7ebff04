#include "ops/storage.h"

#include <numeric>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"

namespace nmoe {
namespace {

constexpr ArenaDescription kTable[] = {
    {ArenaKind::kParameters, "parameters", "weights and router biases", Placement::kDevice},
    {ArenaKind::kWeightCodes, "weight codes", "weights rounded for their products, as they are and transposed",
     Placement::kDevice},
    {ArenaKind::kGradients, "gradients", "one a weight", Placement::kDevice},
    {ArenaKind::kOptimizer, "optimizer", "moments of AdamW and Muon, lower halves of masters", Placement::kDevice},
    {ArenaKind::kHostState, "host state", "the same of weights that optim.offload moves to the host, pinned",
     Placement::kMapped, /*at_first_use=*/false,
     "set optim.offload = \"none\", free memory of the host, or raise the memory limit of this process or container"},
    {ArenaKind::kHostInputs, "host inputs", "of blocks with train.recompute = \"host\", until backward, pinned",
     Placement::kMapped, /*at_first_use=*/false,
     "write blocks for host in train.recompute, free memory of the host, or raise the memory limit of this process or "
     "container"},
    {ArenaKind::kActivations, "activations", "of one microbatch, train.microbatch_seqs x data.seq_len tokens",
     Placement::kDevice},
    {ArenaKind::kScratch, "scratch", "temporaries of single operations", Placement::kDevice},
    {ArenaKind::kCopyScratch, "copy scratch", "temporaries on the copy lane", Placement::kDevice},
    {ArenaKind::kCommunicationScratch, "communication scratch", "temporaries on the communication lane",
     Placement::kDevice},
    {ArenaKind::kStepState, "step state", "batches, token losses and predictions, router statistics, rope tables",
     Placement::kDevice},
    {ArenaKind::kCache, "cache", "keys and values of earlier tokens, for generation", Placement::kDevice},
    {ArenaKind::kPeerWindow, "peer window", "where other ranks put tokens for this one's experts, and what comes back",
     Placement::kDevice},
    {ArenaKind::kPeerFlags, "peer flags", "what ranks tell each other while devices wait", Placement::kMapped},
    {ArenaKind::kExchange, "exchange", "batches and results of steps on their way", Placement::kHost},
    {ArenaKind::kCheckpointStaging, "checkpoint staging",
     "the state on its way to a checkpoint, checkpoint.staging_bytes at most", Placement::kHost,
     /*at_first_use=*/true},
};

constexpr bool in_order() {
  for (size_t i = 0; i < kNumArenas; ++i) {
    if (kTable[i].kind != static_cast<ArenaKind>(i)) return false;
  }
  return true;
}
static_assert(std::size(kTable) == kNumArenas && in_order());

std::optional<Lane> lane_of_scratch(ArenaKind kind) {
  switch (kind) {
    case ArenaKind::kScratch:
      return Lane::kCompute;
    case ArenaKind::kCopyScratch:
      return Lane::kCopy;
    case ArenaKind::kCommunicationScratch:
      return Lane::kCommunication;
    default:
      return std::nullopt;
  }
}

MemorySource& source_of(Device& device, Placement placement) {
  switch (placement) {
    case Placement::kDevice:
      return device.memory();
    case Placement::kHost:
      return device.host_memory();
    case Placement::kMapped:
      return device.mapped_memory();
  }
  NMOE_CHECK(false, "an arena in no memory");
}

void reserve_arena(Device& device, Arena& arena, const ArenaDescription& entry, int64_t bytes) {
  try {
    arena.reserve(source_of(device, entry.placement), bytes);
  } catch (const Error& error) {
    if (entry.remedy.empty()) throw;
    throw runtime_error(fmt::format("{}: {} ({})", entry.name, error.what(), entry.meaning), std::string(entry.remedy));
  }
}

}  // namespace

std::span<const ArenaDescription, kNumArenas> arena_table() { return kTable; }

int64_t StoragePlan::total() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0},
                         [](int64_t sum, const std::optional<int64_t>& bytes) { return sum + bytes.value_or(0); });
}

StoragePlan StoragePlan::max(const StoragePlan& other) const {
  StoragePlan larger;
  for (const ArenaDescription& entry : arena_table()) {
    larger.set(entry.kind, std::max((*this)[entry.kind], other[entry.kind]));
  }
  return larger;
}

Storage::Storage(Device& device) : device_(device), counting_(true) {
  NMOE_CHECK(device.counting(), "a counting storage on a device whose scratch is reserved");
  for (const ArenaDescription& entry : arena_table()) {
    if (!lane_of_scratch(entry.kind)) arenas_[static_cast<size_t>(entry.kind)].emplace(std::string(entry.name));
  }
}

Storage::Storage(Device& device, const StoragePlan& plan) : Storage(device) {
  plan_ = plan;
  counting_ = false;
  for (const ArenaDescription& entry : arena_table()) {
    if (entry.at_first_use || plan.leaves_out(entry.kind)) continue;
    reserve_arena(device, (*this)[entry.kind], entry, plan[entry.kind]);
  }
}

Arena& Storage::operator[](ArenaKind kind) {
  if (const auto lane = lane_of_scratch(kind)) return device_.scratch(*lane);
  return *arenas_[static_cast<size_t>(kind)];
}

void Storage::reserve(ArenaKind kind) {
  const ArenaDescription& entry = arena_table()[static_cast<size_t>(kind)];
  NMOE_CHECK(entry.at_first_use, "the arena '{}' is reserved at the start", entry.name);
  Arena& arena = (*this)[kind];
  if (!counting_ && arena.counting()) reserve_arena(device_, arena, entry, plan_[kind]);
}

StoragePlan Storage::used() {
  StoragePlan plan;
  for (const ArenaDescription& entry : arena_table()) plan.set(entry.kind, (*this)[entry.kind].high_water());
  return plan;
}

StoragePlan plan_storage(const DeviceOptions& options, const std::function<void(Storage&)>& build) {
  const auto device = make_device(options);
  Storage storage(*device);
  build(storage);
  return storage.used();
}

void check_free_memory(const StoragePlan& plan, Device& device, std::string_view work, const std::string& remedy) {
  const auto device_use = device.memory_use();
  const int64_t needed = plan.total(), available = device_use ? device_use->free_bytes : available_memory_bytes();
  if (needed <= available) return;
  throw usage_error(fmt::format("{} needs {}, this {}'s free memory is {}", work, human_bytes(needed),
                                device_use ? "GPU" : "machine", human_bytes(available)),
                    remedy);
}

}  // namespace nmoe
