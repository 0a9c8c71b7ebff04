#include "ops/checked/checked_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/checked/tensor_members.h"
#include "ops/factory.h"
#include "tensor/convert.h"

namespace nmoe::checked {
namespace {

constexpr int64_t kCpuScratchBytes = int64_t{64} << 20;

// What moves between ranks, and clocks.
template <class T, class... Others>
constexpr bool kIsOneOf = (std::is_same_v<T, Others> || ...);
template <class T>
constexpr bool kIsChecked = !kIsOneOf<T, AddTime, PeerBarrier, BuildExchangePlan, ExchangeSend, ExchangeReturn,
                                      ExchangeCollect, ExchangeReturnCopies, PeerSum, PeerSpread, PeerFetch, SumAcross>;

// Of which BF16 is a format that every device knows, with the same bits.
template <class T>
constexpr bool kKeepsHalves = std::is_same_v<T, AddGradient>;

// A tensor of the device and its copy here, in F32 where it is BF16, unless `keeps_halves`. With `low`, the master that
// both are.
class TensorCopy {
 public:
  TensorCopy(Device& device, Tensor source, Tensor low, bool keeps_halves) : source_(source), low_(low) {
    const DType dtype = source.dtype() == DType::kBF16 && !keeps_halves ? DType::kF32 : source.dtype();
    const auto bytes = static_cast<size_t>(source.num_elements()) * dtype_bytes(dtype);
    memory_.reset(std::aligned_alloc(64, (bytes / 64 + 1) * 64));
    host_ = Tensor(memory_.get(), dtype, source.shape());
    fetch(device, memory_.get());
  }
  const Tensor& source() const { return source_; }
  const Tensor& host() const { return host_; }
  // What the device holds now.
  std::vector<std::byte> now(Device& device) const {
    std::vector<std::byte> bytes(static_cast<size_t>(host_.num_bytes()));
    fetch(device, bytes.data());
    return bytes;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static void download(Device& device, const Tensor& source, std::byte* to) {
    if (source.dense()) return device.download(to, source);
    const int64_t row_bytes = source.shape().row_elements() * static_cast<int64_t>(dtype_bytes(source.dtype()));
    for (int64_t row = 0; row < source.dim(0); ++row) {
      auto* const from = static_cast<std::byte*>(source.rows_raw()) +
                         row * source.stride() * static_cast<int64_t>(dtype_bytes(source.dtype()));
      device.download(to + row * row_bytes, Tensor(from, source.dtype(), {source.shape().row_elements()}));
    }
  }
  void fetch(Device& device, void* to) const {
    if (source_.num_elements() == 0) return;
    std::vector<std::byte> bytes(static_cast<size_t>(source_.num_bytes()));
    download(device, source_, bytes.data());
    const auto count = static_cast<size_t>(source_.num_elements());
    convert(source_.dtype(), bytes.data(), host_.dtype(), to, count);
    if (!low_.defined()) return;
    std::vector<int16_t> low(count);
    device.download(low.data(), low_);
    for (size_t i = 0; i < count; ++i) {
      auto& value = static_cast<float*>(to)[i];
      value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) + static_cast<uint32_t>(int32_t{low[i]}));
    }
  }

