#include "checkpoint/reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/sha256.h"
#include "sample_state.h"

namespace nmoe {
namespace {

class ReaderTest : public TemporaryFolderTest {
 protected:
  // Checkpoints of steps 10, 20 and 30.
  void write_three() {
    for (const int64_t step : {10, 20, 30}) write_checkpoint(dir_, SampleState(step).state);
  }

  // Expects the checkpoint at step 30 to be refused with `what`, and step 20's to be offered
  // instead.
  void expect_refusal(const Error& error, const std::string& what) {
    EXPECT_TRUE(contains(error.what(), what));
    EXPECT_TRUE(contains(error.what(), (dir_ / "step_00000030").string()));
    EXPECT_TRUE(contains(error.remedy(), (dir_ / "step_00000020").string()));
    EXPECT_EQ(error.exit_code(), 1);
  }

  // The same for a fault found when opening; verify finds it too.
  void expect_refused_at_open(const std::string& what) {
    expect_refusal(error_of([&] { CheckpointReader::open(dir_); }), what);
    EXPECT_TRUE(contains(verify_checkpoint(dir_).value_or("good"), what));
  }

  fs::path last() const { return dir_ / "step_00000030"; }
};

TEST_F(ReaderTest, RoundTrip) {
  SampleState sample(40);
  const fs::path path = write_checkpoint(dir_, sample.state);
  for (const fs::path& name : {path, dir_, path / ""}) {
    const CheckpointReader reader = CheckpointReader::open(name);
    EXPECT_EQ(reader.path(), path);
    EXPECT_EQ(reader.info().step, 40);
    EXPECT_EQ(reader.info().tokens, sample.state.info.tokens);
    EXPECT_EQ(reader.info().cursor, sample.state.info.cursor);
    EXPECT_EQ(reader.info().num_parameters, sample.state.info.num_parameters);
    EXPECT_EQ(reader.info().run_id, "run_1_2");
    EXPECT_EQ(reader.info().config_fingerprint, "c0ffee");
    EXPECT_EQ(reader.info().data_fingerprint, "austen-v1");
    EXPECT_EQ(reader.info().arithmetic_changes, 7);
    EXPECT_EQ(reader.info().product_identity, "a library on a device");
    EXPECT_EQ(reader.info().nmoe_version, "0.1.0");
    EXPECT_EQ(reader.info().nmoe_commit, "abc123");
    EXPECT_EQ(reader.info().created_at.size(), std::string("2025-01-31T23:59:59Z").size());
    EXPECT_EQ(reader.config_toml(), sample.state.config_toml);
    EXPECT_EQ(reader.tokenizer_json(), sample.state.tokenizer_json);
  }

  SampleState other(1);  // other contents in the same shapes
  const CheckpointReader reader = CheckpointReader::open(path);
  reader.load_model(other.state.model);
  reader.load_optimizer(other.state.optimizer);
  const auto expect_equal = [](const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bytes_of(a[i].tensor) == bytes_of(b[i].tensor)) << a[i].name;
  };
  expect_equal(sample.state.model, other.state.model);
  expect_equal(sample.state.optimizer, other.state.optimizer);
}

TEST_F(ReaderTest, OpensACheckpointThatWasCopiedUnderAnotherName) {
  fs::copy(write_checkpoint(dir_ / "a", SampleState(3).state), dir_ / "best", fs::copy_options::recursive);
  EXPECT_EQ(CheckpointReader::open(dir_ / "best").info().step, 3);
}

TEST_F(ReaderTest, NoCheckpointAtAll) {
  EXPECT_TRUE(contains(error_of([&] { CheckpointReader::open(dir_); }).what(), "no checkpoint in"));
  EXPECT_TRUE(contains(error_of([&] { CheckpointReader::open(dir_ / "no"); }).what(), "no such folder"));
  EXPECT_TRUE(contains(error_of([&] { verify_checkpoint(dir_); }).what(), "no checkpoint in"));
}

TEST_F(ReaderTest, EveryByteOfEveryTensorIsGuarded) {
  write_three();
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
  const struct {
    const char* file;
    const char* tensor;
  } cases[] = {{"model.safetensors", "embedding"},
               {"model.safetensors", "layers.0.router.bias"},
               {"optimizer.safetensors", "layers.0.experts.w1.momentum"}};
  for (const auto& [file, tensor] : cases) {
    const std::string intact = read_file(last() / file);
    const SafetensorsFile map(last() / file);
    const SafetensorsFile::Entry entry = *map.find(tensor);
    for (const size_t offset : {entry.begin, entry.end - 1}) {
      alter_byte(last() / file, static_cast<int64_t>(offset));
      const std::string what = fmt::format("tensor '{}' was altered", tensor);
      EXPECT_TRUE(contains(verify_checkpoint(dir_).value_or("good"), what));
      SampleState target(1);
      const CheckpointReader reader = CheckpointReader::open(dir_);
      expect_refusal(error_of([&] {
                       reader.load_model(target.state.model);
                       reader.load_optimizer(target.state.optimizer);
                     }),
                     what);
      if (std::string(file) == "model.safetensors") {
        expect_refusal(error_of([&] { reader.weights_sha256(); }), what);
      }
      write_file_atomically(last() / file, intact);
    }
  }
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
}

TEST_F(ReaderTest, TensorsThatChangedPlacesAreFound) {
  // Two tensors of one shape: with their offsets swapped in the header every size still fits.
  SampleState sample(1);
  sample.state.optimizer[1].tensor = Tensor(sample.state.optimizer[0].tensor.raw(), DType::kF32, {32, 16});
  sample.state.optimizer[0].tensor = sample.state.optimizer[0].tensor.rows(32, 64);
  const fs::path file = write_checkpoint(dir_, sample.state) / "optimizer.safetensors";
  std::string content = read_file(file);
  const size_t one = content.find("moment1"), two = content.find("moment2");
  content[one + 6] = '2';
  content[two + 6] = '1';
  write_file_atomically(file, content);
  EXPECT_TRUE(contains(verify_checkpoint(dir_).value_or("good"), "tensor 'embedding.moment1'"));
}

TEST_F(ReaderTest, TruncatedFiles) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.toml", "tokenizer.json"}) {
    write_three();
    fs::resize_file(last() / file, fs::file_size(last() / file) - 1);
    expect_refused_at_open(file);
  }
  write_three();
  fs::resize_file(last() / "manifest.json", fs::file_size(last() / "manifest.json") / 2);
  expect_refused_at_open("manifest.json");
}

