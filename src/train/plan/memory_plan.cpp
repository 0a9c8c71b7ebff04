#include "train/plan/memory_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/process.h"
#include "base/text.h"
#include "model/experts_exchange.h"
#include "train/plan/rehearsal.h"
#include "train/step/batch_shape.h"
#include "train/step/engine.h"
#include "train/step/live_generation.h"

namespace nmoe {

namespace {

// Of a GPU's memory, by which it reaches pinned memory of the host: all that the ranks of this process have.
int64_t page_table_bytes(const StoragePlan& plan, int64_t ranks) {
  int64_t pinned = 0;
  for (const ArenaDescription& arena : arena_table()) {
    if (arena.placement != Placement::kDevice) pinned += ranks * plan[arena.kind];
  }
  return pinned / kPinnedBytesPerTableByte;
}

// Of a GPU's memory, beside that, where several work together.
int64_t peer_bytes(int64_t ranks) { return ranks > 1 ? kGpuPeerBytes : 0; }

// What the arenas of `plan`, one rank's, and their use take of a GPU's own memory.
int64_t arena_bytes_on(Device& device, const StoragePlan& plan, int64_t ranks) {
  int64_t bytes = page_table_bytes(plan, ranks) + peer_bytes(ranks);
  for (const ArenaDescription& arena : arena_table()) {
    if (arena.placement != Placement::kDevice || plan[arena.kind] == 0) continue;
    bytes += device.memory().allocation_bytes(plan[arena.kind]);
  }
  return bytes;
}

int64_t memory_limit(const Config& config, int64_t machine) {
  if (config.train.memory_limit.empty()) return machine;
  return std::min(machine, parse_bytes(config.train.memory_limit, "train.memory_limit"));
}

// By which a plan of so much memory may be wrong.
int64_t spare_bytes(int64_t limit) { return limit / 100; }

struct FittingState {
  int64_t bytes = 0;  // OptimConfig::state_on_device
  StoragePlan storage;
};

// Of optim.offload = "fit": all of it, or what is left beside everything else and spare_bytes.
FittingState fitting_state(Config config, Device& device, int64_t ranks,
                           const std::function<StoragePlan(const Config&)>& plan) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  // Of which allocations are multiples: the optimizer's arena is larger by these bytes and no more.
  constexpr int64_t kGranularity = int64_t{2} << 20;
  const auto planned = [&](int64_t state) {
    config.optim.state_on_device = state;
    return FittingState{state, plan(config)};
  };
  const auto use = device.memory_use();
  if (!use) return planned(kAll);
  const int64_t limit = memory_limit(config, use->used_bytes + use->free_bytes);
  const auto left_beside = [&](const StoragePlan& storage) {
    return limit - use->used_bytes - arena_bytes_on(device, storage, ranks);
  };
  const auto left_with = [&](const FittingState& state) { return left_beside(state.storage); };
  const FittingState none = planned(0);
  const int64_t room = left_with(none);
  // Beside what takes the place of state, and what may have to wait for it, there is at most this much room.
  StoragePlan others = none.storage;
  for (const ArenaKind kind : {ArenaKind::kOptimizer, ArenaKind::kActivations, ArenaKind::kHostState}) {
    others.set(kind, 0);
  }
  if (left_beside(others) >= none.storage[ArenaKind::kHostState]) {
    if (FittingState all = planned(kAll); left_with(all) >= 0) return all;
  }
  const auto rounded = [](int64_t bytes) { return std::max<int64_t>(0, bytes / kGranularity * kGranularity); };
  const int64_t spare = spare_bytes(limit);
  int64_t state = rounded(room - spare);
  // Planned with that choice, too: what a plan takes besides may depend on what stays. Less stays until it fits.
  while (state > 0) {
    FittingState some = planned(state);
    const int64_t left = left_with(some);
    if (left >= spare) return some;
    state = rounded(state - std::max(spare - left, kGranularity));
  }
  return none;
}

}  // namespace

