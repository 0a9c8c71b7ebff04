#include "ops/known_answers.h"

namespace nmoe::test {
namespace {

class CpuKnownAnswers : public ::testing::TestWithParam<Producer>, public AnsweringDevice {
 protected:
  Ops& answering_ops() override { return *device_; }
  DType act() const override { return DType::kF32; }
  Tensor there(Tensor host, DType) override { return host; }
  Tensor here(Tensor device) override { return device; }
  OperandRounding of_weight(OperandFormat format, Tensor) override { return {.format = format}; }

  TensorPool pool_{DType::kF32};
  ReadyDevice device_ = cpu_device(DType::kF32);
};

TEST_P(CpuKnownAnswers, AreMade) { expect_known_answers(*this, pool_, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Producers, CpuKnownAnswers, ::testing::ValuesIn(kProducers), producer_name);

}  // namespace
}  // namespace nmoe::test
