#include "train/proof/self_test.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/checked/checked_device.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "train/proof/device_proof.h"

namespace nmoe {
namespace {

// The CPU, but for one operation: behind it an element of its result is another.
class BrokenDevice final : public checked::WrappedDevice {
 public:
  BrokenDevice(Device& device, const std::string& broken)
      : WrappedDevice(device),
        fastest_(*this, Arithmetic::kFastest, broken),
        invariant_(*this, Arithmetic::kBatchInvariant, broken) {}

 private:
  class BrokenOps final : public Ops {
   public:
    BrokenOps(BrokenDevice& owner, Arithmetic arithmetic, std::string broken)
        : Ops(owner, Lane::kCompute, arithmetic), ops_(owner.wrapped().ops(arithmetic)), broken_(std::move(broken)) {}
    DType compute_dtype() const override { return ops_.compute_dtype(); }
    WeightRounding weight_rounding(OperandFormat format) const override { return ops_.weight_rounding(format); }
#define NMOE_DEFINE_OVERRIDE(name, Arguments)             \
  void name(const Arguments& args) override {             \
    ops_.name(args);                                      \
    if (#name == broken_ && !counting()) break_one(args); \
  }
    NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

   private:
    static void break_one(const LinearForward& args) { args.y.data<float>()[0] += 1.0F; }
    static void break_one(const Quantize& args) { args.values.data<uint8_t>()[3] ^= 1; }
    static void break_one(const MlaCachedAttention& args) { args.out.data<float>()[1] += 1.0F; }
    static void break_one(const AdamWSteps& args) { args.all.back().m.data<float>()[0] = 1.0F; }
    template <class Arguments>
    static void break_one(const Arguments&) {
      FAIL() << "no way to break it";
    }
    Ops& ops_;
    std::string broken_;
  };
  Ops& lane_ops(Lane, Arithmetic arithmetic) override {
    return arithmetic == Arithmetic::kFastest ? fastest_ : invariant_;
  }
  BrokenOps fastest_, invariant_;
};

std::map<std::string, int64_t> test_with(const std::string& broken) {
  const auto wrap = [&](Device& device) { return std::make_unique<BrokenDevice>(device, broken); };
  return run_self_test(
      {.num_threads = 1}, [](const std::string&) {}, wrap);
}

// All operations but those of several ranks, and clocks.
TEST(SelfTest, CoversEveryOperationOfADevice) {
  const auto counts = test_with("");
  const std::set<std::string> elsewhere = {
      "add_time",         "peer_barrier",   "build_exchange_plan",    "exchange_send", "exchange_return",
      "exchange_collect", "peer_sum",       "exchange_return_copies", "peer_spread",   "peer_fetch",
      "sum_across",       "divide_moe_rows"};
  std::string missing;
#define NMOE_LOOK_FOR(name, Arguments) \
  if (!counts.contains(#name) && !elsewhere.contains(#name)) missing += #name " ";
  NMOE_OPERATIONS(NMOE_LOOK_FOR)
#undef NMOE_LOOK_FOR
  EXPECT_EQ(missing, "");
}

TEST(SelfTest, NamesTheOperationThatDiffers) {
  for (const char* broken : {"linear_forward", "quantize", "mla_cached_attention", "adamw_steps"}) {
    try {
      test_with(broken);
      ADD_FAILURE() << broken;
    } catch (const checked::MismatchError& error) {
      EXPECT_EQ(error.mismatch().operation, broken) << error.what();
    }
  }
}

class DeviceProofTest : public test::TempDirTest {};

TEST_F(DeviceProofTest, WhatPassedIsRemembered) {
  const DeviceOptions options{.num_threads = 1};
  const auto device = make_device(options);
  const Proofs proofs(dir_ / "cache/devices");
  const std::string proof = proof_of(*device, "0.1.0 abc");
  EXPECT_FALSE(proofs.has(proof));
  const auto fails = [](const DeviceOptions&) -> std::map<std::string, int64_t> {
    throw checked::MismatchError({"rope_forward", "element 3"});
  };
  const Error error = test::error_of([&] { prove_device(options, "0.1.0 abc", proofs, fails); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(test::contains(error.what(), "computes rope_forward otherwise than the CPU: element 3")) << error.what();
  EXPECT_FALSE(proofs.has(proof));
  const auto passes = [](const DeviceOptions&) { return std::map<std::string, int64_t>{{"rope_forward", 1}}; };
  EXPECT_EQ(prove_device(options, "0.1.0 abc", proofs, passes).size(), 1U);
  EXPECT_TRUE(proofs.has(proof));
  EXPECT_FALSE(proofs.has(proof_of(*device, "0.1.0 abcd")));
  EXPECT_FALSE(proofs.has(proof.substr(1)));
  prove_device(options, "0.1.0 abcd", proofs, passes);
  EXPECT_TRUE(proofs.has(proof));
  EXPECT_TRUE(proofs.has(proof_of(*device, "0.1.0 abcd")));
}

// Where nothing can be remembered, a device that passes has passed.
TEST_F(DeviceProofTest, AFileThatCannotBeWrittenIsNoFailure) {
  write_file_atomically(dir_ / "file", "");
  const Proofs proofs(dir_ / "file/devices");
  const auto passes = [](const DeviceOptions&) { return std::map<std::string, int64_t>(); };
  prove_device({.num_threads = 1}, "0.1.0 abc", proofs, passes);
  EXPECT_FALSE(proofs.has(proof_of(*make_device({.num_threads = 1}), "0.1.0 abc")));
}

}  // namespace
}  // namespace nmoe