MemoryPlanner::MemoryPlanner(const Config& config, int64_t data_bytes, int64_t ranks,
                             const std::optional<GpuPart>& part, std::span<const int64_t> seq_lens)
    : data_bytes_(data_bytes), ranks_(ranks), part_(part), seq_lens_(seq_lens.begin(), seq_lens.end()) {
  if (config.model.moe.num_experts % ranks != 0) {
    throw usage_error(fmt::format("{} ranks of a process share the experts of a layer equally, and there are {}", ranks,
                                  config.model.moe.num_experts),
                      "choose parallel.ranks, or the number of processes, so that the ranks of each divide "
                      "model.moe.num_experts");
  }
  const RunConfig here = part ? RunConfig{.device = "cpu", .threads = config.run.threads} : config.run;
  process_bytes_ = rehearsed_process_bytes(config, here, ranks) + (part ? kGpuLibraryHostBytes : 0);
  DeviceOptions options = device_options(config.run, ranks);
  options.part = part;
  device_ = make_device(options);
  device_name_ = part ? part->name : device_->description();
}

MemoryPlan MemoryPlanner::plan(const Config& config) const {
  MemoryPlan plan{.ranks = ranks_};
  if (config.optim.offload == Offload::kFit) {
    FittingState state = fitting_state(config, *device_, ranks_, [&](const Config& fitted) { return storage(fitted); });
    plan.state_on_device = state.bytes;
    plan.storage = std::move(state.storage);
  } else {
    plan.storage = storage(config);
  }
  plan.expert_rows = plan_expert_rows(config, ranks_, seq_lens_);
  if (part_) plan.part = part_->name;
  plan.cost = model_cost(config.model);
  const auto use = device_->memory_use();
  for (const ArenaDescription& arena : arena_table()) {
    const int64_t bytes = plan.storage[arena.kind];
    if (bytes == 0) continue;
    const bool on_device = use && arena.placement == Placement::kDevice;
    const int64_t copies = on_device ? 1 : ranks_;  // every rank has its own, in this process or on its device
    plan.lines.push_back({std::string(arena.name),
                          on_device ? device_->memory().allocation_bytes(bytes) : copies * bytes,
                          std::string(arena.meaning), on_device});
  }
  plan.lines.push_back({"data", data_bytes_, "shards, mapped; what their order keeps"});
  plan.lines.push_back(
      {"process", process_bytes_ + live_generation_host_bytes(config), "program, libraries, threads, databases"});
  if (use) {
    // The rehearsal has loaded what a run loads.
    plan.lines.push_back({"context", use->used_bytes, "CUDA context, libraries, others on the device", true});
    plan.lines.push_back(
        {"page tables", page_table_bytes(plan.storage, ranks_), "by which it reaches pinned memory of the host", true});
    if (ranks_ > 1) plan.lines.push_back({"peers", peer_bytes(ranks_), "what working with other GPUs takes", true});
    plan.device_limit = use->used_bytes + use->free_bytes;
    plan.device_flops = device_->peak_flops();
  }
  for (const MemoryLine& line : plan.lines) (line.on_device ? plan.device_bytes : plan.total_bytes) += line.bytes;
  return plan;
}

int64_t MemoryPlanner::worst_bytes(const Config& config, const MemoryPlan& plan) const {
  if (plan.expert_rows.num_chunks == 0) return 0;
  Config all_at_once = config;
  all_at_once.optim.state_on_device = plan.state_on_device;
  all_at_once.parallel.capacity_factor = static_cast<double>(ranks_);
  return storage(all_at_once).total() - plan.storage.total();
}

MemoryPlan plan_memory(const Config& config, int64_t data_bytes, int64_t ranks, const std::optional<GpuPart>& part,
                       std::span<const int64_t> seq_lens) {
  const MemoryPlanner planner(config, data_bytes, ranks, part, seq_lens);
  MemoryPlan plan = planner.plan(config);
  plan.worst_bytes = planner.worst_bytes(config, plan);
  return plan;
}

