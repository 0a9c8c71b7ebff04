// Checkpoints from several writers, and tensors read in parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <thread>

#include "checkpoint/reader.h"
#include "sample_state.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

constexpr int64_t kRows = 40'000;            // the embedding has three chunks, its second moment two
constexpr int64_t kChunkElements = 262'144;  // 1 MiB of F32

// The share of writer `index`: as many of the tensor's chunks as of everybody else's, but for what is left over.
ElementRange share_of(const TensorSource& tensor, WriterIndex writer) {
  const TensorChunks chunks(tensor.dtype, tensor.shape);
  const auto edge = [&](int64_t index) {
    const int64_t chunk = chunks.count() * index / writer.count;
    return chunk == chunks.count() ? tensor.shape.num_elements() : chunks[chunk].offset;
  };
  return {edge(writer.index), edge(writer.index + 1) - edge(writer.index)};
}

std::vector<TensorPart> parts_of(std::span<const NamedTensor> tensors, WriterIndex writer) {
  std::vector<TensorPart> parts;
  for (const TensorSource& tensor : in_memory(tensors)) {
    const ElementRange range = share_of(tensor, writer);
    const bool is_empty = tensor.shape.num_elements() == 0;
    if (is_empty ? writer.index == 0 : range.extent > 0) parts.push_back(part_of(tensor, range));
  }
  return parts;
}

// Where each writer is a thread.
fs::path write_together(const fs::path& dir, const CheckpointState& state, int num_writers) {
  CheckpointDraft draft(dir, state.info.step);
  std::vector<WrittenPart> written(static_cast<size_t>(num_writers));
  std::vector<std::jthread> writers;
  for (int i = 0; i < num_writers; ++i) {
    writers.emplace_back([&, i] {
      const WriterIndex writer{.index = i, .count = num_writers};
      ThreadPool pool(2);
      written[static_cast<size_t>(i)] =
          draft.write(writer, parts_of(state.model, writer), parts_of(state.optimizer, writer), pool);
    });
  }
  writers.clear();
  ThreadPool pool(1);
  return draft.publish(state, written, {}, pool);
}

std::map<std::string, std::string> tensor_hashes(const CheckpointReader& reader) {
  std::map<std::string, std::string> hashes;
  for (const auto tensors : {reader.model(), reader.optimizer()}) {
    for (const ManifestTensor& tensor : tensors) hashes[tensor.name] = tensor.sha256;
  }
  return hashes;
}

class SlicesTest : public TemporaryFolderTest {};

TEST_F(SlicesTest, ChunksFollowFromTheShape) {
  const TensorChunks experts(DType::kF32, {3, 5, 7});
  EXPECT_EQ(experts.count(), 3);
  EXPECT_EQ(experts[2], (ElementRange{70, 35}));
  EXPECT_EQ(experts.index_of(69), 1);
  const TensorChunks matrix(DType::kBF16, {1025, 1024});
  EXPECT_EQ(matrix.count(), 3);
  EXPECT_EQ(matrix[1], (ElementRange{524'288, 524'288}));
  EXPECT_EQ(matrix[2], (ElementRange{1'048'576, 1024}));
  EXPECT_TRUE(matrix.is_edge(1025 * 1024));
  EXPECT_FALSE(matrix.is_edge(1024));
  EXPECT_EQ(TensorChunks(DType::kF32, {4}).count(), 1);
  EXPECT_EQ(TensorChunks(DType::kF32, {0, 8}).count(), 0);
  EXPECT_EQ(TensorChunks(DType::kF32, {4, 0, 8}).count(), 0);
}

