// A CUDA device beside its operations: memory, transfers, lanes and recordings, several devices. Needs a GPU: label
// gpu.
#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

class CudaDeviceTest : public CudaTest {
 protected:
  // Work of some milliseconds on a lane: whatever does not wait for it is faster.
  void enqueue_long_work(Lane lane) {
    if (!busy_.defined()) busy_ = tensors_.allocate(DType::kF32, {64 << 20});
    for (int i = 0; i < 40; ++i) gpu(lane).fill({busy_, 1.0 + i});
  }
  Tensor numbers(double value) { return up(pool_.full({1'000}, value)); }
  static std::vector<double> expected(double value) { return std::vector<double>(1'000, value); }

  Tensor busy_;
};

TEST_F(CudaDeviceTest, MemoryStartsAtZeroAndSaysWhatIsFree) {
  MemorySource& memory = device_->memory();
  MemorySource& host_memory = device_->host_memory();
  constexpr int64_t kBytes = 1 << 20;
  auto* host = static_cast<char*>(host_memory.allocate(kBytes));
  void* block = memory.allocate(kBytes);
  EXPECT_EQ(std::count(host, host + kBytes, 0), kBytes);
  std::memset(host, 1, kBytes);
  device_->download(host, {block, DType::kU8, {kBytes}});
  EXPECT_EQ(std::count(host, host + kBytes, 0), kBytes);
  memory.release(block, kBytes);
  host_memory.release(host, kBytes);
  EXPECT_EQ(memory.allocate(0), nullptr);
  try {
    memory.allocate(int64_t{1} << 50);
    FAIL() << "a pebibyte was there";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos) << error.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// What kernels read is never pageable: where it cannot be pinned it is refused.
TEST_F(CudaDeviceTest, MappedMemoryIsPinnedOrRefused) {
  MemorySource& mapped = device_->mapped_memory();
  constexpr int64_t kBytes = 1 << 12;
  void* const block = mapped.allocate(kBytes);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, block), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  gpu().fill({Tensor(block, DType::kF32, {kBytes / 4}), 3.0});  // by a kernel, where it lies
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(static_cast<const float*>(block)[kBytes / 4 - 1], 3.0F);
  mapped.release(block, kBytes);
  EXPECT_EQ(mapped.allocate(0), nullptr);
  try {
    mapped.allocate(int64_t{1} << 50);
    FAIL() << "a pebibyte was pinned";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_NE(std::string(error.what()).find("cannot allocate 1.00 PiB of host memory"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, AHostBufferMayBeReusedAfterAnUpload) {
  constexpr int64_t kSize = 4 << 20;
  std::vector<float> host(kSize);
  const std::array tensors = {up(pool_.zeros({kSize})), up(pool_.zeros({kSize})), up(pool_.zeros({kSize}))};
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::ranges::fill(host, static_cast<float>(i + 1));
    device_->upload(tensors[i], host.data());
  }
  std::ranges::fill(host, -1.0F);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(near(down(tensors[i]), std::vector<double>(kSize, static_cast<double>(i + 1)), 0)) << i;
  }
}

TEST_F(CudaDeviceTest, ALaneWaitsForAnotherOnlyWhereOrderSaysSo) {
  const Tensor x = numbers(1), y = numbers(2), z = numbers(3);
  enqueue_long_work(Lane::kCommunication);
  gpu(Lane::kCommunication).copy({x, y});
  device_->order(Lane::kCommunication, Lane::kCompute);
  gpu().copy({y, z});
  EXPECT_TRUE(near(down(z), expected(1), 0));
  // The other way: what was enqueued on the compute lane is done before the communication lane goes on.
  enqueue_long_work(Lane::kCompute);
  gpu().fill({x, 5.0});
  device_->order(Lane::kCompute, Lane::kCommunication);
  gpu(Lane::kCommunication).copy({x, y});
  wait(Lane::kCommunication);
  EXPECT_TRUE(near(down(y), expected(5), 0));
  // Not ordered: the copy lane is done while the compute lane works.
  const auto event = device_->make_event(Lane::kCompute);
  enqueue_long_work(Lane::kCompute);
  event->record();
  gpu(Lane::kCopy).fill({z, 7.0});
  wait(Lane::kCopy);
  EXPECT_FALSE(event->reached());
  event->wait();
  EXPECT_TRUE(event->reached());
  EXPECT_TRUE(near(down(z), expected(7), 0));
}

// An event is a point: what comes behind it on its lane is not waited for, in a recording or not.
TEST_F(CudaDeviceTest, ALaneWaitsForAnEventAndNothingBehindIt) {
  const Tensor x = numbers(1), y = numbers(2), z = numbers(3);
  const auto written = device_->make_event(Lane::kCopy), done = device_->make_event(Lane::kCopy);
  enqueue_long_work(Lane::kCopy);
  gpu(Lane::kCopy).copy({x, y});
  written->record();
  enqueue_long_work(Lane::kCopy);
  done->record();
  written->before(Lane::kCompute);
  gpu().copy({y, z});
  EXPECT_TRUE(near(down(z), expected(1), 0));
  EXPECT_FALSE(done->reached());
  done->wait();
  const auto recording = device_->record([&] {
    device_->order(Lane::kCompute, Lane::kCopy);
    gpu(Lane::kCopy).fill({x, 4.0});
    written->record();
    gpu(Lane::kCopy).fill({x, 5.0});
    written->before(Lane::kCompute);
    gpu().fill({y, 6.0});
    device_->order(Lane::kCopy, Lane::kCompute);
    gpu().copy({x, z});
  });
  recording->run();
  EXPECT_TRUE(near(down(z), expected(5), 0));
}

// State in mapped memory of the host: by copies on lanes beside the compute lane, in a recording, and by kernels and
// transfers where it lies.
TEST_F(CudaDeviceTest, CopiesReachMappedMemory) {
  constexpr int64_t kSize = 1 << 20;
  MemorySource& mapped = device_->mapped_memory();
  void* const block = mapped.allocate(4 * kSize);
  const Tensor host(block, DType::kF32, {kSize}), x = up(pool_.zeros({kSize})), y = up(pool_.zeros({kSize}));
  gpu().fill({host, 3.0});
  const auto work = [&] {
    device_->order(Lane::kCompute, Lane::kCopy);
    gpu(Lane::kCopy).copy({host, x});
    device_->order(Lane::kCopy, Lane::kCommunication);
    gpu(Lane::kCommunication).fill({x, 4.0});
    gpu(Lane::kCommunication).copy({x, host});
    device_->order(Lane::kCommunication, Lane::kCompute);
    gpu().copy({host, y});
  };
  work();
  wait();
  gpu().fill({host, 7.0});
  const auto recording = device_->record(work);
  EXPECT_EQ(get(down(host), 0), 7.0) << "recording is not running";
  recording->run();
  const std::vector<double> four(static_cast<size_t>(kSize), 4.0), nine(static_cast<size_t>(kSize), 9.0);
  EXPECT_TRUE(near(down(y), four, 0));
  EXPECT_TRUE(near(down(host), four, 0));
  const std::vector<float> values(static_cast<size_t>(kSize), 9.0F);
  device_->upload(host, values.data());
  EXPECT_TRUE(near(down(host), nine, 0));
  mapped.release(block, 4 * kSize);
}

// Operations with scratch on two lanes at a time, forked and joined inside of one recording. Both of the sums that a
// lane adds up are of what the compute lane wrote before the fork, and the last sees both.
TEST_F(CudaDeviceTest, LanesForkAndJoinInsideOfARecording) {
  const int64_t size = 1'000'003;
  const Tensor source = up(normal({size})), x = up(pool_.zeros({size}));
  const Tensor here = up(pool_.zeros(DType::kF64, {1})), there = up(pool_.zeros(DType::kF64, {1}));
  const Tensor copied = up(pool_.zeros(DType::kF64, {1})), expected = up(pool_.zeros(DType::kF64, {1}));
  gpu().sum({source, expected});
  enqueue_long_work(Lane::kCompute);
  const auto work = [&] {
    gpu().fill({here, 0.0});
    enqueue_long_work(Lane::kCompute);
    gpu().copy({source, x});
    device_->order(Lane::kCompute, Lane::kCommunication);
    gpu(Lane::kCommunication).fill({there, 0.0});
    gpu(Lane::kCommunication).sum({x, there});
    gpu().sum({x, here});
    device_->order(Lane::kCommunication, Lane::kCompute);
    gpu().copy({there, copied});
    gpu().fill({x, NAN});  // behind the join: the other lane has read it
  };
  work();  // loads what a recording cannot
  wait();
  gpu().fill({x, 0.0});
  const auto recording = device_->record(work);
  EXPECT_TRUE(near(down(x), std::vector<double>(static_cast<size_t>(size)), 0)) << "recording is not running";
  for (int i = 0; i < 3; ++i) {
    gpu().fill({copied, NAN});
    recording->run();
    EXPECT_TRUE(same_bits(down(here), down(expected))) << i;
    EXPECT_TRUE(same_bits(down(copied), down(expected))) << i;
  }
}

TEST_F(CudaDeviceTest, ALaneThatDoesNotJoinIsABugOfTheRecording) {
  const Tensor x = numbers(1);
  try {
    device_->record([&] {
      gpu().fill({x, 2.0});
      device_->order(Lane::kCompute, Lane::kCommunication);
      gpu(Lane::kCommunication).fill({x, 3.0});
    });
    FAIL() << "the communication lane was lost";
  } catch (const CheckFailure& failure) {
    EXPECT_NE(std::string(failure.what()).find("has not joined"), std::string::npos) << failure.what();
  }
  // The device is as good as before.
  gpu(Lane::kCommunication).fill({x, 4.0});
  wait(Lane::kCommunication);
  EXPECT_TRUE(near(down(x), expected(4), 0));
  device_->record([&] { gpu().fill({x, 6.0}); })->run();
  EXPECT_TRUE(near(down(x), expected(6), 0));
}

TEST_F(CudaDeviceTest, AFailureWhileRecordingIsTheOneReported) {
  const Tensor x = numbers(1);
  EXPECT_THROW(device_->record([&] {
    gpu().fill({x, 2.0});
    throw std::runtime_error("mine");
  }),
               std::runtime_error);
  gpu().fill({x, 3.0});
  EXPECT_TRUE(near(down(x), expected(3), 0));
}

TEST_F(CudaDeviceTest, AnotherThreadMayDriveTheDevice) {
  const Tensor x = numbers(1);
  Tensor result;
  std::thread([&] {
    gpu().fill({x, 8.0});
    result = down(x);
  }).join();
  EXPECT_TRUE(near(result, expected(8), 0));
}

TEST(CudaDevices, ThereIsNoDeviceBeyondTheLast) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  for (const int index : {-1, count}) {
    try {
      make_device({.kind = "cuda", .index = index, .compute_dtype = DType::kF32});
      FAIL() << "device " << index;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
    }
  }
}

// Products, attention and recordings on two devices from one thread, in turn: each has its own handles and plans, and
// the same bits come out.
TEST(CudaDevices, TwoInOneThreadGiveTheSameBits) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "this machine has one device";
  constexpr int64_t kSeqs = 2, kLen = 128, kHeads = 2, kHead = 64, kWidth = kHeads * kHead, kTokens = kSeqs * kLen;
  struct Side {
    explicit Side(int index) : device(make_device({.kind = "cuda", .index = index, .compute_dtype = DType::kBF16})) {
      device->scratch(Lane::kCompute).reserve(device->memory(), int64_t{64} << 20);
      arena.reserve(device->memory(), int64_t{64} << 20);
      for (Tensor* x : {&q, &k, &v, &out, &projected}) *x = arena.allocate(DType::kBF16, {kTokens, kHeads, kHead});
      weights = arena.allocate(DType::kBF16, {kWidth, kWidth});
      lse = arena.allocate(DType::kF32, {kSeqs, kHeads, kLen});
    }
    void work() {
      Ops& ops = device->ops();
      ops.attention_forward({{.num_seqs = kSeqs, .seq_len = kLen, .scale = 0.125}, q, k, v, out, lse});
      ops.linear_forward({out.reshape({kTokens, kWidth}), weights, projected.reshape({kTokens, kWidth}),
                          projected.reshape({kTokens, kWidth})});
    }
    std::unique_ptr<Device> device;
    Arena arena{"tensors"};
    Tensor q, k, v, out, projected, weights, lse;
  };
  std::array<Side, 2> sides = {Side(0), Side(1)};
  TensorPool pool(DType::kF32);
  const auto upload = [&](Tensor Side::*tensor) {
    const Tensor host = pool.normal((sides[0].*tensor).shape());
    std::vector<uint16_t> bits;
    for (const float value : host.span<float>()) bits.push_back(float_to_bf16(value));
    for (Side& side : sides) side.device->upload(side.*tensor, bits.data());
  };
  for (const auto tensor : {&Side::q, &Side::k, &Side::v, &Side::weights, &Side::projected}) upload(tensor);
  for (Side& side : sides) EXPECT_EQ(side.device->index(), &side - sides.data());

  for (Side& side : sides) side.work();
  std::array<std::unique_ptr<Recording>, 2> recordings;
  for (size_t i = 0; i < 2; ++i) recordings[i] = sides[i].device->record([&] { sides[i].work(); });
  for (const auto& recording : recordings) recording->run();
  std::array<std::vector<uint16_t>, 2> results;
  for (size_t i = 0; i < 2; ++i) {
    results[i].resize(kTokens * kWidth);
    sides[i].device->download(results[i].data(), sides[i].projected);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_NE(results[0], std::vector<uint16_t>(kTokens * kWidth));
  for (auto& recording : recordings) recording.reset();
}

}  // namespace
}  // namespace nmoe::test
