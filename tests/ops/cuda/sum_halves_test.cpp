// Sums of BF16 over domains, on one GPU: what NCCL would have brought lies in its memory. Needs a GPU: label gpu.
#include "ops/cuda/kernels/ranks/sum_halves.h"

#include <bit>

#include "ops/cuda/cuda_test.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/peers.h"

namespace nmoe::test {
namespace {

class CudaSumHalves : public CudaTest {
 protected:
  // Elements [first, first + size) of values that are aligned, with others around them.
  static constexpr int64_t kAround = 16;
  Tensor around(int64_t size) { return tensors_.allocate(DType::kBF16, {size + 2 * kAround}); }
  static Tensor part(const Tensor& all, int64_t offset, int64_t size) {
    return all.rows(kAround + offset, kAround + offset + size);
  }
  void sum(std::span<const Tensor> values, const Tensor& target) {
    cuda::sum_halves(static_cast<cuda::CudaOps&>(gpu()).context(), values, target);
  }
};

// In the order of domains, rounded once, of sizes and from places that 16 bytes divide and not; into memory of its own,
// and into that of any domain. Nothing around it is written.
TEST_F(CudaSumHalves, AreThoseInFp32RoundedOnce) {
  int64_t num_once = 0;  // sums that rounding each addition would change
  for (const int64_t size : {1, 7, 8, 9, 2048, 2049, 100'003}) {
    for (const int64_t domains : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8}, kMaxPeers}) {
      if (domains == kMaxPeers && size > 2049) continue;
      for (const int64_t offset : {0, 1, 8}) {
        SCOPED_TRACE(fmt::format("{} elements of {} domains from {} on", size, domains, offset));
        const ArenaScope scope(tensors_);
        std::vector<Tensor> host, values;
        for (int64_t domain = 0; domain < domains; ++domain) {
          host.push_back(normal({size}, DType::kBF16, domain % 2 == 0 ? 1.0 : 30.0));
          if (domain == 2) set(host.back(), 0, INFINITY);
          const Tensor all = around(size);
          values.push_back(part(all, domain == domains / 2 ? offset : 0, size));
          gpu().copy({.source = up(host.back(), DType::kBF16), .destination = values.back()});
        }
        std::vector<float> expected(static_cast<size_t>(size));
        for (int64_t i = 0; i < size; ++i) {
          float total = host[0].data<float>()[i], often = total;
          for (int64_t domain = 1; domain < domains; ++domain) {
            const float more = host[static_cast<size_t>(domain)].data<float>()[i];
            total += more;
            often = bf16_to_float(float_to_bf16(often + more));
          }
          expected[static_cast<size_t>(i)] = bf16_to_float(float_to_bf16(total));
          num_once += expected[static_cast<size_t>(i)] != often ? 1 : 0;
        }
        const Tensor own = around(size);
        gpu().fill({.x = own, .value = 7.0});
        std::vector<Tensor> targets = {part(own, offset, size)};
        targets.push_back(values[static_cast<size_t>(domains / 2)]);  // the last, since it is then overwritten
        for (const Tensor& target : targets) {
          sum(values, target);
          wait();
          const Tensor made = down(target);
          for (int64_t i = 0; i < size; ++i) {
            ASSERT_EQ(std::bit_cast<uint32_t>(made.data<float>()[i]),
                      std::bit_cast<uint32_t>(expected[static_cast<size_t>(i)]))
                << "element " << i;
          }
        }
        const Tensor all = down(own);
        for (int64_t i = 0; i < all.num_elements(); ++i) {
          if (i >= kAround + offset && i < kAround + offset + size) continue;
          ASSERT_EQ(all.data<float>()[i], 7.0F) << "element " << i << " around";
        }
      }
    }
  }
  EXPECT_GT(num_once, 1000);
}

}  // namespace
}  // namespace nmoe::test