namespace {

// Of the weights of a rank's experts, of `ranks` that share them: elements of all, and of the largest.
struct ExpertElements {
  int64_t all = 0, largest = 0;
};
ExpertElements expert_elements(const Config& config, int64_t ranks) {
  ExpertElements elements;
  if (config.model.moe.num_experts == 0) return elements;
  for (const WeightSpec& weight : describe_model(config.model).weights) {
    if (!weight.per_expert) continue;
    const int64_t here = weight.shape.num_elements() / ranks;
    elements.all += here;
    elements.largest = std::max(elements.largest, here);
  }
  return elements;
}

// What ranks put into each other's memory, where they share experts.
std::string describe_exchange(const Config& config, int64_t ranks) {
  const std::vector<int64_t> passes = moe_passes(config.model);
  const int64_t layers = std::reduce(passes.begin(), passes.end());
  if (ranks == 1 || layers == 0) return "";
  const std::vector<ExchangeCost> costs = exchange_costs(config, device_options(config.run).compute_dtype, ranks);
  const double tokens = static_cast<double>(step_tokens(config)) / static_cast<double>(config.parallel.ranks);
  double sum = 0.0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (passes[i] > 0) sum += static_cast<double>(passes[i]) * costs[i].bytes_per_token() * tokens;
  }
  return fmt::format(
      "  of each rank a step puts {} to others, {} a layer with experts: {:.2f} ranks a token, each way, if all "
      "experts "
      "are as likely\n",
      human_bytes(static_cast<int64_t>(sum)), human_bytes(static_cast<int64_t>(sum / static_cast<double>(layers))),
      costs[0].rows_per_token());
}

}  // namespace

std::string print_plan(const MemoryPlan& plan, const Config& config) {
  std::string text;
  const auto add_lines = [&](bool on_device, std::string_view total_name, int64_t total) {
    for (const MemoryLine& line : plan.lines) {
      if (line.on_device != on_device) continue;
      text += fmt::format("  {:<19}{:>12}  {}\n", line.owner, human_bytes(line.bytes), line.meaning);
    }
    text += fmt::format("  {:<19}{:>12}\n", total_name, human_bytes(total));
  };
  if (plan.device_bytes > 0) add_lines(true, "total on the device", plan.device_bytes);
  add_lines(false, plan.device_bytes > 0 ? "total in the host" : "total", plan.total_bytes);
  if (!plan.part.empty()) {
    text += fmt::format("  planned for {} with {}; what CUDA and its libraries take was measured elsewhere\n",
                        plan.part, human_bytes(plan.device_limit));
  }
  const double parameters = static_cast<double>(plan.cost.parameters);
  if (plan.ranks > 1) {
    text += fmt::format("  of {} ranks in this process: all but data and process is there {} times\n", plan.ranks,
                        plan.ranks);
  }
  if (const ExpertRows& rows = plan.expert_rows; rows.num_chunks > 0) {
    text += fmt::format(
        "  experts of a rank: room for {} rows a layer, {:.3g} of the average; the worst routing has {}, in {} turns; "
        "room for all at once would take {} more\n",
        human_count(static_cast<double>(rows.kept)), config.parallel.capacity_factor,
        human_count(static_cast<double>(rows.worst)), 1 + rows.num_chunks, human_bytes(plan.worst_bytes));
  } else if (rows.worst > 0) {
    text += fmt::format("  experts of a rank: room for {} rows a layer, as many as the worst routing has\n",
                        human_count(static_cast<double>(rows.worst)));
  }
  text += describe_exchange(config, plan.ranks);
  if (const int64_t in_host = plan.storage[ArenaKind::kHostState]; in_host > 0) {
    text += fmt::format("  of each rank {} of optimizer state lie in host memory, and travel both ways in every step\n",
                        human_bytes(in_host));
  }
  if (const int64_t in_host = plan.storage[ArenaKind::kHostInputs]; in_host > 0) {
    text +=
        fmt::format("  of each rank {} of block inputs wait in host memory, and travel both ways in every microbatch\n",
                    human_bytes(in_host));
  }
  if (config.train.gradients == GradientFormat::kBf16) {
    const ExpertElements elements = expert_elements(config, plan.ranks);
    text += fmt::format(
        "  gradients of a rank's experts lie in bf16, {}; a product waits in fp32 to be added, in {} of activations\n",
        human_bytes(2 * elements.all), human_bytes(4 * elements.largest));
  }
  if (config.train.recompute.any([](Recompute level) { return level != Recompute::kNone; })) {
    text += "  activations without what train.recompute has backward compute again, which the FLOPs below leave out\n";
  }
  text += fmt::format("  {} parameters, {} active for a token; {} per token (training, {} positions{})\n",
                      human_count(parameters), human_count(static_cast<double>(plan.cost.active_parameters)),
                      human_quantity(plan.cost.flops_per_token(config.data.seq_len), "FLOP"), config.data.seq_len,
                      config.data.mask_documents ? "; fewer in shorter documents" : "");
  return text;
}

