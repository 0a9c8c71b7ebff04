#include "ops/saved_codes.h"

#include <gtest/gtest.h>

namespace nmoe::test {
namespace {

class CpuSavedCodes : public ::testing::Test, public AnsweringDevice {
 protected:
  Ops& answering_ops() override { return *device_; }
  DType act() const override { return DType::kF32; }
  Tensor there(Tensor host, DType /*dtype*/) override { return host; }
  Tensor here(Tensor device) override { return device; }
  OperandRounding of_weight(OperandFormat format, Tensor /*w*/) override { return {.format = format}; }

  TensorPool pool_{DType::kF32};
  ReadyDevice device_ = cpu_device(DType::kF32);
};

TEST_F(CpuSavedCodes, StandForPreActivations) {
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    for (const int64_t hidden : {40, 128}) {
      for (const OperandFormat format : {OperandFormat::kAct, OperandFormat::kFp8, OperandFormat::kNvFp4}) {
        SCOPED_TRACE(hidden);
        expect_saved_codes(*this, pool_, kind, hidden, format);
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
