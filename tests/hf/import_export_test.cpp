#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "checkpoint/reader.h"
#include "hf/binding.h"
#include "hf/export.h"
#include "hf/fixtures.h"
#include "hf/import.h"
#include "hf_folder.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class ImportExport : public test::TempDirTest {
 protected:
  ImportReport import_folder(std::optional<DType> dtype = {}) {
    return import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .dtype = dtype, .num_threads = 2});
  }
  ExportReport export_checkpoint(std::optional<DType> dtype = {}, int64_t shard_bytes = 1'000'000) {
    return export_model({.checkpoint = dir_ / "checkpoint",
                         .out = dir_ / "back",
                         .dtype = dtype,
                         .shard_bytes = shard_bytes,
                         .num_threads = 2});
  }
  // What importing this folder says; nothing may be left of it.
  Error refusal(const HfFolder& folder) {
    folder.write(dir_ / "hf");
    const Error error = error_of([&] { import_folder(); });
    EXPECT_FALSE(latest_checkpoint(dir_ / "checkpoint").has_value());
    return error;
  }
  nlohmann::json json_of(const fs::path& path) const { return nlohmann::json::parse(read_file(dir_ / path)); }
};

TEST_F(ImportExport, RoundTripKeepsEveryByte) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    HfFolder(dtype).write(dir_ / "hf");
    const ImportReport in = import_folder();
    EXPECT_EQ(in.num_prediction_layers, 1);
    EXPECT_EQ(in.num_carried, 9 + 20 + 2 - 3);
    EXPECT_EQ(verify_checkpoint(in.checkpoint), std::nullopt);
    const ExportReport out = export_checkpoint();
    EXPECT_EQ(out.num_tensors, in.num_tensors + in.num_carried);
    EXPECT_EQ(tensors_in(dir_ / "back"), tensors_in(dir_ / "hf")) << dtype_name(dtype);
    EXPECT_EQ(read_file(dir_ / "back/generation_config.json"), read_file(dir_ / "hf/generation_config.json"));
    for (const char* folder : {"hf", "checkpoint", "back"}) fs::remove_all(dir_ / folder);
  }
}

TEST_F(ImportExport, ConfigJsonComesBackAsItWas) {
  HfFolder folder;
  folder.config["aux_loss_alpha"] = 0.001;  // of no meaning here, but kept
  folder.write(dir_ / "hf");
  import_folder();
  export_checkpoint();
  EXPECT_EQ(json_of("back/config.json"), json_of("hf/config.json"));
}

// What transformers wrote, every variant of it. FP8 weights come back as BF16, so their config.json has to differ.
TEST_F(ImportExport, WhatTransformersWroteComesBackAsItWas) {
  int num_seen = 0;
  for (const fs::path& fixture : test::hf_fixtures()) {
    nlohmann::json config = nlohmann::json::parse(read_file(fixture / "config.json"));
    const bool is_quantised = config.erase("quantization_config") > 0;
    import_model({.source = fixture, .out = dir_ / "checkpoint", .num_threads = 2});
    export_checkpoint();
    EXPECT_EQ(json_of("back/config.json"), config) << fixture;
    auto weights = tensors_in(fixture);
    std::erase_if(weights, [](const auto& tensor) {  // expected.safetensors
      const std::string& name = tensor.first;
      return name.starts_with("grad.") || name == "input_ids" || name == "logits" || name == "loss";
    });
    EXPECT_TRUE(is_quantised || tensors_in(dir_ / "back") == weights) << fixture;
    for (const char* folder : {"checkpoint", "back"}) fs::remove_all(dir_ / folder);
    ++num_seen;
  }
  EXPECT_GT(num_seen, 8);
}

