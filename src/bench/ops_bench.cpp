#include "bench/ops_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "bench/op_cases.h"
#include "bench/timing.h"
#include "train/step/engine.h"

namespace nmoe {
namespace {

using Work = OpCase::Work;

OperandFormat format_of(const RunConfig& run) {
  return run.precision == Precision::kFp8 ? OperandFormat::kFp8 : OperandFormat::kAct;
}

class OperationTimer {
 public:
  // Measures what `cases` need, then takes that much.
  OperationTimer(const RunConfig& run, const std::vector<OpCase>& cases)
      : device_(make_device(device_options(run))),
        storage_(*device_, plan_storage(device_options(run),
                                        [&](Storage& storage) {
                                          Workbench counting(storage, format_of(run));
                                          for (const OpCase& one : cases) {
                                            const ArenaScope scope(counting.arena());
                                            const Work whole = one.prepare(counting);
                                            whole();
                                            if (one.prepare_excluded) one.prepare_excluded(counting)();
                                          }
                                        })),
        bench_(storage_, format_of(run)),
        done_(device_->make_event(Lane::kCompute)) {}

  const Device& device() const { return *device_; }

  // Calls behind each other in a recording, as a step has them.
  OpTiming time(const OpCase& one) { return time(one, /*recorded=*/true); }

  // Without a recording. A CUDA graph's copies are slower than the same copies on a stream.
  OpTiming time_unrecorded(const OpCase& one) { return time(one, /*recorded=*/false); }

 private:
  // Several calls of an operation behind each other.
  struct Calls {
    Work work;
    std::unique_ptr<Recording> recording;  // of the work, or null
    int count = 0;
  };

  OpTiming time(const OpCase& one, bool recorded) {
    constexpr int kRuns = 5;
    const ArenaScope scope(bench_.arena());
    const Calls whole = calls_of(one.prepare, recorded);
    const Calls excluded = one.prepare_excluded ? calls_of(one.prepare_excluded, recorded) : Calls{};
    std::vector<double> ms;
    for (int run = 0; run < kRuns; ++run) {  // in turns, so that clocks and temperatures are alike
      ms.push_back(call_ms(whole) - (excluded.work ? call_ms(excluded) : 0.0));
    }
    return {one.name, one.shape, one.flops, one.bytes, median(std::move(ms))};
  }

  Calls calls_of(const std::function<Work(Workbench&)>& prepare, bool recorded) {
    constexpr double kRunMs = 20.0;
    constexpr int kMostCalls = 50;
    const Work work = prepare(bench_);
    work();  // libraries load their kernels at first use
    wait();
    const int count = static_cast<int>(std::clamp(kRunMs / run_ms(work), 1.0, static_cast<double>(kMostCalls)));
    Calls calls{.work =
                    [work, count] {
                      for (int call = 0; call < count; ++call) work();
                    },
                .recording = nullptr,
                .count = count};
    if (recorded) calls.recording = device_->record(calls.work);
    return calls;
  }
  double call_ms(const Calls& calls) {
    return run_ms(calls.recording ? Work([&] { calls.recording->run(); }) : calls.work) / calls.count;
  }
  double run_ms(const Work& work) {
    wait();
    const auto begin = BenchClock::now();
    work();
    wait();
    return ms_since(begin);
  }
  void wait() {
    done_->record();
    done_->wait();
  }

  std::unique_ptr<Device> device_;
  Storage storage_;
  Workbench bench_;
  std::unique_ptr<Event> done_;
};

}  // namespace

bool OpsBench::is_memory_bound(const OpTiming& op) const { return op.bytes / copy_bytes_per_s > op.flops / gemm_flops; }

double OpsBench::bound_ms(const OpTiming& op) const {
  return 1e3 * std::max(op.bytes / copy_bytes_per_s, op.flops / gemm_flops);
}

OpsBench bench_ops(const RunConfig& run, const std::string& only) {
  const auto probe = make_device(device_options(run));
  const OpCases cases = op_cases(probe->ops(), /*full_size=*/probe->memory_use().has_value(), format_of(run));
  std::vector<OpCase> chosen = cases.all;
  std::erase_if(chosen, [&](const OpCase& one) { return one.name.find(only) == std::string::npos; });
  if (chosen.empty()) {
    std::vector<std::string> names;
    for (const OpCase& one : cases.all) {
      if (std::ranges::find(names, one.name) == names.end()) names.push_back(one.name);
    }
    throw usage_error(fmt::format("--only {}: no operation has that in its name", only),
                      fmt::format("give a part of one of these names:\n  {}", fmt::join(names, "\n  ")));
  }
  std::vector<OpCase> needed = {cases.copy, cases.gemm};
  needed.insert(needed.end(), chosen.begin(), chosen.end());
  OperationTimer timer(run, needed);

  OpsBench bench;
  bench.device = timer.device().description();
  bench.software = timer.device().software();
  const OpTiming copy = timer.time_unrecorded(needed[0]), gemm = timer.time_unrecorded(needed[1]);
  bench.copy_bytes_per_s = copy.bytes / (1e-3 * copy.ms);
  bench.gemm_flops = gemm.flops / (1e-3 * gemm.ms);
  for (const OpCase& one : chosen) bench.ops.push_back(timer.time(one));
  return bench;
}

}  // namespace nmoe
