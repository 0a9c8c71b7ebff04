// The answers of every producer on Hopper. Its products sum in fp32 in other orders than the CPU's, and of one value
// that is not zero alike; results in BF16 are rounded once more.
#include "ops/known_answers.h"

#include "ops/cuda/rounded_experts.h"

namespace nmoe::test {
namespace {

class CudaKnownAnswers : public CudaRoundedTest,
                         public ::testing::WithParamInterface<Producer>,
                         public AnsweringDevice {
 protected:
  Ops& answering_ops() override { return gpu(); }
  DType act() const override { return DType::kBF16; }
  Tensor there(Tensor host, DType dtype) override { return up(host, dtype); }
  Tensor here(Tensor device) override { return down(device); }
  OperandRounding of_weight(OperandFormat format, Tensor w) override {
    return format == OperandFormat::kFp8 ? rounding(w) : OperandRounding{.format = format};
  }
};

TEST_P(CudaKnownAnswers, AreMade) { expect_known_answers(*this, pool_, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Producers, CudaKnownAnswers, ::testing::ValuesIn(kProducers), producer_name);

}  // namespace
}  // namespace nmoe::test
