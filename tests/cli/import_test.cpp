// What an import would say, from config.json alone, and the configuration that it has.
#include <nlohmann/json.hpp>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class ImportCommandTest : public CliTest {
 protected:
  // A folder with nothing but this model's config.json, and what is changed in it.
  void write_config_json(const std::string& fixture, const nlohmann::json& changes = {}) const {
    nlohmann::json json =
        nlohmann::json::parse(read_file(fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf" / fixture / "config.json"));
    if (!changes.is_null()) json.merge_patch(changes);
    fs::create_directories(dir_ / "hf");
    write("hf/config.json", json.dump());
  }
};

TEST_F(ImportCommandTest, ADryRunTellsFromConfigJsonAlone) {
  write_config_json("glm4_mtp");
  const std::string told = output({"import", "--dry-run", "hf"});
  EXPECT_TRUE(contains(told, "glm4_moe model of ")) << told;
  EXPECT_TRUE(contains(told, "nmoe has all that its config.json asks for")) << told;
  EXPECT_TRUE(contains(told, "multi-token-prediction layers, 1, would be carried along untrained")) << told;
  expect_error(n({"import", "hf"}), 2, "out is required", "n import --help");
  expect_error(n({"import", "--dry-run", "hf", "out"}), 2, "excludes", "n import --help");
}

TEST_F(ImportCommandTest, ADryRunNamesAllThatIsMissing) {
  write_config_json("mixtral", {{"router_jitter_noise", 0.1}, {"hidden_act", "gelu"}, {"new_key", 1}});
  const Outcome refused = n({"import", "--dry-run", "hf"});
  for (const char* what :
       {"3 things are not supported", "hidden_act = \"gelu\"", "router_jitter_noise = 0.1", "new_key = 1"}) {
    expect_error(refused, 1, what, "docs/huggingface.md");
  }
  // The import itself says the same.
  expect_error(n({"import", "hf", "imported"}), 1, "3 things are not supported", "docs/huggingface.md");
}

TEST_F(ImportCommandTest, ItsConfigurationIsOneToRead) {
  write_config_json("glm4_groups");
  const std::string toml = output({"config", "--from", "hf"});
  for (const char* line :
       {"rotary_dim   = 8 ", "bias         = \"qkv\"", "qk_norm      = true", "num_groups         = 2 "}) {
    EXPECT_TRUE(contains(toml, line)) << toml;
  }
  write("model.toml", toml);
  EXPECT_TRUE(contains(output({"config", "model.toml"}), toml));
  expect_error(n({"config", "--from", "hf", "model.toml"}), 2, "excludes", "n config --help");
  expect_error(n({"config", "--from", "none"}), 1, "none/config.json", "");
}

// A model of each type's shape that was trained here, its end of the way: exported as that type, imported, trained
// further; what the result generates is what it trains, bit for bit.
struct Shaped {
  const char* type;
  const char* model;  // behind the keys that all have
  const char* layers = "num_layers = 2\nattention = \"gqa\"";
};
class EveryType : public ImportCommandTest, public testing::WithParamInterface<Shaped> {};

TEST_P(EveryType, IsTrainedExportedImportedAndTrainedFurther) {
  prepare();
  constexpr const char* kRest = R"(
    [data]
    path = "data"
    seq_len = 32
    [optim]
    lr = 1e-4
    [train]
    steps = 8
    batch_seqs = 2
    [run]
    threads = 1
    )";
  write("first.toml", fmt::format("[model]\ndim = 32\nnum_heads = 4\n{}\n{}{}name = \"first\"\n", GetParam().layers,
                                  GetParam().model, kRest));
  write("further.toml", std::string("[model.init]\nfrom = \"imported\"\n") + kRest + "name = \"further\"\n");
  output({"train", "first.toml"});
  EXPECT_TRUE(
      contains(output({"export", "runs/checkpoints/first", "hf"}), std::string(" as ") + GetParam().type + ":"));
  EXPECT_TRUE(contains(output({"import", "--dry-run", "hf"}), std::string(GetParam().type) + " model of "));
  output({"import", "hf", "imported"});
  EXPECT_TRUE(contains(output({"train", "further.toml"}), "8 steps in "));
  EXPECT_TRUE(contains(output({"parity", "--generation", "runs/checkpoints/further", "--tokens", "64", "--batches", "1",
                               "7", "--longest", "64", "--threads", "1"}),
                       "generation is training, bit for bit"));
  EXPECT_TRUE(contains(output({"export", "runs/checkpoints/further", "hf2"}), std::string(" as ") + GetParam().type));
}

