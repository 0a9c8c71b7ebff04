#include "parallel/communicator.h"

namespace nmoe {
namespace {

// Rank `index` of `count`, as far as calls go that need no others.
class NullCommunicator : public Communicator {
 public:
  NullCommunicator(int64_t index, int64_t count) : index_(index), count_(count) {}
  int64_t index() const override { return index_; }
  int64_t count() const override { return count_; }
  Communicator& process() override { return *this; }
  Communicator& counterparts() override { return single_rank(); }
  void barrier() override {}
  void check() override {}
  void fail(const std::exception_ptr&) override {}
  void set_patience(std::chrono::milliseconds) override {}
  std::shared_ptr<void> on_failure(std::function<void()>) override { return nullptr; }
  void keep(std::shared_ptr<void>) override {}
  std::vector<std::string> all_gather(std::string_view bytes) override { return {std::string(bytes)}; }
  void all_reduce_sum(std::span<const Tensor>, Lane) override {}
  void broadcast(std::span<const Tensor>, Lane) override {}

 private:
  int64_t index_, count_;
};

// The same with groups that are smaller than the run.
class NullRanks final : public NullCommunicator {
 public:
  NullRanks(int64_t index, int64_t count, int64_t in_process)
      : NullCommunicator(index, count),
        process_(index % in_process, in_process),
        counterparts_(index / in_process, count / in_process) {}
  Communicator& process() override { return process_; }
  Communicator& counterparts() override { return counterparts_; }

 private:
  NullCommunicator process_, counterparts_;
};

}  // namespace

Communicator& single_rank() {
  static NullCommunicator communicator(0, 1);
  return communicator;
}

std::unique_ptr<Communicator> make_null_communicator(int64_t index, int64_t count, int64_t in_process) {
  return std::make_unique<NullRanks>(index, count, in_process);
}

}  // namespace nmoe
