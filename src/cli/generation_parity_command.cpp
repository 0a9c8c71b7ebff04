#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "eval/generation_parity.h"

namespace nmoe::cli {
namespace {

std::string described(const FirstDifference& first) {
  return fmt::format("{} of sequence {}, position {}, and in {} rows", intermediate_name(first.what, first.layer),
                     first.sequence, first.position, first.rows);
}

void print_batch(const BatchParity& parity) {
  print("batches of {:<4} {} tokens: largest difference of log-probability {:g}, in {} of them", parity.batch,
        parity.tokens, parity.largest, parity.differing);
  if (parity.choices > 0) print("; {} of {} choices of experts differ", parity.other_choices, parity.choices);
  if (parity.other_tokens > 0) print("; {} tokens are others than in the first batches", parity.other_tokens);
  print("\n");
  if (parity.first) print("  the first value that differs: {}\n", described(*parity.first));
}

}  // namespace

void generation_parity_command(GenerationParityArguments arguments) {
  GenerationParityOptions& options = arguments.options;
  if (!arguments.prompt_file.empty()) options.prompt_text = read_file(arguments.prompt_file);
  const std::vector<BatchParity> parities = compare_generation(arguments.checkpoint, options);
  std::ranges::for_each(parities, print_batch);
  if (std::ranges::all_of(parities, &BatchParity::equal)) {
    print("generation is training, bit for bit\n");
    return;
  }
  throw runtime_error(
      fmt::format("'{}' does not generate with the probabilities that training computes", arguments.checkpoint),
      "docs/arithmetic.md says where it should; with MLA, generation.arithmetic = \"training\" "
      "(--arithmetic training) makes it so on the CPU");
}

}  // namespace nmoe::cli
