#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/sha256.h"
#include "sample_state.h"

namespace nmoe {
namespace {

class SafetensorsTest : public TemporaryFolderTest {
 protected:
  std::vector<ChunkHashes> write(const std::vector<NamedTensor>& tensors) {
    return write_safetensors(dir_ / "file", in_memory(tensors), pool_);
  }

  ThreadPool pool_{3};

  // A file with this header and data; the length field may lie.
  fs::path file_of(const std::string& header, const std::string& data, int64_t lie = 0) {
    const uint64_t length = header.size() + static_cast<uint64_t>(lie);
    std::string content(reinterpret_cast<const char*>(&length), sizeof length);
    write_file_atomically(dir_ / "file", content + header + data);
    return dir_ / "file";
  }

  // What opening such a file says.
  std::string complaint(const std::string& header, const std::string& data, int64_t lie = 0) {
    const fs::path path = file_of(header, data, lie);
    const Error error = error_of([&] { SafetensorsFile{path}; });
    EXPECT_TRUE(contains(error.what(), path.string()));
    EXPECT_EQ(error.exit_code(), 1);
    return error.what();
  }
};

// The whole file as the format's description demands it, byte for byte.
TEST_F(SafetensorsTest, WritesTheDescribedBytes) {
  float weight[2] = {1.0f, -2.0f};
  uint8_t mask[3] = {7, 8, 9};
  const std::vector<NamedTensor> tensors = {{"w", Tensor(weight, DType::kF32, {1, 2})},
                                            {"a", Tensor(mask, DType::kU8, {3})}};
  const std::vector<ChunkHashes> hashes = write(tensors);

  std::string header = R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0\x07\x08\x09", 11);
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(header.size());
  EXPECT_EQ(read_file(dir_ / "file"), expected + header + data);
  EXPECT_EQ(hashes[0], ChunkHashes{sha256_hex(data.substr(0, 8))});
  EXPECT_EQ(hashes[1], ChunkHashes{sha256_hex(data.substr(8))});
}

// What a file no longer has must not become a tensor's zeros; tensors that are in memory are written all the same.
TEST_F(SafetensorsTest, AFileIsCutFromWhichTensorsCome) {
  const size_t bytes = 100'000;
  write_file_atomically(dir_ / "source", std::string(bytes, 'x'));
  const MappedFile map(dir_ / "source");
  TensorSource mapped{
      "w",
      DType::kU8,
      {static_cast<int64_t>(bytes)},
      [&](size_t begin, std::span<std::byte> scratch) { return map.bytes().subspan(begin, scratch.size()); },
      check_mapped_files};
  write_safetensors(dir_ / "file", {&mapped, 1}, pool_);
  fs::remove(dir_ / "file");
  fs::resize_file(dir_ / "source", 100);
  const Error error = error_of([&] { write_safetensors(dir_ / "file", {&mapped, 1}, pool_); });
  EXPECT_TRUE(contains(error.what(), (dir_ / "source").string()));
  EXPECT_FALSE(fs::exists(dir_ / "file"));

  SampleState sample(1, 100);
  EXPECT_EQ(write(sample.state.model).size(), sample.state.model.size());
  EXPECT_TRUE(fs::exists(dir_ / "file"));
}

TEST_F(SafetensorsTest, RoundTripOfTensorsLargerThanABlock) {
  SampleState sample(1, 40'000);
  const auto hashes = write(sample.state.model);
  const SafetensorsFile file(dir_ / "file");
  ASSERT_EQ(file.entries().size(), sample.state.model.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto& [name, tensor] = sample.state.model[i];
    const SafetensorsFile::Entry* entry = file.find(name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->dtype, tensor.dtype());
    EXPECT_EQ(entry->shape, tensor.shape());
    EXPECT_EQ(file.chunk_hashes(*entry), hashes[i]) << name;
    std::vector<std::byte> copy(static_cast<size_t>(tensor.num_bytes()));
    Sha256 hash;
    file.hash(*entry, 0, copy.size(), hash, copy.data());
    EXPECT_EQ(hash.finish(), sha256_hex(bytes_of(tensor))) << name;
    EXPECT_EQ(std::memcmp(copy.data(), tensor.raw(), copy.size()), 0) << name;
  }
  EXPECT_EQ(file.find("no such tensor"), nullptr);
}

TEST_F(SafetensorsTest, TensorBytesBeginAtAMultipleOfEight) {
  for (size_t length = 1; length <= 8; ++length) {
    float value = 0;
    const std::string name(length, 'n');
    write({{name, Tensor(&value, DType::kF32, {1})}});
    EXPECT_EQ(SafetensorsFile(dir_ / "file").find(name)->begin % 8, 0u);
  }
}

TEST_F(SafetensorsTest, ReadsForeignHeaders) {
  // Out of order, with metadata, a scalar, an empty tensor, and keys of its own spacing.
  const SafetensorsFile file(file_of(
      R"({"__metadata__": {"format": "pt"},
          "b": {"data_offsets": [4, 8], "dtype": "I32", "shape": []},
          "e": {"dtype": "F64", "shape": [3, 0], "data_offsets": [4, 4]},
          "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}   )",
      "aaaabbbb"));
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entries()[0].name, "a");
  const auto bytes = file.bytes(*file.find("b"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "bbbb");
  EXPECT_EQ(file.find("b")->shape, Shape());
  EXPECT_TRUE(file.bytes(*file.find("e")).empty());
  EXPECT_TRUE(SafetensorsFile(file_of("{}", "")).entries().empty());
}

// 40,000 took 15 seconds: headers were looked through for each.
TEST_F(SafetensorsTest, ManyEmptyTensors) {
  std::vector<TensorSource> tensors;
  for (int i = 0; i < 40'000; ++i) {
    tensors.push_back({fmt::format("t{}", i), DType::kF32, Shape{0},
                       [](size_t, std::span<std::byte> scratch) { return std::span<const std::byte>(scratch); }});
  }
  const std::clock_t start = std::clock();
  write_safetensors(dir_ / "many", tensors, pool_);
  EXPECT_EQ(SafetensorsFile(dir_ / "many").entries().size(), tensors.size());
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5.0);
}

TEST_F(SafetensorsTest, HeaderLengthsThatLie) {
  write_file_atomically(dir_ / "short", "\x01\x02\x03");
  EXPECT_TRUE(contains(error_of([&] { SafetensorsFile(dir_ / "short"); }).what(), "3 bytes"));
  EXPECT_TRUE(contains(complaint("{}", "", 1), "header of 3 bytes in a file of 10"));
  EXPECT_TRUE(contains(complaint("{}", "", 1'000'000'000'000), "header of 1000000000002 bytes"));
  EXPECT_TRUE(contains(complaint("{}", "", -3), "header of 18446744073709551615 bytes"));
  EXPECT_TRUE(contains(complaint("{}", "", -1), "not JSON"));
}

TEST_F(SafetensorsTest, HeadersThatAreNoHeaders) {
  EXPECT_TRUE(contains(complaint("[1, 2]", ""), "not a JSON object"));
  EXPECT_TRUE(contains(complaint(R"({"a": {"dtype")", ""), "not JSON"));
  EXPECT_TRUE(contains(complaint(std::string(100'000, '['), ""), "not JSON"));
}

TEST_F(SafetensorsTest, EntriesThatMakeNoSense) {
  const auto of = [&](const std::string& entry) {
    std::string text = complaint("{\"bad\": " + entry + "}", "12345678");
    EXPECT_TRUE(contains(text, "tensor 'bad'"));
    return text;
  };
  EXPECT_TRUE(contains(of("3"), "not a JSON object"));
  EXPECT_TRUE(contains(of(R"({"shape": [2], "data_offsets": [0, 8]})"), "no dtype"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F31", "shape": [2], "data_offsets": [0, 8]})"), "\"F31\""));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "data_offsets": [0, 8]})"), "shape"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]})"), "shape"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]})"), "shape"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [1,1,1,1,2], "data_offsets": [0, 8]})"), "5 dimensions"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]})"), "large"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [9300000000000000000], "data_offsets": [0, 8]})"), "shape"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [2], "data_offsets": [0]})"), "data_offsets"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]})"), "[8, 0)"));
  EXPECT_TRUE(contains(of(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]})"), "4 bytes"));
}

TEST_F(SafetensorsTest, LayoutsWithGapsOverlapsAndOverruns) {
  const auto two = [&](const std::string& a, const std::string& b, const std::string& data) {
    return complaint(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": )" + a +
                         R"(}, "b": {"dtype": "U8", "shape": [4], "data_offsets": )" + b + "}}",
                     data);
  };
  EXPECT_TRUE(contains(two("[0, 4]", "[5, 9]", "123456789"), "'b' begins at offset 5"));
  EXPECT_TRUE(contains(two("[0, 4]", "[3, 7]", "1234567"), "'b' begins at offset 3"));
  EXPECT_TRUE(contains(two("[4, 8]", "[8, 12]", "123456789012"), "'a' begins at offset 4"));
  EXPECT_TRUE(contains(two("[0, 4]", "[4, 8]", "1234567"), "'b' ends"));
  EXPECT_TRUE(contains(two("[0, 4]", "[4, 8]", "123456789"), "1 bytes after"));
}

TEST_F(SafetensorsTest, TwoTensorsOfOneNameAreABug) {
  float value = 0;
  const Tensor tensor(&value, DType::kF32, {1});
  EXPECT_THROW(write({{"a", tensor}, {"a", tensor}}), CheckFailure);
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace nmoe
