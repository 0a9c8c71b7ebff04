// Attention to documents in pieces on the GPU: against the CPU, and the same bits however documents are cut and where
// they lie. Needs a GPU: label gpu.
#include "ops/cuda/cuda_test.h"
#include "ops/tree_problem.h"

namespace nmoe::test {
namespace {

class CudaTreeAttention : public CudaTest {
 protected:
  TreeAttention up(const TreeAttention& host, DType act) {
    TreeAttention device = host;
    for (Tensor* x : {&device.q, &device.k, &device.v, &device.out}) *x = CudaTest::up(*x, act);
    for (Tensor* x : {&device.positions, &device.bounds, &device.parents}) *x = CudaTest::up(*x);
    if (host.sinks.defined()) device.sinks = CudaTest::up(host.sinks);
    return device;
  }
  static void round(const TreeAttention& args, DType act) {
    for (const Tensor& x : {args.q, args.k, args.v}) rounded(x, act);
  }
  Tensor result(const TreeAttention& device) {
    run([&](Ops& ops) { ops.tree_attention(device); });
    return down(device.out);
  }
};

// BF16: probabilities are rounded (2^-9 of each) before they multiply, results once more.
TEST_F(CudaTreeAttention, MatchesTheCpu) {
  for (const TreeCase& c : tree_cases()) {
    for (const DType act : kActDTypes) {
      SCOPED_TRACE(fmt::format("{}, {}", c.name, dtype_name(act)));
      const TreeAttention host = tree_problem(pool_, c);
      round(host, act);
      cpu().tree_attention(host);
      const Tensor out = result(up(host, act));
      EXPECT_LE(worst_difference(out, host.out), act == DType::kF32 ? 2e-5 : 3e-2);  // of values of up to 4
    }
  }
}

TEST_F(CudaTreeAttention, HasTheBitsOfWholeDocuments) {
  for (const TreeCase& c : tree_cases()) {
    for (const DType act : kActDTypes) {
      for (const int64_t before : {1, 37, 64}) {
        SCOPED_TRACE(fmt::format("{}, {}, behind {} rows", c.name, dtype_name(act), before));
        const TreeAttention folded = tree_problem(pool_, c);
        const TreeCase::Unfolded unfolded = c.unfolded(before);
        const Tensor flat = result(up(unfolded_problem(pool_, c, folded, unfolded), act));
        EXPECT_EQ(values(picked_rows(pool_, flat, unfolded.places)), values(result(up(folded, act))));
      }
    }
  }
}

TEST_F(CudaTreeAttention, TakesQueriesKeysAndValuesApart) {
  for (const DType act : kActDTypes) {
    TreeAttention host = tree_problem(pool_, tree_cases()[3]);
    const Tensor expected = result(up(host, act));
    host.q = pool_.apart(host.q, 8), host.k = pool_.apart(host.k, 16), host.v = pool_.apart(host.v, 24);
    EXPECT_EQ(values(result(up(host, act))), values(expected));
  }
}

}  // namespace
}  // namespace nmoe::test
