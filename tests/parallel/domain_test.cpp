// Sums over domains, as operations of a device, and how they are divided. NMOE_TEST_DEVICE: CPUs, by way of the host,
// or a GPU for each rank.
#include "parallel/domain.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "parallel/processes.h"
#include "parallel/rank_values.h"
#include "support/errors.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

using test::values_of;
using namespace std::chrono_literals;

bool on_cpu() { return std::string_view(NMOE_TEST_DEVICE) == "cpu"; }

StoragePlan some_memory() {
  StoragePlan plan;
  for (const ArenaKind kind :
       {ArenaKind::kScratch, ArenaKind::kStepState, ArenaKind::kPeerWindow, ArenaKind::kPeerFlags}) {
    plan.set(kind, 16 << 20);
  }
  return plan;
}

// A rank with memory and a domain.
struct Member {
  explicit Member(Communicator& ranks, std::chrono::milliseconds patience = 20s)
      : memory(RankMemory::make(
            {.kind = NMOE_TEST_DEVICE, .index = on_cpu() ? 0 : static_cast<int>(ranks.index()), .num_threads = 1},
            some_memory(), ranks)),
        device(*memory->device),
        domain({device, ranks}, memory->storage, patience) {}

  template <class T>
  Tensor put(const std::vector<T>& values) {
    const Tensor tensor =
        memory->storage[ArenaKind::kStepState].allocate(DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
    if (!values.empty()) device.upload(tensor, values.data());
    return tensor;
  }
  template <class T>
  std::vector<T> get(Tensor tensor) {
    std::vector<T> values(static_cast<size_t>(tensor.num_elements()));
    if (!values.empty()) device.download(values.data(), tensor);
    return values;
  }

  std::shared_ptr<RankMemory> memory;
  Device& device;
  Domain domain;
};

struct Layout {
  int64_t processes, ranks;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.ranks << " on " << layout.processes; }

class DomainTest : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    try {
      make_device({.kind = NMOE_TEST_DEVICE, .index = on_cpu() ? 0 : static_cast<int>(GetParam().ranks) - 1});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, DomainTest, ::testing::Values(Layout{2, 2}, Layout{2, 4}, Layout{4, 4}));

// Of the ranks with this one's index in their domains, in the order of domains.
template <class T>
std::vector<T> sum_of_counterparts(int64_t processes, int64_t each, int64_t index, int64_t size) {
  std::vector<T> sum = values_of<T>(index, size);
  for (int64_t domain = 1; domain < processes; ++domain) {
    const std::vector<T> values = values_of<T>(domain * each + index, size);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

// Numbers as BF16, to nearest.
std::vector<uint16_t> halves_of(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  narrow(values.data(), DType::kBF16, halves.data(), halves.size());
  return halves;
}

// Widened, added in F32 in the order of domains, and rounded once.
TEST_P(DomainTest, SumsAcrossOfHalvesAreRoundedOnce) {
  const auto [processes, count] = GetParam();
  const int64_t each = count / processes;
  for (const auto& error : test::run_processes(processes, count, 60s, [&, p = processes](Communicator& ranks) {
         Member member(ranks);
         const int64_t index = ranks.index() % each;
         for (const int64_t size : {int64_t{1}, 31 + index, int64_t{40'011}, int64_t{1 << 20}}) {
           std::vector<float> expected(static_cast<size_t>(size)), widened(expected.size());
           for (int64_t domain = 0; domain < p; ++domain) {
             const std::vector<uint16_t> halves = halves_of(values_of<float>(domain * each + index, size));
             widen(DType::kBF16, halves.data(), widened.data(), widened.size());
             for (size_t i = 0; i < expected.size(); ++i) expected[i] += widened[i];
           }
           const std::vector<uint16_t> mine = halves_of(values_of<float>(ranks.index(), size));
           const Tensor sum = member.memory->storage[ArenaKind::kStepState].allocate(DType::kBF16, {std::ssize(mine)});
           member.device.upload(sum, mine.data());
           member.domain.shard_replicas().sum(member.device.ops(), std::span(&sum, 1));
           std::vector<uint16_t> found(mine.size());
           member.device.download(found.data(), sum);
           EXPECT_EQ(found, halves_of(expected)) << size;
         }
         ranks.barrier();
       })) {
    EXPECT_FALSE(error.has_value()) << error->what();
  }
}

// Enqueued directly, and recorded and run again.
TEST_P(DomainTest, SumsAcrossAreInTheOrderOfDomains) {
  const auto [processes, count] = GetParam();
  const int64_t each = count / processes;
  for (const auto& error : test::run_processes(processes, count, 60s, [&, p = processes](Communicator& ranks) {
         Member member(ranks);
         const int64_t rank = ranks.index(), index = rank % each;
         // Ranks of a domain may have tensors of different sizes.
         const int64_t sizes[] = {0, 1, 31 + index, 40'011};
         std::vector<Tensor> tensors;
         const auto fill = [&] {
           size_t at = 0;
           for (const int64_t size : sizes) {
             member.device.upload(tensors[at++], values_of<float>(rank, size).data());
             member.device.upload(tensors[at++], values_of<double>(rank, size).data());
             member.device.upload(tensors[at++], values_of<int32_t>(rank, size).data());
           }
         };
         for (const int64_t size : sizes) {
           tensors.push_back(member.put(values_of<float>(rank, size)));
           tensors.push_back(member.put(values_of<double>(rank, size)));
           tensors.push_back(member.put(values_of<int32_t>(rank, size)));
         }
         const auto work = [&] { member.domain.shard_replicas().sum(member.device.ops(), tensors); };
         const auto expect_sums = [&] {
           size_t at = 0;
           for (const int64_t size : sizes) {
             EXPECT_EQ(member.get<float>(tensors[at++]), sum_of_counterparts<float>(p, each, index, size));
             EXPECT_EQ(member.get<double>(tensors[at++]), sum_of_counterparts<double>(p, each, index, size));
             EXPECT_EQ(member.get<int32_t>(tensors[at++]), sum_of_counterparts<int32_t>(p, each, index, size));
           }
         };
         work();
         expect_sums();
         const auto recording = member.device.record(work);
         for (int round = 0; round < 2; ++round) {
           fill();
           recording->run();
           expect_sums();
         }
         ranks.barrier();
       })) {
    EXPECT_FALSE(error.has_value()) << error->what();
  }
}

// Whoever has the same experts, or updates the same part of a weight, adds up; the others of its process do not.
TEST_P(DomainTest, TheGroupsOfDevicesAreThoseOfTheMesh) {
  const auto [processes, count] = GetParam();
  const int64_t each = count / processes;
  for (const auto& error : test::run_processes(processes, count, 60s, [&, p = processes](Communicator& ranks) {
         Member member(ranks);
         const Domain& domain = member.domain;
         const Mesh mesh(ranks);
         const auto expect_same = [](const auto& devices, const Communicator& hosts) {
           EXPECT_EQ(devices.index(), hosts.index());
           EXPECT_EQ(devices.count(), hosts.count());
           EXPECT_EQ(devices.alone(), hosts.count() == 1);
         };
         expect_same(domain.experts(), mesh.experts());
         expect_same(domain.expert_data(), mesh.expert_data());
         expect_same(domain.shards(), mesh.shards());
         expect_same(domain.shard_replicas(), mesh.shard_replicas());
         const int64_t index = ranks.index() % each;
         const Tensor shard = member.put(values_of<float>(ranks.index(), 31)),
                      expert = member.put(values_of<float>(ranks.index(), 7));
         domain.sum_replicas(member.device.ops(), std::span(&shard, 1), std::span(&expert, 1));
         EXPECT_EQ(member.get<float>(shard), sum_of_counterparts<float>(p, each, index, 31));
         EXPECT_EQ(member.get<float>(expert), sum_of_counterparts<float>(p, each, index, 7));
         ranks.barrier();
       })) {
    EXPECT_FALSE(error.has_value()) << error->what();
  }
}

// One throws while the others wait for it in a sum: they end, with its reason.
TEST_P(DomainTest, ARankThatFailsEndsTheSumsOfOthers) {
  const auto [processes, count] = GetParam();
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = test::run_processes(processes, count, 60s, [&](Communicator& ranks) {
    Member member(ranks);
    const Tensor tensor = member.put(values_of<float>(ranks.index(), 1000));
    member.domain.shard_replicas().sum(member.device.ops(), std::span(&tensor, 1));
    member.get<float>(tensor);
    ranks.barrier();  // none is still in the first sum
    if (ranks.index() == 1) throw runtime_error("no more", "");
    try {
      member.domain.shard_replicas().sum(member.device.ops(), std::span(&tensor, 1));
      member.get<float>(tensor);
    } catch (const std::exception&) {
      member.domain.check();
      throw;
    }
    member.domain.check();
    ranks.barrier();
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_TRUE(test::contains(error->what(), "no more"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

// One dies between two sums of a step while the others' recordings of both are running: in sums over domains, and in
// sums over the ranks of one. None takes what there is for a sum.
TEST_P(DomainTest, ARankThatDiesInsideARecordedSumEndsThoseOfOthers) {
  const auto [processes, count] = GetParam();
  const int64_t each = count / processes;
  for (const bool across : {true, false}) {
    if (!across && each == 1) continue;
    SCOPED_TRACE(across ? "over domains" : "over the ranks of one");
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<int> trusted = 0;
    const auto errors = test::run_processes(processes, count, 60s, [&](Communicator& ranks) {
      Member member(ranks);
      const std::array tensors = {member.put(values_of<float>(ranks.index(), 1000)),
                                  member.put(values_of<float>(ranks.index(), 200'000))};
      const auto sum = [&](const Tensor& tensor) {
        if (across) {
          member.domain.shard_replicas().sum(member.device.ops(), std::span(&tensor, 1));
        } else {
          member.domain.shards().all_reduce_sum(member.device.ops(), std::span(&tensor, 1));
        }
      };
      for (const Tensor& tensor : tensors) sum(tensor);  // libraries load kernels on first use
      member.get<float>(tensors[1]);
      const bool dies = ranks.index() == 1,
                 waits = across ? ranks.index() % each == 1 % each : ranks.index() / each == 1 / each;
      const auto recording = member.device.record([&] {
        sum(tensors[0]);
        if (!dies) sum(tensors[1]);
      });
      ranks.barrier();
      if (dies) {
        recording->run();
        member.get<float>(tensors[0]);
        throw runtime_error("no more", "");
      }
      try {
        recording->run();
        member.get<float>(tensors[1]);
      } catch (const std::exception&) {
        member.domain.check();
        throw;
      }
      member.domain.check();
      if (waits) ++trusted;
      ranks.barrier();
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error.has_value());
      EXPECT_TRUE(test::contains(error->what(), "no more")) << error->what();
    }
    EXPECT_EQ(trusted, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  }
}

// Every element is in one part of one piece.
TEST(AcrossRounds, CoverEachElementOnce) {
  std::byte memory{};
  const Tensor tensors[] = {{&memory, DType::kF32, {1000}},
                            {&memory, DType::kF64, {0}},
                            {&memory, DType::kI32, {3}},
                            {&memory, DType::kF64, {777}},
                            {&memory, DType::kF32, {5000}}};
  for (const int64_t room : {128, 1000, 4096, 1 << 20}) {
    std::vector<int64_t> next(std::size(tensors), 0);
    for (const AcrossRound& round : across_rounds(tensors, room)) {
      int64_t bytes = 0;
      for (const AcrossPiece& piece : round) {
        EXPECT_EQ(piece.begin, next[piece.tensor]);
        next[piece.tensor] = piece.end;
        bytes += (piece.end - piece.begin) * piece.element_bytes;
        for (const int64_t domains : {1, 2, 3, 7}) {
          EXPECT_EQ(piece.edge(0, domains), piece.begin);
          EXPECT_EQ(piece.edge(domains, domains), piece.end);
          for (int64_t domain = 0; domain < domains; ++domain) {
            const int64_t size = piece.edge(domain + 1, domains) - piece.edge(domain, domains);
            EXPECT_GE(size, 0);
            EXPECT_LE(size * piece.element_bytes, piece.part_room(domains));
            EXPECT_EQ((piece.edge(domain, domains) - piece.begin) * piece.element_bytes % 16, 0);
          }
        }
      }
      EXPECT_LE(bytes, room);
    }
    for (size_t i = 0; i < std::size(tensors); ++i) EXPECT_EQ(next[i], tensors[i].num_elements());
  }
}

}  // namespace
}  // namespace nmoe