TEST_F(SlicesTest, SlicesAreTensorsOfTheSameChunks) {
  EXPECT_EQ(slice_shape("w", DType::kF32, {4, 5, 7}, {35, 70}), (Shape{2, 5, 7}));
  EXPECT_EQ(slice_shape("w", DType::kF32, {2000, 1000}, {262'144, 262'144}), (Shape{262'144}));
  EXPECT_EQ(slice_shape("w", DType::kF32, {2000, 1000}, {1'835'008, 164'992}), (Shape{164'992}));
  EXPECT_EQ(slice_shape("w", DType::kF32, {2000, 1000}, {0, 2'000'000}), (Shape{2000, 1000}));
  EXPECT_EQ(slice_shape("w", DType::kF32, {0, 8}, {0, 0}), (Shape{0, 8}));
}

TEST_F(SlicesTest, CutsInsideAChunkAreABug) {
  const auto complaint = [](const Shape& shape, ElementRange range) {
    try {
      slice_shape("layers.0.w", DType::kF32, shape, range);
    } catch (const CheckFailure& failure) {
      return std::string(failure.what());
    }
    return std::string("none");
  };
  EXPECT_TRUE(contains(complaint({4, 5, 7}, {35, 34}), "tensor 'layers.0.w' F32 [4, 5, 7] is cut at element 69"));
  EXPECT_TRUE(contains(complaint({4, 5, 7}, {5, 30}), "at element 5, inside a chunk: chunks have 35 elements"));
  EXPECT_TRUE(contains(complaint({2000, 1000}, {0, 1'000'000}), "at element 1000000"));
  EXPECT_TRUE(contains(complaint({4, 5, 7}, {35, 140}), "has no elements [35, 175)"));
  // A writer is held to it too, whatever its slice says of itself.
  SampleState sample(1);
  TensorPart part = whole_tensor(in_memory(sample.state.model)[1]);  // [4, 64, 8]
  part.shape = {8, 64, 8};
  part.slices = {{100, 4 * 64 * 8}};
  ThreadPool pool(1);
  EXPECT_THROW(CheckpointDraft(dir_, 1).write({}, std::span(&part, 1), {}, pool), CheckFailure);
  part.slices = {{512, 4 * 64 * 8}};
  part.source.shape = {4 * 64, 8};
  EXPECT_THROW(CheckpointDraft(dir_, 1).write({}, std::span(&part, 1), {}, pool), CheckFailure);
  EXPECT_TRUE(names().empty());
}

TEST_F(SlicesTest, HashesDoNotDependOnWhoWroteWhat) {
  const SampleState sample(7, kRows);
  const CheckpointReader alone = CheckpointReader::open(write_checkpoint(dir_ / "alone", sample.state));
  for (const int num_writers : {1, 2, 3}) {
    const fs::path path = write_together(dir_ / std::to_string(num_writers), sample.state, num_writers);
    EXPECT_EQ(path, dir_ / std::to_string(num_writers) / "step_00000007");
    EXPECT_EQ(names_in(path.parent_path()), Names{"step_00000007"});
    EXPECT_EQ(verify_checkpoint(path), std::nullopt);
    const CheckpointReader reader = CheckpointReader::open(path);
    EXPECT_EQ(tensor_hashes(reader), tensor_hashes(alone));
    EXPECT_EQ(reader.weights_sha256(), alone.weights_sha256());

    SampleState other(1, kRows);
    reader.load_model(other.state.model);
    reader.load_optimizer(other.state.optimizer);
    for (const auto& [a, b] : {std::pair(&sample.state.model, &other.state.model),
                               std::pair(&sample.state.optimizer, &other.state.optimizer)}) {
      for (size_t i = 0; i < a->size(); ++i) {
        EXPECT_TRUE(bytes_of((*a)[i].tensor) == bytes_of((*b)[i].tensor)) << (*a)[i].name << " of " << num_writers;
      }
    }
  }
  EXPECT_EQ(names_in(dir_ / "1/step_00000007"), names_in(alone.path()));
  EXPECT_EQ(names_in(dir_ / "3/step_00000007"),
            (Names{"config.toml", "manifest.json", "model.rank_00000.safetensors", "model.rank_00001.safetensors",
                   "model.rank_00002.safetensors", "optimizer.rank_00000.safetensors",
                   "optimizer.rank_00001.safetensors", "optimizer.rank_00002.safetensors", "tokenizer.json"}));
  // The embedding's three chunks lie in three files, four experts in 1 + 1 + 2.
  const CheckpointReader three = CheckpointReader::open(dir_ / "3");
  EXPECT_EQ(three.model()[0].slices.size(), 3u);
  const SafetensorsFile last(dir_ / "3/step_00000007/model.rank_00002.safetensors");
  EXPECT_EQ(last.find("layers.0.experts.w1")->shape, (Shape{2, kRows, 8}));
  EXPECT_EQ(last.find("embedding")->shape, Shape{kRows * 16 - 2 * kChunkElements});
}

TEST_F(SlicesTest, PartsOfTensorsAreReadAcrossSlices) {
  const SampleState sample(7, kRows);
  for (const int num_writers : {1, 3}) {
    const CheckpointReader reader = CheckpointReader::open(write_together(dir_, sample.state, num_writers));
    const auto expect_part = [&](const NamedTensor& item, int64_t offset, int64_t count) {
      const size_t size = dtype_bytes(item.tensor.dtype());
      std::vector<std::byte> values(static_cast<size_t>(count) * size);
      reader.load_part(item.name, offset, Tensor(values.data(), item.tensor.dtype(), {count}));
      const auto expected = bytes_of(item.tensor).substr(static_cast<size_t>(offset) * size, values.size());
      EXPECT_TRUE(std::ranges::equal(values, std::as_bytes(std::span(expected))))
          << item.name << " [" << offset << ", " << offset + count << ") of " << num_writers;
    };
    const int64_t all = kRows * 16;
    for (const auto& [offset, end] : {std::pair<int64_t, int64_t>{0, all},
                                      {kChunkElements, 2 * kChunkElements},
                                      {5, 9},
                                      {kChunkElements - 1, kChunkElements + 1},
                                      {100, all - 1},
                                      {all - 3, all},
                                      {all, all},
                                      {0, 0}}) {
      expect_part(sample.state.model[0], offset, end - offset);      // embedding
      expect_part(sample.state.optimizer[1], offset, end - offset);  // BF16
    }
    expect_part(sample.state.model[1], kRows * 8, 2 * kRows * 8);  // experts 1 and 2

    // Widened: BF16 at odd places.
    std::vector<float> widened(1000);
    const int64_t offset = 2 * kChunkElements - 500;
    reader.load_part("embedding.moment2", offset, Tensor(widened.data(), DType::kF32, {1000}));
    const auto* stored = static_cast<const uint16_t*>(sample.state.optimizer[1].tensor.raw()) + offset;
    for (size_t i = 0; i < widened.size(); ++i) {
      const float expected = bf16_to_float(stored[i]);
      ASSERT_EQ(std::memcmp(&widened[i], &expected, sizeof(float)), 0) << i;
    }
  }
}

// Two writers with experts 2 and 0, and 1 and 3, of four, in that order.
TEST_F(SlicesTest, AWriterHasExpertsHereAndThere) {
  const SampleState sample(7, kRows);
  const CheckpointReader alone = CheckpointReader::open(write_checkpoint(dir_ / "alone", sample.state));
  const int64_t size = kRows * 8;  // of an expert
  const std::array<std::vector<int64_t>, 2> experts = {std::vector<int64_t>{2, 0}, {1, 3}};
  const auto& stacked = sample.state.model[1];
  std::array<std::vector<float>, 2> values;
  CheckpointState state = sample.state;
  CheckpointDraft draft(dir_, 7);
  ThreadPool pool(1);
  std::vector<WrittenPart> written;
  for (int i = 0; i < 2; ++i) {
    auto& mine = values[static_cast<size_t>(i)];
    TensorPart part{.source = {}, .shape = stacked.tensor.shape(), .slices = {}};
    for (const int64_t expert : experts[static_cast<size_t>(i)]) {
      const float* from = stacked.tensor.data<float>() + expert * size;
      mine.insert(mine.end(), from, from + size);
      part.slices.push_back({expert * size, size});
    }
    const NamedTensor tensor{stacked.name, Tensor(mine.data(), DType::kF32, {2, kRows, 8})};
    part.source = in_memory(std::span(&tensor, 1)).front();
    std::vector<TensorPart> parts = parts_of(sample.state.model, {i, 2});
    std::ranges::replace_if(
        parts, [&](const TensorPart& other) { return other.source.name == stacked.name; }, part);
    written.push_back(parse_written_part(
        print_written_part(draft.write({i, 2}, parts, parts_of(sample.state.optimizer, {i, 2}), pool))));
  }
  state.info.experts = {.places = {{1, 2, 0, 3}}, .rows = {{10, 0, 5, 1}}};
  const fs::path path = draft.publish(state, written, {}, pool);
  EXPECT_EQ(verify_checkpoint(path), std::nullopt);
  const CheckpointReader reader = CheckpointReader::open(path);
  EXPECT_EQ(tensor_hashes(reader), tensor_hashes(alone));
  EXPECT_EQ(reader.weights_sha256(), alone.weights_sha256());
  EXPECT_EQ(reader.info().experts.places, state.info.experts.places);
  EXPECT_EQ(reader.info().experts.rows, state.info.experts.rows);
  EXPECT_TRUE(alone.info().experts.places.empty());

  const ManifestTensor& tensor = *std::ranges::find(reader.model(), stacked.name, &ManifestTensor::name);
  ASSERT_EQ(tensor.slices.size(), 4U);
  SampleState other(1, kRows);
  reader.load_model(other.state.model);
  EXPECT_TRUE(bytes_of(other.state.model[1].tensor) == bytes_of(stacked.tensor));
  for (int64_t expert = 0; expert < 4; ++expert) {
    const std::span<const std::byte> stored = reader.stored_bytes(tensor, expert * size + 5);
    ASSERT_EQ(stored.size(), static_cast<size_t>(size - 5) * sizeof(float));
    EXPECT_EQ(std::memcmp(stored.data(), stacked.tensor.data<float>() + expert * size + 5, stored.size()), 0);
  }
  std::vector<float> across(static_cast<size_t>(size));
  reader.load_part(stacked.name, size / 2, Tensor(across.data(), DType::kF32, {size}));
  EXPECT_EQ(std::memcmp(across.data(), stacked.tensor.data<float>() + size / 2, across.size() * sizeof(float)), 0);
}

TEST_F(SlicesTest, OnlyWhatIsReadIsVerified) {
  const SampleState sample(7, kRows);
  const fs::path path = write_together(dir_, sample.state, 2);
  // The embedding's first chunk is writer 0's, the others writer 1's; the second is damaged.
  const fs::path file = path / "model.rank_00001.safetensors";
  const auto begin = static_cast<int64_t>(SafetensorsFile(file).find("embedding")->begin);
  alter_byte(file, begin + 4 * kChunkElements - 1);
  const CheckpointReader reader = CheckpointReader::open(path);
  std::vector<float> values(kRows * 16);
  const auto load = [&](int64_t offset, int64_t end) {
    reader.load_part("embedding", offset, Tensor(values.data(), DType::kF32, {end - offset}));
  };
  load(0, kChunkElements);
  load(2 * kChunkElements, kRows * 16);
  for (const auto& [offset, end] : {std::pair<int64_t, int64_t>{kChunkElements - 1, kChunkElements + 1},
                                    {kChunkElements, 2 * kChunkElements},
                                    {0, kRows * 16}}) {
    const Error error = error_of([&] { load(offset, end); });
    EXPECT_TRUE(contains(error.what(), file.string())) << error.what();
    EXPECT_TRUE(contains(
        error.what(), "tensor 'embedding' was altered: its hash differs in chunk 1 of 3 (elements [262144, 524288))"))
        << error.what();
    EXPECT_EQ(error.exit_code(), 1);
  }
  EXPECT_TRUE(contains(verify_checkpoint(path).value_or("good"), "chunk 1 of 3"));
  reader.load("layers.0.experts.w1", sample.state.model[1].tensor);
}

// However many threads look, the first of several bad chunks is named.
TEST_F(SlicesTest, TheFirstBadChunkIsNamed) {
  const SampleState sample(7, kRows);
  const fs::path path = write_checkpoint(dir_, sample.state);
  const fs::path file = path / "model.safetensors";
  const auto [name, dtype, shape, begin, end] = *SafetensorsFile(file).find("layers.0.experts.w1");
  alter_byte(file, static_cast<int64_t>(begin + (end - begin) / 4));
  alter_byte(file, static_cast<int64_t>(end) - 1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(contains(verify_checkpoint(path).value_or("good"),
                         "'layers.0.experts.w1' was altered: its hash differs in chunk 1 of 4"));
  }
}

TEST_F(SlicesTest, PartsThatATensorDoesNotHave) {
  SampleState sample(7);
  const CheckpointReader reader = CheckpointReader::open(write_checkpoint(dir_, sample.state));
  std::vector<float> values(1024);
  const auto complaint = [&](int64_t offset, DType dtype) {
    const Error error = error_of([&] { reader.load_part("embedding", offset, Tensor(values.data(), dtype, {10})); });
    EXPECT_EQ(error.exit_code(), 2);
    return std::string(error.what());
  };
  EXPECT_TRUE(contains(complaint(1015, DType::kF32),
                       "tensor 'embedding' is F32 [64, 16], the configuration asks for its elements [1015, 1025) as "
                       "F32"));
  EXPECT_TRUE(contains(complaint(-1, DType::kF32), "[-1, 9)"));
  EXPECT_TRUE(contains(complaint(0, DType::kI32), "as I32"));
}

TEST_F(SlicesTest, WhatIsNotAllOfATensorIsNotPublished) {
  const SampleState sample(7, kRows);
  write_checkpoint(dir_, sample.state);
  const std::vector<TensorSource> model = in_memory(sample.state.model);
  const auto complaint = [&](std::vector<std::vector<TensorPart>> shares) {
    CheckpointDraft draft(dir_, 7);
    ThreadPool pool(1);
    std::vector<WrittenPart> written;
    const int count = static_cast<int>(shares.size());
    for (int i = 0; i < count; ++i) {
      written.push_back(draft.write({i, count}, shares[static_cast<size_t>(i)], {}, pool));
    }
    try {
      draft.publish(sample.state, written, {}, pool);
    } catch (const CheckFailure& failure) {
      return std::string(failure.what());
    }
    return std::string("none");
  };
  const int64_t expert = kRows * 8;
  const TensorPart first = part_of(model[1], {0, expert}), middle = part_of(model[1], {expert, 2 * expert}),
                   last = part_of(model[1], {3 * expert, expert});
  EXPECT_TRUE(contains(complaint({{first}, {last}}), "begins at element 960000, the one before ends at 320000"));
  EXPECT_TRUE(contains(complaint({{first}, {middle}}), "its 2 slices have 960000 elements"));
  EXPECT_TRUE(contains(complaint({{first}, {middle}, {middle}, {last}}), "begins at element 320000"));
  EXPECT_TRUE(contains(complaint({{first}, {first}, {middle}, {last}}), "begins at element 0"));
  EXPECT_TRUE(contains(complaint({{first}, {part_of(model[1], {expert, 0})}, {middle}, {last}}),
                       "the slice in model.rank_00001.safetensors is empty"));
  TensorPart of_other_shape = last;
  of_other_shape.shape = {5, kRows, 8};
  EXPECT_TRUE(contains(complaint({{first}, {middle}, {of_other_shape}}), "[5, 40000, 8] in model.rank_00002"));
  // The checkpoint of that step is the old one still, and alone.
  EXPECT_EQ(names(), Names{"step_00000007"});
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
  EXPECT_EQ(complaint({{last}, {first, whole_tensor(model[0]), whole_tensor(model[2])}, {middle}}), "none");
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
}

TEST_F(SlicesTest, AWriterThatFailsLeavesNothing) {
  const SampleState sample(7);
  std::vector<TensorPart> parts = parts_of(sample.state.model, {});
  parts.back().source.read = [](size_t, std::span<std::byte>) -> std::span<const std::byte> {
    throw runtime_error("the source is gone", "");
  };
  const Error error = error_of([&] {
    const CheckpointDraft draft(dir_, 7);
    ThreadPool pool(1);
    draft.write({0, 2}, {}, parts_of(sample.state.optimizer, {}), pool);
    draft.write({1, 2}, parts, {}, pool);
  });
  EXPECT_TRUE(contains(error.what(), "the source is gone"));
  EXPECT_TRUE(names().empty());
}

// Format version 2, as nmoe 0.1.0 wrote it: whole tensors, each with the hash of its bytes.
class VersionTwoTest : public TemporaryFolderTest {
 protected:
  VersionTwoTest() {
    fs::copy(fs::path(NMOE_SOURCE_DIR) / "tests/checkpoint/fixtures/version_2", dir_, fs::copy_options::recursive);
  }
  fs::path path_ = dir_ / "step_00000002";
};

TEST_F(VersionTwoTest, IsReadAndVerified) {
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
  const CheckpointReader reader = CheckpointReader::open(dir_);
  EXPECT_EQ(reader.info().step, 2);
  EXPECT_EQ(reader.info().tokens, 128);
  EXPECT_EQ(reader.info().num_parameters, 5528);
  EXPECT_EQ(reader.weights_sha256(), "9ce4bc660cf9b727dfd29a4f9286d6ff001c7d47f5341095ba4e39eb4005491e");
  EXPECT_EQ(reader.tokenizer()->hash(), byte_tokenizer()->hash());
  EXPECT_EQ(reader.model().size(), 27u);

  for (const auto& [file, tensors, load] :
       {std::tuple("model.safetensors", reader.model(), &CheckpointReader::load_model),
        std::tuple("optimizer.safetensors", reader.optimizer(), &CheckpointReader::load_optimizer)}) {
    const SafetensorsFile stored(path_ / file);
    std::vector<std::vector<std::byte>> values;
    std::vector<NamedTensor> destinations;
    for (const ManifestTensor& tensor : tensors) {
      auto& bytes = values.emplace_back(stored.bytes(*stored.find(tensor.name)).size());
      destinations.push_back({tensor.name, Tensor(bytes.data(), tensor.dtype, tensor.shape)});
    }
    (reader.*load)(destinations);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(values[i], stored.bytes(*stored.find(destinations[i].name))));
    }
  }
  // A part: expert 1 of 3.
  const std::string experts = "layers.1.moe.experts_out";
  std::vector<float> all(3 * 8 * 8), part(8 * 8);
  reader.load(experts, Tensor(all.data(), DType::kF32, {3, 8, 8}));
  reader.load_part(experts, 8 * 8, Tensor(part.data(), DType::kF32, {8, 8}));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 64));
}

TEST_F(VersionTwoTest, EveryTensorIsGuarded) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string intact = read_file(path_ / file);
    const SafetensorsFile stored(path_ / file);
    for (const SafetensorsFile::Entry& entry : stored.entries()) {
      alter_byte(path_ / file, static_cast<int64_t>(entry.end) - 1);
      EXPECT_TRUE(
          contains(verify_checkpoint(dir_).value_or("good"), fmt::format("tensor '{}' was altered", entry.name)));
      write_file_atomically(path_ / file, intact);
    }
  }
  alter_byte(path_ / "manifest.json", 1000);
  EXPECT_TRUE(contains(verify_checkpoint(dir_).value_or("good"), "was altered"));
}

}  // namespace
}  // namespace nmoe
