#include "parallel/communicator.h"

namespace nmoe {
namespace {

// A rank, as far as calls go that need no others.
class LoneRank : public Communicator {
 public:
  LoneRank(int64_t index, int64_t count) : index_(index), count_(count) {}
  int64_t index() const override { return index_; }
  int64_t count() const override { return count_; }
  Communicator& domain() override { return *this; }
  void barrier() override {}
  void check() override {}
  void fail(const std::exception_ptr&) override {}
  void set_patience(std::chrono::milliseconds) override {}
  std::shared_ptr<void> on_failure(std::function<void()>) override { return nullptr; }
  void keep(std::shared_ptr<void>) override {}
  std::vector<std::string> all_gather(std::string_view bytes) override { return {std::string(bytes)}; }
  void all_reduce_sum(std::span<const Tensor>, Lane) override {}
  void all_reduce_sum_across(std::span<const Tensor>, Lane) override {}
  void broadcast(std::span<const Tensor>, Lane) override {}

 private:
  int64_t index_, count_;
};

class UnmetRanks final : public LoneRank {
 public:
  UnmetRanks(int64_t index, int64_t count, int64_t in_domain) : LoneRank(index, count), domain_(index, in_domain) {}
  Communicator& domain() override { return domain_; }

 private:
  LoneRank domain_;
};

}  // namespace

Communicator& single_rank() {
  static LoneRank communicator(0, 1);
  return communicator;
}

std::unique_ptr<Communicator> make_unmet_ranks(int64_t index, int64_t count, int64_t in_domain) {
  return std::make_unique<UnmetRanks>(index, count, in_domain);
}

}  // namespace nmoe
