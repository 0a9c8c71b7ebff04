#include <fmt/format.h>

#include <filesystem>

#include "bench/decode_bench.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "train/loop/run_config.h"
#include "train/loop/training_data.h"

namespace nmoe::cli {
namespace {

DecodeBench run(const BenchDecodeArguments& arguments) {
  const auto options = [&](const std::string& device) {
    return DecodeBenchOptions{.device = device, .num_threads = arguments.threads, .tokens = arguments.tokens};
  };
  const bool is_config = arguments.model.ends_with(".toml") && !std::filesystem::is_directory(arguments.model);
  if (!is_config) {
    if (!arguments.overrides.empty()) {
      throw usage_error("--set with a checkpoint, which has its own configuration",
                        "leave it out, or give a .toml file");
    }
    return bench_decode(arguments.model, {}, {}, options(arguments.device.empty() ? "cpu" : arguments.device));
  }
  Config config = load_run_config(arguments.model, arguments.overrides);
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
  return bench_decode("", config, tokenizer, options(arguments.device.empty() ? config.run.device : arguments.device));
}

}  // namespace

void bench_decode_command(const BenchDecodeArguments& arguments) {
  const DecodeBench bench = run(arguments);
  if (arguments.json) {
    std::string batches;
    for (const DecodeBench::Batch& batch : bench.batches) {
      batches += fmt::format(
          "{}{{\"sequences\": {}, \"context\": {}, \"prompt_tokens_per_s\": {:.1f}, \"tokens_per_s\": {:.1f}, "
          "\"bytes_per_step\": {:.0f}, \"bytes_per_s\": {:.0f}}}",
          batches.empty() ? "" : ", ", batch.sequences, batch.context, batch.prompt_tokens_per_s, batch.tokens_per_s,
          batch.bytes_per_step, batch.bytes_per_s());
    }
    print("{{\"device\": \"{}\", \"batches\": [{}]", bench.device, batches);
    if (bench.tokens > 0) {
      print(
          ", \"tokens\": {}, \"text_ms\": {:.3f}, \"rerun_text_ms\": {:.3f}, \"text_ratio\": {:.2f}, "
          "\"last_token_ms\": {:.4f}, \"rerun_last_token_ms\": {:.4f}, \"last_token_ratio\": {:.2f}",
          bench.tokens, bench.text_ms, bench.rerun_text_ms, bench.rerun_text_ms / bench.text_ms, bench.last_token_ms,
          bench.rerun_last_token_ms, bench.rerun_last_token_ms / bench.last_token_ms);
    }
    print("}}\n");
    return;
  }
  print("device          {}\n", bench.device);
  print("sequences  prompt tokens  prompts, tokens/s  output, tokens/s  GB a step  GB/s\n");
  for (const DecodeBench::Batch& batch : bench.batches) {
    print("{:>9}  {:>13}  {:>17.0f}  {:>16.0f}  {:>9.3f}  {:>4.0f}\n", batch.sequences, batch.context,
          batch.prompt_tokens_per_s, batch.tokens_per_s, batch.bytes_per_step / 1e9, batch.bytes_per_s() / 1e9);
  }
  if (bench.tokens == 0) return;
  print("text of {:<7} {:.1f} ms; running everything again for every token {:.1f} ms: {:.1f} times as long\n",
        bench.tokens, bench.text_ms, bench.rerun_text_ms, bench.rerun_text_ms / bench.text_ms);
  print("its last token  {:.3f} ms; {:.3f} ms: {:.1f} times\n", bench.last_token_ms, bench.rerun_last_token_ms,
        bench.rerun_last_token_ms / bench.last_token_ms);
}

}  // namespace nmoe::cli
