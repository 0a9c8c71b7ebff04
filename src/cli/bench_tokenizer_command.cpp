#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "bench/tokenizer_bench.h"
#include "cli/commands.h"
#include "cli/named_checkpoint.h"
#include "cli/standard_input.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

void bench_tokenizer_command(const BenchTokenizerArguments& arguments) {
  const std::string text = arguments.file.empty() ? read_standard_input() : read_file(arguments.file);
  if (text.empty()) throw usage_error("there is no text to encode", "name a file that is not empty");
  const TokenizerBench bench =
      bench_tokenizer(*load_tokenizer(tokenizer_source(arguments.tokenizer)), text, arguments.threads);
  if (arguments.json) {
    std::string list;
    for (const TokenizerBench::Result& result : bench.results) {
      list +=
          fmt::format("{}{{\"threads\": {}, \"mb_per_s\": {:.3f}, \"mb_per_s_per_thread\": {:.3f}}}",
                      list.empty() ? "" : ", ", result.threads, result.mb_per_s(), result.mb_per_s() / result.threads);
    }
    print("{{\"bytes\": {}, \"documents\": {}, \"bytes_per_token\": {:.4f}, \"results\": [{}]}}\n", text.size(),
          bench.num_documents, bench.bytes_per_token(), list);
    return;
  }
  print("text        {} in {} documents, {:.2f} bytes a token\n", human_bytes(static_cast<int64_t>(text.size())),
        bench.num_documents, bench.bytes_per_token());
  for (const TokenizerBench::Result& result : bench.results) {
    print("{:>2} {}  {:.1f} MB/s, {:.1f} a thread (median of {})\n", result.threads,
          result.threads == 1 ? "thread " : "threads", result.mb_per_s(), result.mb_per_s() / result.threads,
          bench.rounds);
  }
}

}  // namespace nmoe::cli
