#include "ops/checked/checked_device.h"

#include <gtest/gtest.h>

#include "support/tensors.h"

namespace nmoe::test {
namespace {

// The CPU, but that pre-activations, their gradients, and activations that are not kept, are nothing that anybody
// should read.
class SpoilingDevice final : public checked::WrappedDevice {
 public:
  explicit SpoilingDevice(Device& device) : WrappedDevice(device), ops_(*this) {}

 private:
  class SpoilingOps final : public Ops {
   public:
    explicit SpoilingOps(SpoilingDevice& owner)
        : Ops(owner, Lane::kCompute, Arithmetic::kFastest), ops_(owner.wrapped().ops()) {}
    DType compute_dtype() const override { return ops_.compute_dtype(); }
    WeightRounding weight_rounding(OperandFormat format) const override { return ops_.weight_rounding(format); }
#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void name(const Arguments& args) override { \
    ops_.name(args);                          \
    if (!counting()) spoil(args);             \
  }
    NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

   private:
    void spoil(const GroupedActivationBackward& args) {
      ops_.fill({args.dpre, 1e9});
      if (args.pre_codes.defined()) ops_.fill({args.pre, 1e9});
    }
    void spoil(const GroupedActivationForward& args) { ops_.fill({args.pre, 1e9}); }
    void spoil(const ActivationBackward& args) { ops_.fill({args.pre, 1e9}); }
    void spoil(const ActivationForward& args) { ops_.fill({args.h, 1e9}); }
    void spoil(const LinearActivationForward& args) {
      ops_.fill({args.h, 1e9});
      if (args.pre_codes.defined()) ops_.fill({args.pre, 1e9});
    }
    template <class Arguments>
    void spoil(const Arguments&) {}
    Ops& ops_;
  };
  Ops& lane_ops(Lane, Arithmetic) override { return ops_; }
  SpoilingOps ops_;
};

// Codes of columns stand for the gradients of pre-activations, which a device need not write then, unless it is to
// keep them.
TEST(CheckedDevice, LeavesOpenWhatCodesReplace) {
  const std::unique_ptr<Device> cpu = make_device({.kind = "cpu", .num_threads = 1});
  cpu->scratch(Lane::kCompute).reserve(cpu->memory(), 1 << 20);
  SpoilingDevice spoiling(*cpu);
  checked::CheckedDevice checked(spoiling);
  TensorPool pool(DType::kF32);
  constexpr int64_t E = 2, R = 150, D = 24, F = 40, W = 2 * F, kBlocks = R / 128 + E;
  GroupedActivationBackward args{.dy = pool.normal({R, D}),
                                 .w = pool.normal({E, D, F}),
                                 .offsets = pool.ints({E + 1}, {0, 140, R}),
                                 .pre = pool.normal({R, W}),
                                 .dpre = pool.zeros({R, W}),
                                 .rounding = {.format = OperandFormat::kFp8}};
  EXPECT_THROW(checked.ops().grouped_activation_backward(args), checked::MismatchError);
  args.dpre_codes = {.values = pool.zeros(DType::kU8, {R, W}), .scales = pool.zeros(DType::kU8, {R, 1})};
  args.dpre_columns = {.values = pool.zeros(DType::kU8, {kBlocks, W, 128}),
                       .scales = pool.zeros(DType::kU8, {kBlocks, W})};
  EXPECT_NO_THROW(checked.ops().grouped_activation_backward(args));
  args.pre_codes = {.values = pool.zeros(DType::kU8, {R, W}), .scales = pool.zeros(DType::kU8, {R, 1})};
  EXPECT_NO_THROW(checked.ops().grouped_activation_backward(args));
  args.keeps_dpre = true;
  EXPECT_THROW(checked.ops().grouped_activation_backward(args), checked::MismatchError);
}

TEST(CheckedDevice, LeavesOpenWhatIsNotKept) {
  const std::unique_ptr<Device> cpu = make_device({.kind = "cpu", .num_threads = 1});
  cpu->scratch(Lane::kCompute).reserve(cpu->memory(), 1 << 20);
  SpoilingDevice spoiling(*cpu);
  checked::CheckedDevice checked(spoiling);
  TensorPool pool(DType::kF32);
  constexpr int64_t T = 9, D = 24, F = 40;
  const RowCodes codes{.values = pool.zeros(DType::kU8, {T, F}), .scales = pool.zeros(DType::kU8, {T, 1})};
  const Tensor x = pool.normal({T, D}), w = pool.normal({2 * F, D}), pre = pool.normal({T, 2 * F}),
               h = pool.zeros({T, F});
  for (const bool keeps : {true, false}) {
    const auto activate = [&] {
      checked.ops().activation_forward({.pre = pre, .h = h, .h_codes = codes, .keeps_h = keeps});
    };
    const auto multiply = [&] {
      checked.ops().linear_activation_forward({.x = x, .w = w, .pre = pre, .h = h, .h_codes = codes, .keeps_h = keeps});
    };
    if (keeps) {
      EXPECT_THROW(activate(), checked::MismatchError);
      EXPECT_THROW(multiply(), checked::MismatchError);
    } else {
      EXPECT_NO_THROW(activate());
      EXPECT_NO_THROW(multiply());
    }
  }
}

// Nor what codes of pre-activations replace, in either direction.
TEST(CheckedDevice, LeavesOpenWhatWaitsAsCodes) {
  const std::unique_ptr<Device> cpu = make_device({.kind = "cpu", .num_threads = 1});
  cpu->scratch(Lane::kCompute).reserve(cpu->memory(), 1 << 20);
  SpoilingDevice spoiling(*cpu);
  checked::CheckedDevice checked(spoiling);
  TensorPool pool(DType::kF32);
  constexpr int64_t E = 2, R = 30, D = 24, F = 40, W = 2 * F;
  const Tensor offsets = pool.ints({E + 1}, {0, 12, R});
  GroupedActivationForward forward{.x = pool.normal({R, D}),
                                   .w = pool.normal({E, W, D}),
                                   .offsets = offsets,
                                   .pre = pool.zeros({R, W}),
                                   .h = pool.zeros({R, F})};
  EXPECT_THROW(checked.ops().grouped_activation_forward(forward), checked::MismatchError);
  forward.pre_codes = {.values = pool.zeros(DType::kU8, {R, W}), .scales = pool.zeros(DType::kU8, {R, 1})};
  EXPECT_NO_THROW(checked.ops().grouped_activation_forward(forward));
  EXPECT_NO_THROW(checked.ops().linear_activation_forward(
      {.x = pool.normal({R, D}),
       .w = pool.normal({W, D}),
       .pre = pool.zeros({R, W}),
       .h = pool.zeros({R, F}),
       .h_codes = {.values = pool.zeros(DType::kU8, {R, F}), .scales = pool.zeros(DType::kU8, {R, 1})},
       .keeps_h = false,
       .pre_codes = forward.pre_codes}));
  ActivationBackward backward{.pre = pool.normal({R, W}), .dh = pool.normal({R, F}), .dpre = pool.zeros({R, W})};
  EXPECT_THROW(checked.ops().activation_backward(backward), checked::MismatchError);
  backward.pre_codes = forward.pre_codes;
  EXPECT_NO_THROW(checked.ops().activation_backward(backward));
  backward.dpre = backward.pre;
  EXPECT_THROW(checked.ops().activation_backward(backward), checked::MismatchError);
}

// Where the CPU has an infinity, so must the device.
TEST(CheckedDevice, NothingIsCloseToAnInfinity) {
  const std::unique_ptr<Device> cpu = make_device({.kind = "cpu", .num_threads = 1});
  cpu->scratch(Lane::kCompute).reserve(cpu->memory(), 1 << 20);
  SpoilingDevice spoiling(*cpu);
  checked::CheckedDevice checked(spoiling);
  TensorPool pool(DType::kF32);
  const ActivationForward forward{.pre = pool.zeros({4, 16}), .h = pool.zeros({4, 8})};
  cpu->ops().fill({forward.pre, 1e30});
  EXPECT_THROW(checked.ops().activation_forward(forward), checked::MismatchError);
}

}  // namespace
}  // namespace nmoe::test