INSTANTIATE_TEST_SUITE_P(
    Types, EveryType,
    testing::Values(
        Shaped{"llama",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nbias = \"all\"\n"
               "[model.rope]\nscaling = \"llama3\"\noriginal_max_positions = 16\n"},
        Shaped{"qwen3", "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 12\nqk_norm = true\n"},
        Shaped{"mixtral",
               "num_dense_layers = 0\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\n[model.moe]\n"
               "num_experts = 4\nexpert_dim = 16\nnum_shared_experts = 0\nscore = \"softmax\"\nbias_rate = 0\n"},
        Shaped{"olmoe",
               "num_dense_layers = 0\n[model.gqa]\nnum_kv_heads = 4\nhead_dim = 8\nqk_norm = true\n"
               "qk_norm_over = \"all_heads\"\n[model.moe]\nnum_experts = 4\nexpert_dim = 16\n"
               "num_shared_experts = 0\nscore = \"softmax\"\nbias_rate = 0\nnormalise_weights = false\n"},
        Shaped{"qwen2_moe",
               "num_dense_layers = 0\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nbias = \"qkv\"\n"
               "[model.moe]\nnum_experts = 4\nexpert_dim = 16\nshared_dim = 24\nshared_gate = true\n"
               "score = \"softmax\"\nbias_rate = 0\n"},
        Shaped{"minimax_m2",
               "num_dense_layers = 0\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 12\nrotary_dim = 4\n"
               "qk_norm = true\nqk_norm_over = \"all_heads\"\n[model.moe]\nnum_experts = 4\n"
               "expert_dim = 16\nnum_shared_experts = 0\n"},
        Shaped{"glm4_moe",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nrotary_dim = 4\n"
               "bias = \"qkv\"\n[model.moe]\nnum_experts = 4\nexpert_dim = 16\n"},
        Shaped{"dots1",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nqk_norm = true\n"
               "[model.moe]\nnum_experts = 4\nexpert_dim = 16\nnum_shared_experts = 2\n"},
        Shaped{"ernie4_5_moe",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\n[model.moe]\n"
               "num_experts = 4\nexpert_dim = 16\nscore = \"softmax\"\nbias_rate = 0.001\n"}),
    [](const auto& info) { return std::string(info.param.type); });

// Layers without experts anywhere, and windows.
INSTANTIATE_TEST_SUITE_P(
    LayersThatDiffer, EveryType,
    testing::Values(
        Shaped{"qwen3_moe",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 1\nhead_dim = 8\nqk_norm = true\n[model.moe]\n"
               "num_experts = 4\nexpert_dim = 16\nnum_shared_experts = 0\nscore = \"softmax\"\nbias_rate = 0\n",
               "layers = \"gqa/moe, gqa/dense, gqa/moe\""},
        Shaped{"qwen2_moe",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nbias = \"qkv\"\n"
               "[model.moe]\nnum_experts = 4\nexpert_dim = 16\nshared_dim = 24\nshared_gate = true\n"
               "score = \"softmax\"\nbias_rate = 0\n",
               "layers = \"gqa:8/moe, gqa/dense, gqa/moe\""},
        Shaped{"qwen3", "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 12\nqk_norm = true\n",
               "layers = \"2 x (gqa:6/dense, gqa/dense)\""},
        Shaped{"dots1",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nqk_norm = true\n"
               "[model.moe]\nnum_experts = 4\nexpert_dim = 16\nnum_shared_experts = 2\n",
               "layers = \"gqa/dense, gqa:8/moe, gqa/moe\""},
        Shaped{"gpt_oss",
               "activation = \"clamped_swiglu\"\n[model.yarn]\nfactor = 4\noriginal_max_positions = 16\n"
               "beta_fast = 2\ntruncate = false\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\nbias = \"all\"\n"
               "sinks = true\n[model.moe]\nnum_experts = 4\nexpert_dim = 16\nbiases = true\n"
               "num_shared_experts = 0\nscore = \"softmax\"\nbias_rate = 0\n",
               "layers = \"gqa:8/moe, gqa/moe\""},
        Shaped{"ernie4_5_moe",
               "dense_dim = 48\n[model.gqa]\nnum_kv_heads = 2\nhead_dim = 8\n[model.moe]\n"
               "num_experts = 4\nexpert_dim = 16\nscore = \"softmax\"\nbias_rate = 0.001\n",
               "layers = \"2 x (gqa/dense, gqa/moe)\""}),
    [](const auto& info) { return std::string(info.param.type); });

}  // namespace
}  // namespace nmoe