namespace {

// What decides whether a plan fits, of the device or, where it has no memory of its own, of the host.
struct MemoryNeed {
  int64_t needed = 0, machine = 0, limit = 0;
};
MemoryNeed memory_need(const MemoryPlan& plan, const Config& config, int64_t host) {
  const bool on_device = plan.device_bytes > 0;
  MemoryNeed need{.needed = on_device ? plan.device_bytes : plan.total_bytes,
                  .machine = on_device ? plan.device_limit : host};
  need.limit = memory_limit(config, need.machine);
  return need;
}

// Of a device that is here, whose host counts as well.
bool exceeds_host(const MemoryPlan& plan, int64_t host) {
  return plan.device_bytes > 0 && plan.part.empty() && plan.total_bytes > host;
}

// Of all ranks, where a device copies from the host's memory; such pages count for a container and are never swapped
// out.
int64_t pinned_bytes(const MemoryPlan& plan) {
  int64_t bytes = 0;
  for (const ArenaDescription& arena : arena_table()) {
    if (arena.placement != Placement::kDevice) bytes += plan.ranks * plan.storage[arena.kind];
  }
  return bytes;
}

// Whether it is a control group that leaves least of the host's memory.
bool is_limited_by_group() {
  return memory_left_by_groups("/proc/self/cgroup", "/sys/fs/cgroup") <= available_memory_bytes();
}

bool fits_device(const MemoryPlan& plan, const Config& config, Spare spare, int64_t host) {
  const MemoryNeed need = memory_need(plan, config, host);
  const int64_t kept = spare == Spare::kHundredth && plan.device_bytes > 0 ? spare_bytes(need.limit) : 0;
  return need.needed <= need.limit - kept;
}

// What is resident already counts as available to a plan, which has a line for it.
int64_t host_memory_bytes() { return available_memory_bytes() + resident_bytes(); }

}  // namespace

bool fits_device(const MemoryPlan& plan, const Config& config, Spare spare) {
  return fits_device(plan, config, spare, host_memory_bytes());
}

bool fits_memory(const MemoryPlan& plan, const Config& config, Spare spare) {
  const int64_t host = host_memory_bytes();
  return fits_device(plan, config, spare, host) && !exceeds_host(plan, host);
}

