#include "ops/saved_codes.h"

#include "ops/cuda/rounded_experts.h"

namespace nmoe::test {
namespace {

class CudaSavedCodes : public CudaRoundedTest, public AnsweringDevice {
 protected:
  Ops& answering_ops() override { return gpu(); }
  DType act() const override { return DType::kBF16; }
  Tensor there(Tensor host, DType dtype) override { return up(host, dtype); }
  Tensor here(Tensor device) override { return down(device); }
  OperandRounding of_weight(OperandFormat format, Tensor w) override {
    return format == OperandFormat::kFp8 ? rounding(w) : OperandRounding{.format = format};
  }
};

// In epilogues of products and behind them, of widths that are whole blocks and others.
TEST_F(CudaSavedCodes, StandForPreActivations) {
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    for (const int64_t hidden : {128, 384, 112}) {
      for (const OperandFormat format : {OperandFormat::kAct, OperandFormat::kFp8}) {
        SCOPED_TRACE(fmt::format("{} hidden units, format {}", hidden, static_cast<int>(format)));
        expect_saved_codes(*this, pool_, kind, hidden, format);
        tensors_.rewind(0);
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
