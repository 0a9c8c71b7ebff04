#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "bench/decode_bench.h"
#include "cli/bench_model.h"
#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {
namespace {

// "MIN:MAX".
std::pair<int64_t, int64_t> read_range(const std::string& text) {
  int64_t least = 0, most = 0;
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto first = std::from_chars(begin, end, least);
  const bool goes_on = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto second = goes_on ? std::from_chars(first.ptr + 1, end, most) : first;
  if (!goes_on || second.ec != std::errc() || second.ptr != end || least < 1 || most < least) {
    throw usage_error(fmt::format("--prompt-tokens {}", text), "give two numbers, as in 256:4096");
  }
  return {least, most};
}

DecodeBench run(const BenchDecodeArguments& arguments) {
  const auto [min_prompt, max_prompt] = read_range(arguments.prompt_tokens);
  const BenchModel model = read_bench_model(arguments.model, arguments.overrides, arguments.device);
  return bench_decode(model.checkpoint, model.config, model.tokenizer,
                      {.device = model.device,
                       .num_threads = arguments.threads,
                       .tokens = arguments.tokens,
                       .batches = arguments.batches,
                       .prompts = arguments.prompts,
                       .min_prompt = min_prompt,
                       .max_prompt = max_prompt,
                       .pass_rows = arguments.pass_rows});
}

void print_prompts(const DecodeBench& bench, bool json) {
  const auto& [prompts, tokens, tokens_per_s] = *bench.prompts;
  if (json) {
    print("{{\"device\": \"{}\", \"prompts\": {}, \"prompt_tokens\": {}, \"prompt_tokens_per_s\": {:.1f}}}\n",
          bench.device, prompts, tokens, tokens_per_s);
    return;
  }
  print("device          {}\n{} prompts, {} tokens: {:.0f} tokens/s\n", bench.device, prompts, tokens, tokens_per_s);
}

}  // namespace

void bench_decode_command(const BenchDecodeArguments& arguments) {
  const DecodeBench bench = run(arguments);
  if (bench.prompts) return print_prompts(bench, arguments.json);
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
