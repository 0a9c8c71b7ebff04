#include "parallel/communicator.h"

namespace nmoe {
namespace {

class SingleRank final : public Communicator {
 public:
  int64_t index() const override { return 0; }
  int64_t count() const override { return 1; }
  Communicator& domain() override { return *this; }
  void barrier() override {}
  std::vector<std::string> all_gather(std::string_view bytes) override { return {std::string(bytes)}; }
  void all_reduce_sum(std::span<const Tensor>, Lane) override {}
  void broadcast(std::span<const Tensor>, Lane) override {}
};

}  // namespace

Communicator& single_rank() {
  static SingleRank communicator;
  return communicator;
}

}  // namespace nmoe
