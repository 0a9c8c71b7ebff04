// A device whose every operation is held against the CPU's: behind each, the CPU does the same on copies of what its
// arguments held before, and all their tensors are compared. So whatever runs on such a device is a test of the
// operations that it uses, on what they get in earnest.
//
// Operations of several ranks (contracts/exchange.h, across.h) pass unchecked: they move what others hold.
//
// Tolerances are wide: what is sought are kernels that are wrong on a device, not the last bits of sums. A value is as
// it should be within kTolerance of its own size plus the root mean square of its tensor, or of its row where that is
// larger: the terms of a sum may cancel in some of a row's values alone, and roundings of terms are as large as those.
// Integers are equal; of bytes, which are codes of values that may lie to either side of a step, kSameBytes are.
//
// Threads: as any device.
#pragma once

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "ops/checked/wrapped_device.h"

namespace nmoe::checked {

// An operation that is not what the CPU makes of it.
struct Mismatch {
  std::string operation;
  std::string what;  // which tensor, where, and both values
};
class MismatchError : public std::exception {
 public:
  explicit MismatchError(Mismatch mismatch);
  const char* what() const noexcept override { return text_.c_str(); }
  const Mismatch& mismatch() const { return mismatch_; }

 private:
  Mismatch mismatch_;
  std::string text_;
};

class CheckedDevice final : public WrappedDevice {
 public:
  static constexpr double kTolerance = 1.0 / 32, kExactTolerance = 1e-3;  // of BF16, of F32
  static constexpr double kSameBytes = 0.8;

  // `device` outlives it, and computes in BF16 or F32. An operation that differs throws MismatchError.
  explicit CheckedDevice(Device& device);
  ~CheckedDevice() override;

  // How often each operation was checked.
  const std::map<std::string, int64_t>& checked() const { return checked_; }

  // Not recorded: it is run as it is.
  std::unique_ptr<Recording> record(std::function<void()> work) override;

 private:
  class CheckedOps;
  Ops& lane_ops(Lane lane, Arithmetic arithmetic) override;

  std::unique_ptr<Device> cpu_;
  std::array<std::array<std::unique_ptr<CheckedOps>, kNumArithmetics>, kNumLanes> lanes_;
  std::map<std::string, int64_t> checked_;
};

}  // namespace nmoe::checked