// Layers behind the last as modules that train: what transformers wrote of DeepSeek-V3 and GLM-4.5.
TEST_F(ImportExport, PredictionLayersThatTrainComeBackAsTheyWere) {
  for (const char* name : {"dsv3_mtp", "glm4_mtp"}) {
    const fs::path fixture = fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf" / name;
    const ImportReport in = import_model(
        {.source = fixture, .out = dir_ / "checkpoint", .predictions = PredictionLayers::kTrained, .num_threads = 2});
    EXPECT_EQ(in.num_carried, 0);
    EXPECT_EQ(in.model.config.mtp.depth, 1);
    const ExportReport out = export_checkpoint();
    EXPECT_EQ(out.num_carried, 0);
    EXPECT_EQ(json_of("back/config.json"), nlohmann::json::parse(read_file(fixture / "config.json")));
    auto weights = tensors_in(fixture);
    std::erase_if(weights, [](const auto& tensor) {
      return !tensor.first.starts_with("model.") && tensor.first != "lm_head.weight";
    });
    EXPECT_EQ(tensors_in(dir_ / "back"), weights);

    // The first columns are the embedding's.
    const SafetensorsFile file(fixture / "model.safetensors");
    const auto* const joint = file.find("model.layers.2.eh_proj.weight");
    const int64_t D = joint->shape[0];
    std::vector<float> all(static_cast<size_t>(2 * D * D)), half(static_cast<size_t>(D * D));
    std::memcpy(all.data(), file.bytes(*joint).data(), all.size() * sizeof(float));
    const CheckpointReader reader = CheckpointReader::open(in.checkpoint);
    for (const auto& [parameter, first] :
         {std::pair<std::string, int64_t>("mtp.0.projection_embedding", 0), {"mtp.0.projection_hidden", D}}) {
      reader.load(parameter, Tensor(half.data(), DType::kF32, {D, D}));
      for (int64_t i = 0; i < D * D; ++i) {
        ASSERT_EQ(half[static_cast<size_t>(i)], all[static_cast<size_t>(i / D * 2 * D + first + i % D)]) << parameter;
      }
    }
    for (const char* folder : {"checkpoint", "back"}) fs::remove_all(dir_ / folder);
  }
}

// Nemotron's one module has layers of its own, and neither embedding nor head.
TEST_F(ImportExport, NemotronsModuleTrainsAndComesBackAsItWas) {
  const fs::path fixture = fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf/nemotron_latent";
  const ImportReport in = import_model(
      {.source = fixture, .out = dir_ / "checkpoint", .predictions = PredictionLayers::kTrained, .num_threads = 2});
  EXPECT_EQ(in.num_carried, 0);
  EXPECT_EQ(in.model.config.mtp.depth, 1);
  EXPECT_EQ(in.model.config.mtp.layers, "gqa_nope, moe");
  export_checkpoint();
  EXPECT_EQ(json_of("back/config.json"), nlohmann::json::parse(read_file(fixture / "config.json")));
  auto weights = tensors_in(fixture);
  std::erase_if(weights, [](const auto& tensor) {
    return !tensor.first.starts_with("backbone.") && !tensor.first.starts_with("mtp.");
  });
  EXPECT_EQ(tensors_in(dir_ / "back"), weights);
}

// ERNIE's modules are carried along, and not taken for DeepSeek's.
TEST_F(ImportExport, ErniesPredictionModulesAreNotTrained) {
  fs::copy(fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf/ernie", dir_ / "hf", fs::copy_options::recursive);
  auto json = json_of("hf/config.json");
  json["num_nextn_predict_layers"] = 1;
  write_file_atomically(dir_ / "hf/config.json", json.dump());
  const Error error = error_of([&] {
    import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .predictions = PredictionLayers::kTrained});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.what(), "model.mtp_*"));
  EXPECT_TRUE(contains(error.remedy(), "leave --train-mtp out"));
}

TEST_F(ImportExport, PredictionLayersOfAnotherFormAreNotTrained) {
  const auto refusal = [&](const HfFolder& folder) {
    folder.write(dir_ / "hf");
    return std::string(
        error_of([&] {
          import_model({.source = dir_ / "hf", .out = dir_ / "checkpoint", .predictions = PredictionLayers::kTrained});
        }).what());
  };
  HfFolder folder(DType::kF32);
  EXPECT_TRUE(contains(refusal(folder), "model.layers.2.embed_tokens.weight"));  // it has none
  folder.weights.add("model.layers.2.hnorm.weight", DType::kF32, {16});
  folder.weights.add("model.layers.2.shared_head.norm.weight", DType::kF32, {16});
  for (const char* copy : {"model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"}) {
    folder.weights.add(copy, DType::kF32, {40, 16});
  }
  const std::string other = refusal(folder);
  EXPECT_TRUE(contains(other, "not the copy of another")) << other;
  EXPECT_TRUE(contains(other, "model.layers.2.embed_tokens.weight (from model.embed_tokens.weight)")) << other;
  folder.config["num_nextn_predict_layers"] = 0;
  EXPECT_TRUE(contains(refusal(folder), "0 multi-token-prediction layers"));
}