void check_memory(const MemoryPlan& plan, const Config& config, const std::function<std::string()>& savings) {
  const bool limited = !config.train.memory_limit.empty();
  const bool on_device = plan.device_bytes > 0;
  const int64_t host = host_memory_bytes();
  const int64_t in_host = plan.ranks * plan.storage[ArenaKind::kHostState];
  const int64_t inputs = plan.ranks * plan.storage[ArenaKind::kHostInputs];
  if (exceeds_host(plan, host)) {
    throw usage_error(
        fmt::format("the run needs {} of host memory, {} of it pinned; {} is {}", human_bytes(plan.total_bytes),
                    human_bytes(pinned_bytes(plan)),
                    is_limited_by_group() ? "what is left within the memory limit of its control group "
                                            "(memory.max of a container or a job)"
                                          : "this machine's free memory",
                    human_bytes(host)),
        fmt::format(
            "free some, raise the limit, or lower checkpoint.staging_bytes: state on its way to checkpoints takes "
            "{}{}{}",
            human_bytes(plan.ranks * plan.storage[ArenaKind::kCheckpointStaging]),
            in_host == 0 ? "" : fmt::format("; optim.offload takes {}", human_bytes(in_host)),
            inputs == 0 ? "" : fmt::format("; train.recompute = \"host\" takes {}", human_bytes(inputs))));
  }
  const auto [needed, machine, limit] = memory_need(plan, config, host);
  if (needed <= limit) return;

  const bool limit_binds = limited && limit < machine;
  const int64_t ranks = on_device ? 1 : plan.ranks;  // that share the memory in question
  const int64_t activations = ranks * plan.storage[ArenaKind::kActivations];
  const int64_t weights = ranks * (plan.storage[ArenaKind::kParameters] + plan.storage[ArenaKind::kOptimizer]);
  const bool smaller_fits = needed - activations + activations / config.train.microbatch_seqs <= limit;
  const bool activations_decide = activations > weights || smaller_fits;
  const bool can_leave = on_device && layer_specs(config.model).size() > kInputSlots;
  const Recompute highest = can_leave ? Recompute::kHost : Recompute::kBlocks;
  const bool repeats_all = !config.train.recompute.any([&](Recompute level) { return level < highest; });
  std::string remedy =
      config.train.microbatch_seqs > 1 && activations_decide
          ? fmt::format("lower train.microbatch_seqs (now {}){}: activations take {}", config.train.microbatch_seqs,
                        repeats_all ? "" : " or raise train.recompute", human_bytes(activations))
          : fmt::format(
                "make the model smaller (model.dim, model.num_layers, model.moe.num_experts): weights and "
                "their optimizer take {}",
                human_bytes(weights + ranks * plan.storage[ArenaKind::kGradients]));
  if (plan.expert_rows.num_chunks > 0 && config.parallel.capacity_factor > 1.0 && activations_decide) {
    remedy += fmt::format("; or lower parallel.capacity_factor (now {:.3g})", config.parallel.capacity_factor);
  }
  if (on_device && config.optim.offload == Offload::kNone) {
    remedy +=
        fmt::format("; or set optim.offload = \"fit\", by which up to {} of the optimizer lie in the host's memory",
                    human_bytes(plan.storage[ArenaKind::kOptimizer]));
  }
  if (on_device && in_host > 0) {
    remedy += fmt::format("; optim.offload = \"{}\" has {} of each rank's optimizer in the host's memory already",
                          config.optim.offload == Offload::kFit ? "fit" : "state", human_bytes(in_host / plan.ranks));
  }
  const ExpertElements experts = on_device ? expert_elements(config, plan.ranks) : ExpertElements();
  const int64_t saved = 2 * experts.all - 4 * experts.largest;
  if (!savings && config.train.gradients == GradientFormat::kFp32 && saved > 0) {
    const bool experts_move = config.parallel.ranks > 1 && config.parallel.rebalance_every > 0;
    remedy += fmt::format("; or set train.gradients = \"bf16\"{}, by which those of experts take {} less",
                          experts_move ? " and parallel.rebalance_every = 0" : "", human_bytes(saved));
  }
  if (ranks > 1) remedy += fmt::format("; or lower parallel.ranks (now {})", config.parallel.ranks);
  if (limit_binds) remedy += "; or raise train.memory_limit";
  if (savings) remedy += savings();
  const std::string memory = !plan.part.empty() ? fmt::format("the memory of {}", plan.part)
                             : on_device        ? "the device's memory"
                                                : "this machine's free memory";
  throw usage_error(fmt::format("the run needs {}, {} is {}", human_bytes(needed),
                                limit_binds ? std::string("train.memory_limit") : memory, human_bytes(limit)),
                    remedy);
}

}  // namespace nmoe
