// Operations that call other libraries on the host, recorded into a CUDA graph: nothing may happen outside of the
// stream.
#include "ops/cuda/kernels/attention.h"
#include "ops/cuda/kernels/embedding.h"
#include "ops/cuda/kernels/muon.h"
#include "ops/cuda/optimizer_test.h"

namespace nmoe::test {
namespace {

class CudaCapture : public CudaOptimizerTest {
 protected:
  // Records what `work` enqueues, calls `between`, and runs the recording `times` times.
  template <class Work, class Between>
  void record_and_run(const Work& work, const Between& between, int times) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    NMOE_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    work();
    NMOE_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    NMOE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    between();
    for (int i = 0; i < times; ++i) NMOE_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
    NMOE_CUDA_CHECK(cudaStreamSynchronize(stream_));
    NMOE_CUDA_CHECK(cudaGraphExecDestroy(executable));
    NMOE_CUDA_CHECK(cudaGraphDestroy(graph));
  }
};

TEST_F(CudaCapture, EmbeddingGradientsAreThoseOfDirectCalls) {
  auto ctx = context();
  for (const int64_t tokens : {int64_t{100}, int64_t{300'000}}) {  // sorted by one block, by many
    const Tensor ids = up(pool_.random_ints({tokens}, 1'000)), dy = up(normal({tokens, 16}), DType::kBF16);
    const Tensor direct = up(pool_.zeros({1'000, 16})), recorded = up(pool_.zeros({1'000, 16}));
    for (int i = 0; i < 2; ++i) cuda::embedding_backward(ctx, ids, dy, direct);
    record_and_run([&] { cuda::embedding_backward(ctx, ids, dy, recorded); }, [] {}, 2);
    EXPECT_TRUE(same_bits(down(recorded), down(direct))) << tokens;
  }
}

// Rates are read when the recording runs, not when it is made.
TEST_F(CudaCapture, MuonReadsItsRatesWhenItRuns) {
  auto ctx = context();
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
  cuda::muon_step(ctx, args(direct, up(f64({0.1}))));
  const Tensor wanted = f64({0.1});
  const auto set_rates = [&] {
    NMOE_CUDA_CHECK(cudaMemcpy(rates.raw(), wanted.raw(), sizeof(double), cudaMemcpyHostToDevice));
  };
  record_and_run([&] { cuda::muon_step(ctx, step); }, set_rates, 1);
  EXPECT_TRUE(same_bits(master(recorded), master(direct)));
}

// Documents are read when the recording runs, not when it is made.
TEST_F(CudaCapture, AttentionReadsItsDocumentsWhenItRuns) {
  auto ctx = context();
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
    cuda::attention_forward(ctx, {a.shape, a.q, a.k, a.v, a.out, a.lse});
    cuda::attention_backward(ctx, a);
  };
  const AttentionBackward direct = args(up(final_bounds)), recorded = args(changing);
  both(direct);
  const auto change = [&] {
    NMOE_CUDA_CHECK(cudaMemcpy(changing.raw(), final_bounds.raw(), static_cast<size_t>(changing.num_bytes()),
                               cudaMemcpyHostToDevice));
  };
  record_and_run([&] { both(recorded); }, change, 2);
  EXPECT_TRUE(same_bits(down(recorded.out), down(direct.out)));
  EXPECT_TRUE(same_bits(down(recorded.lse), down(direct.lse)));
  EXPECT_TRUE(same_bits(down(recorded.dq), down(direct.dq)));
  EXPECT_TRUE(same_bits(down(recorded.dk), down(direct.dk)));
  EXPECT_TRUE(same_bits(down(recorded.dv), down(direct.dv)));
}

}  // namespace
}  // namespace nmoe::test