TEST_F(ImportExport, ShardsHaveAnIndexThatIsReadAgain) {
  HfFolder().write(dir_ / "hf");
  import_folder();
  const ExportReport report = export_checkpoint({}, 2000);
  EXPECT_GT(report.num_files, 3);
  const nlohmann::json index = json_of("back/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], report.num_bytes);
  EXPECT_EQ(index["weight_map"].size(), static_cast<size_t>(report.num_tensors));
  EXPECT_EQ(tensors_in(dir_ / "back"), tensors_in(dir_ / "hf"));
  const ImportReport again = import_model({.source = dir_ / "back", .out = dir_ / "again"});
  EXPECT_EQ(again.num_files, report.num_files);
  EXPECT_EQ(CheckpointReader::open(dir_ / "again").weights_sha256(),
            CheckpointReader::open(dir_ / "checkpoint").weights_sha256());
}

// Where each number of a parameter comes from, spelled out for one of every kind of piece.
TEST_F(ImportExport, ParametersAreMadeOfTheRightRows) {
  const HfFolder folder(DType::kF32);
  folder.write(dir_ / "hf");
  const CheckpointReader reader = CheckpointReader::open(import_folder().checkpoint);
  const auto loaded = [&](const std::string& name, Shape shape) {
    std::vector<float> values(static_cast<size_t>(shape.num_elements()));
    reader.load(name, Tensor(values.data(), DType::kF32, shape));
    return values;
  };
  const auto rows = [&](const std::string& tensor, int64_t begin, int64_t end) {
    const auto span = folder.weights.at(tensor).rows(begin, end).span<float>();
    return std::vector<float>(span.begin(), span.end());
  };
  const std::string attention = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
  EXPECT_EQ(loaded("layers.1.attention.kv_down", {6, 16}), rows(attention + "kv_a_proj_with_mqa.weight", 0, 6));
  EXPECT_EQ(loaded("layers.1.attention.k_rope", {4, 16}), rows(attention + "kv_a_proj_with_mqa.weight", 6, 10));
  EXPECT_EQ(loaded("layers.1.moe.router_bias", {4}), rows(mlp + "gate.e_score_correction_bias", 0, 4));
  std::vector<float> in, out;
  for (int expert = 0; expert < 4; ++expert) {
    for (const char* part : {"gate_proj", "up_proj"}) {
      const auto half = rows(mlp + "experts." + std::to_string(expert) + "." + part + ".weight", 0, 8);
      in.insert(in.end(), half.begin(), half.end());
    }
    const auto down = rows(mlp + "experts." + std::to_string(expert) + ".down_proj.weight", 0, 16);
    out.insert(out.end(), down.begin(), down.end());
  }
  EXPECT_EQ(loaded("layers.1.moe.experts_in", {4, 16, 16}), in);
  EXPECT_EQ(loaded("layers.1.moe.experts_out", {4, 16, 8}), out);
}

TEST_F(ImportExport, ExportsWhatSeveralWritersWrote) {
  HfFolder().write(dir_ / "hf");
  const CheckpointReader reader = CheckpointReader::open(import_folder().checkpoint);
  std::vector<std::vector<std::byte>> values;
  std::vector<NamedTensor> model;
  for (const ManifestTensor& tensor : reader.model()) {
    values.emplace_back(static_cast<size_t>(tensor.shape.num_elements()) * dtype_bytes(tensor.dtype));
    model.push_back({tensor.name, Tensor(values.back().data(), tensor.dtype, tensor.shape)});
  }
  reader.load_model(model);
  // Stacked experts, one after the other, go to one writer and the other; all else to the first.
  std::vector<TensorPart> first, second;
  for (const TensorSource& tensor : in_memory(model)) {
    if (tensor.shape.rank() == 3) {
      const int64_t all = tensor.shape.num_elements(), expert = all / tensor.shape[0];
      first.push_back(part_of(tensor, {0, expert}));
      second.push_back(part_of(tensor, {expert, all - expert}));
    } else {
      first.push_back(whole_tensor(tensor));
    }
  }
  ASSERT_EQ(second.size(), 2u);
  CheckpointHead head;
  head.info = reader.info();
  head.config_toml = reader.config_toml();
  head.tokenizer_json = reader.tokenizer_json();
  head.carried = reader.carried();
  ThreadPool pool(2);
  CheckpointDraft draft(dir_ / "sliced", head.info.step);
  const std::vector<WrittenPart> written = {draft.write({.index = 0, .count = 2}, first, {}, pool),
                                            draft.write({.index = 1, .count = 2}, second, {}, pool)};
  const fs::path sliced = draft.publish(head, written, {}, pool);
  EXPECT_EQ(CheckpointReader::open(sliced).weights_sha256(), reader.weights_sha256());
  export_model({.checkpoint = sliced, .out = dir_ / "back", .num_threads = 2});
  EXPECT_EQ(tensors_in(dir_ / "back"), tensors_in(dir_ / "hf"));
}

TEST_F(ImportExport, DtypesChangeOnRequest) {
  const HfFolder folder(DType::kF32);
  folder.write(dir_ / "hf");
  import_folder();
  export_checkpoint(DType::kBF16);
  const SafetensorsFile file(dir_ / "back/model.safetensors");
  const auto* entry = file.find("lm_head.weight");
  ASSERT_EQ(entry->dtype, DType::kBF16);
  const auto expected = folder.weights.at("lm_head.weight").span<float>();
  const auto* bits = reinterpret_cast<const uint16_t*>(file.bytes(*entry).data());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(bits[i], float_to_bf16(expected[i])) << i;
  EXPECT_EQ(file.find("model.layers.1.mlp.gate.e_score_correction_bias")->dtype, DType::kF32);
  EXPECT_EQ(json_of("back/config.json")["torch_dtype"], "bfloat16");

  const ImportReport widened =
      import_model({.source = dir_ / "back", .out = dir_ / "wide", .dtype = DType::kF32, .num_threads = 1});
  std::vector<float> values(40 * 16);
  CheckpointReader::open(widened.checkpoint).load("head", Tensor(values.data(), DType::kF32, {40, 16}));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], bf16_to_float(bits[i])) << i;
}