  Tensor source_, low_;
  std::unique_ptr<void, Free> memory_;
  Tensor host_;
};

// Calls fn with each struct that has a weight and the rest of its master.
template <class Arguments, class Fn>
void for_each_master(Arguments& args, const Fn& fn) {
  if constexpr (requires { args.w, args.low; }) {
    if (args.low.defined()) fn(args.w, args.low);
  } else if constexpr (requires { args.all; }) {
    for (auto& one : args.all) for_each_master(one, fn);
  }
}

// Tensors that an operation may leave as it likes.
template <class Arguments>
bool is_left_open(const Arguments& args, const Tensor& tensor) {
  if constexpr (std::is_same_v<Arguments, MlaCachedAttention>) {
    return tensor.rows_raw() == args.q.rows_raw() || tensor.rows_raw() == args.k_rope.rows_raw();
  }
  if constexpr (std::is_same_v<Arguments, GroupedActivationBackward>) {
    const Tensor& dpre = args.dpre.defined() ? args.dpre : args.pre;
    if (args.dpre_columns.defined() && !args.keeps_dpre && tensor.rows_raw() == dpre.rows_raw()) return true;
  }
  if constexpr (kIsOneOf<Arguments, LinearActivationForward, GroupedActivationForward>) {
    if (args.pre_codes.defined() && tensor.rows_raw() == args.pre.rows_raw()) return true;
  }
  if constexpr (kIsOneOf<Arguments, ActivationBackward, GroupedActivationBackward>) {
    const void* const memory = tensor.rows_raw();
    if (args.pre_codes.defined() && memory == args.pre.rows_raw() && memory != args.dpre.rows_raw()) return true;
  }
  if constexpr (requires { args.keeps_h; }) return !args.keeps_h && tensor.rows_raw() == args.h.rows_raw();
  return false;
}

// 0 of no values; those that are not finite do not count.
template <class T>
double root_mean_square(std::span<const T> values) {
  double squares = 0.0;
  for (const T value : values) {
    if (std::isfinite(value)) squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares / static_cast<double>(std::max<size_t>(1, values.size())));
}

// width: of a row.
template <class T>
std::string float_difference(const T* found, std::span<const T> expected, size_t width, double tolerance) {
  const double of_all = root_mean_square(expected);
  double of_row = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i % width == 0) of_row = root_mean_square(expected.subspan(i, width));
    const auto a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (found[i] == expected[i] || (std::isnan(a) && std::isnan(b))) continue;
    if (std::isfinite(b) && std::abs(a - b) <= tolerance * (std::abs(b) + std::max(of_all, of_row))) continue;
    return fmt::format("element {} is {}, not {}, where all have a root mean square of {}, and its row one of {}", i, a,
                       b, of_all, of_row);
  }
  return "";
}

std::string byte_difference(const std::byte* found, const std::byte* expected, int64_t count, double same) {
  int64_t different = 0, first = 0;
  for (int64_t i = count - 1; i >= 0; --i) {
    if (found[i] == expected[i]) continue;
    ++different;
    first = i;
  }
  if (static_cast<double>(different) <= (1.0 - same) * static_cast<double>(count)) return "";
  return fmt::format("{} of {} bytes differ, byte {} first", different, count, first);
}

}  // namespace

MismatchError::MismatchError(Mismatch mismatch)
    : mismatch_(std::move(mismatch)), text_(fmt::format("{}: {}", mismatch_.operation, mismatch_.what)) {}

class CheckedDevice::CheckedOps final : public Ops {
 public:
  CheckedOps(CheckedDevice& owner, Lane lane, Arithmetic arithmetic)
      : Ops(owner, lane, arithmetic), owner_(owner), checked_(owner.wrapped().ops(lane, arithmetic)) {}

