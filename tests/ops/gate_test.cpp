#include <cmath>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

double gate_by_definition(GateFunction function, double g) {
  const double open = 1 / (1 + std::exp(-g));
  return function == GateFunction::kSilu ? g * open : open;
}

TEST(Gate, MatchesTheDefinitionAndFiniteDifferences) {
  for (const GateFunction function : {GateFunction::kSigmoid, GateFunction::kSilu}) {
    for (const DType real : {DType::kF64, DType::kF32}) {
      TensorPool pool(real);
      const ReadyDevice ops = cpu_device(real, 3);
      const Tensor x = pool.normal({70, 9}), gate = pool.apart(pool.normal({70, 9}, 3.0), 2), y = pool.full({70, 9}, 7);
      const Tensor dy = pool.normal({70, 9}), dx = pool.full({70, 9}, 7), dgate = pool.apart(pool.full({70, 9}, 7), 1);
      set(gate, 0, 800.0);
      set(gate, 1, -800.0);
      const auto run = [&] { ops->gate_forward({function, x, gate, y}); };
      run();
      std::vector<double> expected;
      for (int64_t i = 0; i < x.num_elements(); ++i) {
        expected.push_back(get(x, i) * gate_by_definition(function, get(gate, i)));
      }
      EXPECT_TRUE(near(y, expected, real == DType::kF64 ? 1e-13 : 1e-6));
      ops->gate_backward({function, x, gate, dy, dx, dgate});
      for (const double each : values(dgate)) EXPECT_TRUE(std::isfinite(each));
      const std::vector<double> elsewhere = values(dx);
      ops->gate_backward({function, x, gate, dy, dy, dgate});  // in the storage of dy
      EXPECT_EQ(values(dy), elsewhere);
    }
    TensorPool pool(DType::kF64);
    const ReadyDevice ops = cpu_device(DType::kF64, 1);
    const Tensor x = pool.normal({3, 5}), gate = pool.normal({3, 5}, 2.0), y = pool.zeros({3, 5});
    const Tensor dy = pool.normal({3, 5}), dx = pool.zeros({3, 5}), dgate = pool.zeros({3, 5});
    const auto loss = [&] {
      ops->gate_forward({function, x, gate, y});
      return dot(y, dy);
    };
    ops->gate_backward({function, x, gate, dy, dx, dgate});
    EXPECT_TRUE(gradient_matches(loss, x, dx));
    EXPECT_TRUE(gradient_matches(loss, gate, dgate));
  }
}

}  // namespace
}  // namespace nmoe::test