TEST_F(ImportExport, NamesMissingExperts) {
  HfFolder folder;
  folder.weights.remove("model.layers.1.mlp.experts.2.up_proj.weight");
  folder.weights.remove("model.layers.1.mlp.experts.3.down_proj.weight");
  const Error error = refusal(folder);
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(),
                       "2 tensors are missing: model.layers.1.mlp.experts.2.up_proj.weight, "
                       "model.layers.1.mlp.experts.3.down_proj.weight"))
      << error.what();
}

TEST_F(ImportExport, NamesUnusedTensors) {
  HfFolder folder;
  folder.weights.add("model.layers.1.mlp.experts.4.up_proj.weight", DType::kBF16, {8, 16});
  const Error error = refusal(folder);
  EXPECT_TRUE(
      contains(error.what(), "1 tensor is in no place of the model: model.layers.1.mlp.experts.4.up_proj.weight"))
      << error.what();
}

TEST_F(ImportExport, NamesMisshapenTensors) {
  HfFolder folder;
  folder.weights.remove("model.layers.0.self_attn.o_proj.weight");
  folder.weights.add("model.layers.0.self_attn.o_proj.weight", DType::kBF16, {10, 16});
  const Error error = refusal(folder);
  EXPECT_TRUE(contains(error.what(), "model.layers.0.self_attn.o_proj.weight (is [10, 16], should be [16, 10])"))
      << error.what();
}

