// What tests of CUDA operations start from: a device, its operations and the CPU's, and tensors on both sides.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/factory.h"
#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {

// The largest difference between elements; NaN where one is.
inline double worst_difference(Tensor actual, Tensor expected) {
  double worst = 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double difference = std::abs(get(actual, i) - get(expected, i));
    if (!(difference <= worst)) worst = difference;  // true for NaN
    if (std::isnan(difference)) break;
  }
  return worst;
}

// That in units of the largest expected magnitude, but at least of `least_scale`: for tensors whose small elements
// are what is left of large terms of either sign, or were rounded with large ones.
inline double worst_error(Tensor actual, Tensor expected, double least_scale = 1e-30) {
  double scale = least_scale;
  for (const double value : values(expected)) scale = std::max(scale, std::abs(value));
  return worst_difference(actual, expected) / scale;
}

class CudaTest : public ::testing::Test {
 protected:
  // num_sms: 0, or how many persistent kernels are to take, so that each of their blocks has much to do. scratch_bytes:
  // of the compute lane; the others have what is enough for most.
  explicit CudaTest(int num_sms = 0, int64_t scratch_bytes = kScratchBytes) : device_(make_device(with_sms(num_sms))) {
    for (const Lane lane : kLanes) {
      device_->scratch(lane).reserve(device_->memory(), lane == Lane::kCompute ? scratch_bytes : kScratchBytes);
    }
    tensors_.reserve(device_->memory(), int64_t{512} << 20);
  }

  static constexpr int64_t kScratchBytes = int64_t{64} << 20;
  // Operations take tensors of either compute dtype, whatever the device's is.
  static constexpr DeviceOptions kOptions = {.kind = "cuda", .compute_dtype = DType::kBF16};

  static DeviceOptions with_sms(int num_sms) {
    DeviceOptions options = kOptions;
    options.num_sms = num_sms;
    return options;
  }

  Ops& gpu(Lane lane = Lane::kCompute) { return device_->ops(lane); }
  // What results are held against: F32 or F64.
  static Ops& cpu(DType real = DType::kF32) {
    static const ReadyDevice single = cpu_device(DType::kF32, 2, int64_t{384} << 20);
    static const ReadyDevice exact = cpu_device(DType::kF64, 2, int64_t{64} << 20);
    return real == DType::kF32 ? *single : *exact;
  }

  // Until what is enqueued on the lane is done.
  void wait(Lane lane = Lane::kCompute) {
    const auto event = device_->make_event(lane);
    event->record();
    event->wait();
  }

  // Row `at` of `to` = row `source` of `from`, whose rows may lie apart.
  void copy_row(const Tensor& from, int64_t source, const Tensor& to, int64_t at) {
    const Tensor row = to.rows(at, at + 1);
    gpu().copy({.source = {from.rows(source, source + 1).rows_raw(), from.dtype(), row.shape()}, .destination = row});
  }

  // The scratch that `work(ops)` claims in a counting run.
  template <class Work>
  static int64_t counted_scratch(const Work& work) {
    const auto counting = make_device(kOptions);
    work(counting->ops());
    return counting->scratch(Lane::kCompute).high_water();
  }

  // Does `work(ops)` twice: to count scratch, then with just that much left.
  template <class Work>
  void run(const Work& work) {
    const int64_t counted = counted_scratch(work);
    Arena& scratch = device_->scratch(Lane::kCompute);
    const ArenaScope scope(scratch);
    const int64_t spare = scratch.capacity() - counted;
    NMOE_CHECK(spare >= 0, "the test wants {} bytes of scratch", counted);
    if (spare > 0) scratch.allocate(DType::kU8, {spare / Arena::kAlignment * Arena::kAlignment});
    work(gpu());
    wait();
  }

  // A device copy, there for any lane at return; F32 values are rounded to `dtype` when it is BF16. Undefined stays
  // undefined, and rows that lie apart do so there.
  Tensor up(Tensor host, DType dtype) {
    if (!host.defined()) return {};
    if (!host.dense()) return middle_columns(up(matrix_around(host), dtype), host.shape());
    const Tensor device = tensors_.allocate(dtype, host.shape());
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    convert(host.dtype(), host.raw(), dtype, bytes.data(), static_cast<size_t>(host.num_elements()));
    device_->upload(device, bytes.data());
    wait();
    return device;
  }
  Tensor up(Tensor host) { return up(host, host.dtype()); }

  // A host copy of what is there when the compute lane is done; BF16 comes as F32.
  Tensor down(Tensor device) {
    if (!device.dense()) return middle_columns(down(matrix_around(device)), device.shape());
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    device_->download(bytes.data(), device);
    const DType dtype = device.dtype() == DType::kBF16 ? DType::kF32 : device.dtype();
    const Tensor host = pool_.zeros(dtype, device.shape());
    convert(device.dtype(), bytes.data(), dtype, host.raw(), static_cast<size_t>(device.num_elements()));
    return host;
  }

  // Normal values that `dtype` can hold, as F32: what both sides start from.
  Tensor normal(Shape shape, DType dtype = DType::kF32, double scale = 1.0, double mean = 0.0) {
    return rounded(pool_.normal(shape, scale, mean), dtype);
  }
  static Tensor rounded(Tensor x, DType dtype) {
    if (dtype != DType::kBF16) return x;
    for (float& value : x.span<float>()) value = bf16_to_float(float_to_bf16(value));
    return x;
  }

  // Half a unit in BF16's last place for results that are rounded once, with room for the fp32 error before it.
  static double tolerance(DType dtype, double fp32) { return dtype == DType::kBF16 ? 0x1.1p-8 : fp32; }

  TensorPool pool_{DType::kF32};
  std::unique_ptr<Device> device_;
  Arena tensors_{"tensors"};  // goes before the device
};

// Both compute dtypes of CUDA.
constexpr DType kActDTypes[] = {DType::kF32, DType::kBF16};

}  // namespace nmoe::test