TEST_F(ReaderTest, MissingFiles) {
  for (const char* file :
       {"model.safetensors", "optimizer.safetensors", "config.toml", "tokenizer.json", "manifest.json"}) {
    write_three();
    fs::remove(last() / file);
    expect_refused_at_open(file);
    expect_refused_at_open("No such file");
  }
}

TEST_F(ReaderTest, AlteredTexts) {
  for (const char* file : {"config.toml", "tokenizer.json"}) {
    write_three();
    alter_byte(last() / file, 3);
    expect_refused_at_open("its hash differs");
  }
}

TEST_F(ReaderTest, EveryByteOfTheManifestIsGuarded) {
  const fs::path path = write_checkpoint(dir_, SampleState(1).state) / "manifest.json";
  const std::string intact = read_file(path);
  EXPECT_EQ(parse_manifest(intact, path).info.step, 1);
  for (size_t at = 0; at + 1 < intact.size(); ++at) {  // but the newline at the end
    std::string altered = intact;
    altered[at] ^= 1;
    EXPECT_THROW(parse_manifest(altered, path), Error) << "byte " << at << " '" << intact[at] << "'";
  }
}

// Whoever writes a manifest can also write its hash.
TEST_F(ReaderTest, ManifestsWithARightHashThatLie) {
  write_three();
  const nlohmann::json intact = nlohmann::json::parse(read_file(last() / "manifest.json"));
  const auto refuses = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json altered = intact;
    altered[nlohmann::json::json_pointer(pointer)] = value;
    altered.erase("manifest_sha256");
    altered["manifest_sha256"] = sha256_hex(altered.dump());
    write_file_atomically(last() / "manifest.json", altered.dump());
    const Error error = error_of([&] { CheckpointReader::open(last()); });
    EXPECT_EQ(error.exit_code(), 1) << pointer << " = " << value;
    EXPECT_TRUE(contains(error.what(), "manifest.json")) << pointer;
    EXPECT_FALSE(contains(error.what(), "exception")) << pointer;
    EXPECT_TRUE(contains(error.remedy(), "step_00000020")) << pointer;
  };
  for (const char* name : {"huggingface//dev/shm/x", "huggingface/../../x", "huggingface/..", "huggingface/a/b",
                           "huggingface/", "/dev/shm/x", "../x", "..", ".", "", "a/b", "x/config.json"}) {
    refuses("/files/0/name", name);
  }
  refuses("/files/0/name", std::string("a\0b", 3));
  refuses("/run_id", "../../x");
  refuses("/run_id", 7);
  refuses("/step", "one");
  refuses("/step", -1);
  refuses("/tokens", -1);
  refuses("/num_parameters", -1);
  refuses("/experts", {{"places", {{0, 2}}}, {"rows", nlohmann::json::array()}});
  refuses("/step", 1.5);
  refuses("/num_parameters", 1e64);
  refuses("/model/0/shape", {1e64, 1});
  refuses("/experts", {{"places", {{4294967296, 1}}}, {"rows", nlohmann::json::array()}});
  refuses("/experts", {{"places", {{0, 1}}}, {"rows", {{INT64_MAX, 1}}}});
  refuses("/cursor", nlohmann::json::array());
  refuses("/files", 3);
  refuses("/model/0/dtype", "F31");
  refuses("/model/0/shape", {-1, 4});
  refuses("/model/0/shape", {int64_t{1} << 62, int64_t{1} << 62});
  refuses("/model/0/shape", {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  refuses("/model/0/shape", "x");
  refuses("/model/0/slices", nlohmann::json::array());
  refuses("/model/0/slices/0/offset", -1);
  refuses("/model/0/slices/0/extent", INT64_MAX);
  refuses("/model/0/slices/0/file", "../../x");
  refuses("/model/0/chunks", nlohmann::json::array());
  refuses("/model/0/sha256", "00");
  write_file_atomically(last() / "manifest.json", std::string(100000, '['));
  EXPECT_TRUE(contains(error_of([&] { CheckpointReader::open(last()); }).what(), "is not a JSON object"));
}

TEST_F(ReaderTest, HeadersThatLie) {
  write_three();
  const std::string intact = read_file(last() / "model.safetensors");
  const auto replace = [&](const std::string& from, const std::string& to) {
    std::string content = intact;
    content.replace(content.find(from), from.size(), to);
    write_file_atomically(last() / "model.safetensors", content);
  };
  replace("[64,16]", "[16,64]");  // as many bytes, another shape
  expect_refused_at_open("tensor 'embedding' is not F32 [64, 16]");
  replace("\"embedding\"", "\"embeddinh\"");
  expect_refused_at_open("tensor 'embedding'");
  replace("[0,4096]", "[0,8192]");
  expect_refused_at_open("tensor 'embedding': offsets");
}

TEST_F(ReaderTest, TheRemedySkipsOtherBadCheckpoints) {
  write_three();
  for (const char* step : {"step_00000020", "step_00000030"}) {
    alter_byte(dir_ / step / "optimizer.safetensors", -1);
  }
  SampleState target(1);
  Error error = error_of([&] { CheckpointReader::open(dir_).load_optimizer(target.state.optimizer); });
  EXPECT_TRUE(contains(error.remedy(), "step_00000010"));
  alter_byte(dir_ / "step_00000010" / "optimizer.safetensors", -1);
  error = error_of([&] { CheckpointReader::open(dir_).load_optimizer(target.state.optimizer); });
  EXPECT_TRUE(contains(error.remedy(), "no good checkpoint"));
}

TEST_F(ReaderTest, AnotherFormatVersionIsNamed) {
  write_three();
  std::string manifest = read_file(last() / "manifest.json");
  const std::string key = "\"format_version\": 3";
  manifest.replace(manifest.find(key), key.size(), "\"format_version\": 4");
  write_file_atomically(last() / "manifest.json", manifest);
  expect_refused_at_open("has format version 4; this nmoe reads 2 and 3");
}

TEST_F(ReaderTest, LoadsExactlyWhatTheModelAsksFor) {
  write_checkpoint(dir_, SampleState(1).state);
  const CheckpointReader reader = CheckpointReader::open(dir_);
  SampleState target(2);
  const Tensor embedding = target.state.model[0].tensor;
  const auto complaint = [&](const std::function<void()>& action) {
    const Error error = error_of(action);
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_TRUE(contains(error.remedy(), "config.toml"));
    return std::string(error.what());
  };
  EXPECT_TRUE(contains(complaint([&] { reader.load("embeddings", embedding); }), "no tensor 'embeddings'"));
  EXPECT_TRUE(contains(complaint([&] {
                         reader.load("embedding", embedding.reshape({16, 64}));
                       }),
                       "tensor 'embedding' is F32 [64, 16], the configuration asks for F32 [16, 64]"));
  EXPECT_TRUE(contains(complaint([&] {
                         reader.load("embedding", Tensor(embedding.raw(), DType::kI32, {64, 16}));
                       }),
                       "asks for I32"));
  auto fewer = target.state.model;
  fewer.pop_back();
  EXPECT_TRUE(contains(complaint([&] { reader.load_model(fewer); }), "'layers.0.router.bias', unknown"));
  auto more = target.state.model;
  more.push_back({"extra", embedding});
  EXPECT_TRUE(contains(complaint([&] { reader.load_model(more); }), "no tensor 'extra'"));
  // A tensor of the other part is not what was asked for either.
  auto mixed = target.state.model;
  mixed.push_back(target.state.optimizer[0]);
  EXPECT_TRUE(contains(complaint([&] { reader.load_model(mixed); }), "no tensor 'embedding.moment1'"));
}

TEST_F(ReaderTest, WeightsHashIsThatOfTheDescription) {
  SampleState sample(5);
  const fs::path a = write_checkpoint(dir_ / "a", sample.state);
  std::string lines;
  const std::set<std::pair<std::string, std::string>> shapes = {
      {"embedding", "[64, 16]"}, {"layers.0.experts.w1", "[4, 64, 8]"}, {"layers.0.router.bias", "[4]"}};
  for (const auto& [name, shape] : shapes) {
    const auto& tensor = std::ranges::find(sample.state.model, name, &NamedTensor::name)->tensor;
    const size_t num_chunks = name == "layers.0.experts.w1" ? 4 : 1;
    const std::string_view bytes = bytes_of(tensor);
    std::string chunks;
    for (size_t i = 0; i < num_chunks; ++i) {
      chunks += sha256_hex(bytes.substr(i * bytes.size() / num_chunks, bytes.size() / num_chunks)) + "\n";
    }
    lines += fmt::format("{} F32 {} {}\n", name, shape, sha256_hex(chunks));
  }
  EXPECT_EQ(CheckpointReader::open(a).weights_sha256(), sha256_hex(lines));

  // The order in the file, the optimizer and the progress do not matter; a bit of a weight does.
  std::ranges::reverse(sample.state.model);
  sample.state.info.step = 6;
  sample.state.optimizer.pop_back();
  const fs::path b = write_checkpoint(dir_ / "b", sample.state);
  EXPECT_EQ(CheckpointReader::open(b).weights_sha256(), sha256_hex(lines));
  *static_cast<unsigned char*>(sample.state.model[0].tensor.raw()) ^= 1;
  const fs::path c = write_checkpoint(dir_ / "c", sample.state);
  EXPECT_NE(CheckpointReader::open(c).weights_sha256(), sha256_hex(lines));
}

}  // namespace
}  // namespace nmoe
