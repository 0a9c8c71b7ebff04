#include "cli/bench_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "train/loop/run_config.h"
#include "train/loop/training_data.h"

namespace nmoe::cli {

BenchModel read_bench_model(const std::string& model, const std::vector<std::string>& overrides,
                            const std::string& device) {
  const bool is_config = model.ends_with(".toml") && !std::filesystem::is_directory(model);
  if (!is_config) {
    if (!overrides.empty()) {
      throw usage_error("--set with a checkpoint, which has its own configuration",
                        "leave it out, or give a .toml file");
    }
    return {.checkpoint = model, .config = {}, .tokenizer = nullptr, .device = device.empty() ? "cpu" : device};
  }
  Config config = load_run_config(model, overrides);
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  if (has_training_data(config)) {
    tokenizer = open_training_data(config).tokenizer;
    config = resolve_vocab_size(config, *tokenizer);
  }
  if (config.model.vocab_size == 0) throw unknown_vocab_size(config);
  if (config.model.vocab_size < tokenizer->vocab_size()) {
    throw usage_error(fmt::format("model.vocab_size = {}, but there are {} bytes and the end of a text to write",
                                  config.model.vocab_size, tokenizer->vocab_size() - 1),
                      fmt::format("raise it to {}", tokenizer->vocab_size()));
  }
  const std::string place = device.empty() ? config.run.device : device;
  return {.checkpoint = "", .config = std::move(config), .tokenizer = std::move(tokenizer), .device = place};
}

}  // namespace nmoe::cli