TEST_F(ImportExport, RefusesWeightsOfIntegers) {
  HfFolder folder;
  folder.weights.remove("lm_head.weight");
  folder.weights.add("lm_head.weight", DType::kI32, {40, 16});
  EXPECT_TRUE(contains(refusal(folder).what(), "lm_head.weight (I32)"));
}

TEST_F(ImportExport, RefusesATruncatedFile) {
  HfFolder().write(dir_ / "hf");
  const std::string whole = read_file(dir_ / "hf/model.safetensors");
  for (const size_t size : {size_t{4}, size_t{500}, whole.size() - 1}) {
    write_file_atomically(dir_ / "hf/model.safetensors", whole.substr(0, size));
    const Error error = error_of([&] { import_folder(); });
    EXPECT_TRUE(contains(error.what(), "model.safetensors")) << error.what();
    EXPECT_EQ(error.exit_code(), 1);
  }
  EXPECT_FALSE(fs::exists(dir_ / "checkpoint"));
}

TEST_F(ImportExport, AFileThatIsCutMeanwhile) {
  HfFolder().write(dir_ / "hf");
  const HfBinding binding(dir_ / "hf");
  std::vector<TensorSource> sources;
  for (const MappedParameter& parameter : binding.parameters()) {
    sources.push_back(binding.source(parameter, binding.dtype_of(parameter)));
  }
  fs::resize_file(dir_ / "hf/model.safetensors", 0);
  ThreadPool pool(2);
  const Error error = error_of([&] { write_safetensors(dir_ / "file", sources, pool); });
  EXPECT_TRUE(contains(error.what(), "model.safetensors' was cut")) << error.what();
  EXPECT_FALSE(fs::exists(dir_ / "file"));
}

// A folder from elsewhere neither hangs an import nor takes the memory or the disk.
TEST_F(ImportExport, FilesThatAreNoFilesOrTooLarge) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    HfFolder().write(dir_ / "hf");
    fs::remove(dir_ / "hf" / name);
    ASSERT_EQ(::mkfifo((dir_ / "hf" / name).c_str(), 0600), 0);
    const Error error = error_of([&] { import_folder(); });
    EXPECT_TRUE(contains(error.what(), name) && contains(error.what(), "pipe")) << error.what();
    fs::remove_all(dir_ / "hf");
  }
  for (const char* name : {"config.json", "tokenizer.json", "README.md"}) {
    HfFolder().write(dir_ / "hf");
    std::ofstream(dir_ / "hf" / name, std::ios::app);
    fs::resize_file(dir_ / "hf" / name, uint64_t{200} << 30);
    const Error error = error_of([&] { import_folder(); });
    EXPECT_TRUE(contains(error.what(), name) && contains(error.what(), "MiB")) << error.what();
    fs::remove_all(dir_ / "hf");
  }
  EXPECT_FALSE(fs::exists(dir_ / "checkpoint"));
}

TEST_F(ImportExport, RefusesAnUnknownArchitecture) {
  HfFolder folder;
  folder.config["model_type"] = "gemma2";
  folder.config["architectures"] = {"Gemma2ForCausalLM"};
  EXPECT_TRUE(contains(refusal(folder).what(), "gemma2"));
}

TEST_F(ImportExport, RefusesAnIndexThatDoesNotFitItsFiles) {
  HfFolder().write(dir_ / "hf");
  import_folder();
  export_checkpoint({}, 2000);
  const fs::path path = dir_ / "back/model.safetensors.index.json";
  nlohmann::json index = nlohmann::json::parse(read_file(path));
  const std::string shared = "model.layers.0.input_layernorm.weight";  // its file holds others, too
  const std::string file = index["weight_map"][shared];

  index["weight_map"]["model.layers.1.mlp.experts.9.up_proj.weight"] = file;
  write_file_atomically(path, index.dump());
  const auto import_back = [&] { import_model({.source = dir_ / "back", .out = dir_ / "again"}); };
  EXPECT_TRUE(contains(error_of(import_back).what(), "no tensor 'model.layers.1.mlp.experts.9.up_proj.weight'"));

  index["weight_map"].erase("model.layers.1.mlp.experts.9.up_proj.weight");
  index["weight_map"].erase(shared);
  write_file_atomically(path, index.dump());
  EXPECT_TRUE(contains(error_of(import_back).what(), "does not list the tensor '" + shared));

  fs::remove(dir_ / "back" / file);
  EXPECT_TRUE(contains(error_of(import_back).what(), file)) << error_of(import_back).what();
}