  DType compute_dtype() const override { return checked_.compute_dtype(); }
  WeightRounding weight_rounding(OperandFormat format) const override { return checked_.weight_rounding(format); }

#define NMOE_DEFINE_OVERRIDE(name, Arguments)                                                        \
  void name(const Arguments& args) override {                                                        \
    if constexpr (kIsChecked<Arguments>) {                                                           \
      if (!counting()) return run(#name, args, [](Ops& ops, const Arguments& of) { ops.name(of); }); \
    }                                                                                                \
    checked_.name(args);                                                                             \
  }
  NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

 private:
  template <class Arguments, class Operation>
  void run(const char* name, const Arguments& args, const Operation& operation) {
    Device& device = owner_.wrapped();
    if (lane() != Lane::kCompute) device.order(lane(), Lane::kCompute);  // transfers are on that lane
    Arguments here = args;
    std::vector<TensorCopy> copies;
    std::vector<Tensor*> masters;  // of which the first copies are
    for_each_master(here, [&](Tensor& w, Tensor& low) {
      copies.emplace_back(device, w, low, /*keeps_halves=*/false);
      masters.push_back(&w);
      w = low = {};
    });
    checked::for_each_tensor(here, [&](Tensor& tensor) {
      if (!tensor.defined()) return;
      const auto is_same = [&](const TensorCopy& copy) {
        return copy.source().rows_raw() == tensor.rows_raw() && copy.source().shape() == tensor.shape() &&
               copy.source().dtype() == tensor.dtype();
      };
      const auto known = std::ranges::find_if(copies, is_same);
      tensor = known != copies.end() ? known->host()
                                     : copies.emplace_back(device, tensor, Tensor(), kKeepsHalves<Arguments>).host();
    });
    for (size_t i = 0; i < masters.size(); ++i) *masters[i] = copies[i].host();
    if (lane() != Lane::kCompute) device.order(Lane::kCompute, lane());
    operation(checked_, args);
    operation(owner_.cpu_->ops(), here);
    if (lane() != Lane::kCompute) device.order(lane(), Lane::kCompute);
    ++owner_.checked_[name];
    const double same_bytes = std::is_same_v<Arguments, Quantize> ? 1.0 : kSameBytes;
    const double tolerance = compute_dtype() == DType::kBF16 ? kTolerance : kExactTolerance;
    for (const TensorCopy& copy : copies) {
      if (is_left_open(args, copy.source())) continue;
      const std::vector<std::byte> now = copy.now(device);
      const std::string difference = compare(now, copy.host(), tolerance, same_bytes);
      if (difference.empty()) continue;
      throw MismatchError({name, fmt::format("a tensor {} {}: {}", dtype_name(copy.source().dtype()),
                                             copy.source().shape(), difference)});
    }
  }

  template <class T>
  static std::span<const T> values_of(const Tensor& x) {
    return {x.data<T>(), static_cast<size_t>(x.num_elements())};
  }
  static std::string compare(const std::vector<std::byte>& found, const Tensor& expected, double tolerance,
                             double same_bytes) {
    const int64_t count = expected.num_elements();
    const auto width = static_cast<size_t>(expected.shape()[expected.shape().rank() - 1]);
    switch (expected.dtype()) {
      case DType::kF32:
        return float_difference(reinterpret_cast<const float*>(found.data()), values_of<float>(expected), width,
                                tolerance);
      case DType::kF64:
        return float_difference(reinterpret_cast<const double*>(found.data()), values_of<double>(expected), width,
                                tolerance);
      case DType::kU8:
        return byte_difference(found.data(), static_cast<const std::byte*>(expected.raw()), count, same_bytes);
      default:
        return byte_difference(found.data(), static_cast<const std::byte*>(expected.raw()), expected.num_bytes(), 1.0);
    }
  }

  CheckedDevice& owner_;
  Ops& checked_;
};

CheckedDevice::CheckedDevice(Device& device)
    : WrappedDevice(device), cpu_(make_device({.kind = "cpu", .compute_dtype = DType::kF32})) {
  cpu_->scratch(Lane::kCompute).reserve(cpu_->memory(), kCpuScratchBytes);
  for (const Lane lane : kLanes) {
    for (const Arithmetic arithmetic : {Arithmetic::kFastest, Arithmetic::kBatchInvariant}) {
      lanes_[static_cast<size_t>(lane)][static_cast<size_t>(arithmetic)] =
          std::make_unique<CheckedOps>(*this, lane, arithmetic);
    }
  }
}

CheckedDevice::~CheckedDevice() = default;

Ops& CheckedDevice::lane_ops(Lane lane, Arithmetic arithmetic) {
  return *lanes_[static_cast<size_t>(lane)][static_cast<size_t>(arithmetic)];
}

std::unique_ptr<Recording> CheckedDevice::record(std::function<void()> work) {
  class Again final : public Recording {
   public:
    explicit Again(std::function<void()> what) : what_(std::move(what)) {}
    void run() override { what_(); }

   private:
    std::function<void()> what_;
  };
  return std::make_unique<Again>(std::move(work));
}

}  // namespace nmoe::checked
