// Operations that call other libraries on the host, recorded into a CUDA graph: nothing may happen outside of the
// stream.
#include "ops/cuda/optimizer_test.h"

namespace nmoe::test {
namespace {

class CudaCapture : public CudaOptimizerTest {
 protected:
  // Records what `work` enqueues, calls `between`, and runs the recording `times` times.
  template <class Work, class Between>
  void record_and_run(const Work& work, const Between& between, int times) {
    const auto recording = device_->record(work);
    between();
    for (int i = 0; i < times; ++i) recording->run();
    wait();
  }
};

TEST_F(CudaCapture, EmbeddingGradientsAreThoseOfDirectCalls) {
  for (const int64_t tokens : {int64_t{100}, int64_t{300'000}}) {  // sorted by one block, by many
    const Tensor ids = up(pool_.random_ints({tokens}, 1'000)), dy = up(normal({tokens, 16}), DType::kBF16);
    const Tensor direct = up(pool_.zeros({1'000, 16})), recorded = up(pool_.zeros({1'000, 16}));
    for (int i = 0; i < 2; ++i) gpu().embedding_backward({ids, dy, direct});
    record_and_run([&] { gpu().embedding_backward({ids, dy, recorded}); }, [] {}, 2);
    EXPECT_TRUE(same_bits(down(recorded), down(direct))) << tokens;
  }
}

// Rates are read when the recording runs, not when it is made.
TEST_F(CudaCapture, MuonReadsItsRatesWhenItRuns) {
  const Shape shape{3, 40, 72};
  const Tensor w = normal(shape), grad = up(normal(shape));
  const auto args = [&](const Weight& weights, Tensor rates) {
    MuonStep result;
    result.w = weights.w;
    result.low = weights.low;
    result.grad = grad;
    result.momentum = up(pool_.zeros(shape));
    result.grad_scale = up(f64({1}));
    result.rates = rates;
    return result;
  };
  const Weight direct = weight(w, DType::kBF16), recorded = weight(w, DType::kBF16);
  const Tensor rates = up(f64({1000}));
  const MuonStep step = args(recorded, rates);
  gpu().muon_step(args(direct, up(f64({0.1}))));
  const Tensor wanted = f64({0.1});
  const auto set_rates = [&] { device_->upload(rates, wanted.raw()); };
  record_and_run([&] { gpu().muon_step(step); }, set_rates, 1);
  EXPECT_TRUE(same_bits(master(recorded), master(direct)));
}

// Documents are read when the recording runs, not when it is made.
TEST_F(CudaCapture, AttentionReadsItsDocumentsWhenItRuns) {
  const int64_t B = 2, S = 200, H = 4, G = 2, Dk = 192, Dv = 128;
  const auto tensor = [&](Shape shape) { return up(normal(shape), DType::kBF16); };
  const auto empty = [&](Shape shape) { return up(pool_.zeros(shape), DType::kBF16); };
  const Tensor q = tensor({B * S, H, Dk}), k = tensor({B * S, G, Dk}), v = tensor({B * S, G, Dv});
  const Tensor dout = tensor({B * S, H, Dv}), changing = up(pool_.ints({5}, {0, 10, 200, 400, 400}));
  const Tensor final_bounds = pool_.ints({5}, {0, 200, 250, 333, 400});
  const auto args = [&](Tensor cu_seqlens) {
    AttentionBackward result;
    result.shape = {.num_seqs = B, .seq_len = S, .scale = 0.1, .window = 150, .cu_seqlens = cu_seqlens};
    result.q = q;
    result.k = k;
    result.v = v;
    result.out = empty({B * S, H, Dv});
    result.lse = up(pool_.zeros({B, H, S}));
    result.dout = dout;
    result.dq = empty(q.shape());
    result.dk = empty(k.shape());
    result.dv = empty(v.shape());
    return result;
  };
  const auto both = [&](const AttentionBackward& a) {
    gpu().attention_forward({a.shape, a.q, a.k, a.v, a.out, a.lse});
    gpu().attention_backward(a);
  };
  const AttentionBackward direct = args(up(final_bounds)), recorded = args(changing);
  both(direct);
  const auto change = [&] { device_->upload(changing, final_bounds.raw()); };
  record_and_run([&] { both(recorded); }, change, 2);
  EXPECT_TRUE(same_bits(down(recorded.out), down(direct.out)));
  EXPECT_TRUE(same_bits(down(recorded.lse), down(direct.lse)));
  EXPECT_TRUE(same_bits(down(recorded.dq), down(direct.dq)));
  EXPECT_TRUE(same_bits(down(recorded.dk), down(direct.dk)));
  EXPECT_TRUE(same_bits(down(recorded.dv), down(direct.dv)));
}

}  // namespace
}  // namespace nmoe::test