TEST_F(ImportExport, DoesNotOverwrite) {
  HfFolder().write(dir_ / "hf");
  import_folder();
  EXPECT_EQ(error_of([&] { import_folder(); }).exit_code(), 2);
  export_checkpoint();
  const auto before = tensors_in(dir_ / "back");
  EXPECT_EQ(error_of([&] { export_checkpoint(); }).exit_code(), 2);
  EXPECT_EQ(tensors_in(dir_ / "back"), before);
}

TEST_F(ImportExport, RefusesADamagedCheckpoint) {
  HfFolder().write(dir_ / "hf");
  const fs::path file = import_folder().checkpoint / "model.safetensors";
  std::string bytes = read_file(file);
  ++bytes[bytes.size() / 2];
  write_file_atomically(file, bytes);
  EXPECT_TRUE(contains(error_of([&] { export_checkpoint(); }).what(), "altered"));
  for (const auto& entry : fs::directory_iterator(dir_)) {
    EXPECT_FALSE(contains(entry.path().filename().string(), "back")) << entry.path();
  }
}

// A folder that came from elsewhere must not bring a file of this machine into the checkpoint.
TEST_F(ImportExport, LinksOutOfTheFolder) {
  HfFolder folder;
  write_file_atomically(dir_ / "secret", "of this machine");
  fs::create_directories(dir_ / "hf");
  fs::create_symlink(dir_ / "secret", dir_ / "hf/notes.txt");
  const Error error = refusal(folder);
  EXPECT_TRUE(contains(error.what(), "notes.txt"));
  EXPECT_TRUE(contains(error.remedy(), "copy"));
  // Inside it, or to nothing, they do no harm.
  fs::remove(dir_ / "hf/notes.txt");
  fs::create_symlink("config.json", dir_ / "hf/notes.txt");
  fs::create_symlink("nothing", dir_ / "hf/more.txt");
  import_folder();
}

// Hugging Face's cache keeps a model's files elsewhere, in one place.
TEST_F(ImportExport, TheHubsCache) {
  const fs::path snapshot = dir_ / "models--a--b/snapshots/0123";
  fs::create_directories(snapshot);
  fs::create_directories(dir_ / "models--a--b/blobs");
  HfFolder().write(dir_ / "plain");
  for (const auto& entry : fs::directory_iterator(dir_ / "plain")) {
    const fs::path blob = dir_ / "models--a--b/blobs" / (entry.path().filename().string() + "-hash");
    fs::rename(entry.path(), blob);
    fs::create_symlink(fs::path("../../blobs") / blob.filename(), snapshot / entry.path().filename());
  }
  import_model({.source = snapshot, .out = dir_ / "checkpoint", .dtype = {}, .num_threads = 1});
  write_file_atomically(dir_ / "models--a--b/secret", "x");
  fs::create_symlink("../../secret", snapshot / "notes.txt");
  const auto again = [&] { import_model({.source = snapshot, .out = dir_ / "again", .dtype = {}, .num_threads = 1}); };
  EXPECT_TRUE(contains(error_of(again).what(), "notes.txt"));
}

// The tied head may be in the file twice, if it is the same.
TEST_F(ImportExport, KnowsATiedHeadThatIsWrittenOut) {
  HfFolder folder;
  folder.config["tie_word_embeddings"] = true;
  EXPECT_TRUE(contains(refusal(folder).what(), "lm_head.weight"));
  const Tensor table = folder.weights.at("model.embed_tokens.weight");
  std::memcpy(folder.weights.at("lm_head.weight").raw(), table.raw(), static_cast<size_t>(table.num_bytes()));
  folder.write(dir_ / "hf");
  EXPECT_EQ(CheckpointReader::open(import_folder().checkpoint).model().size(), 30u);
}

}  // namespace
}  // namespace nmoe
