#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

void synthesize_command(const SynthesizeOptions& options) {
  const SynthesizeReport report = synthesize(options);
  const EntropyFloor& floor = report.floor;
  print("train {} documents, {} tokens\n", options.documents, report.train_tokens);
  if (options.valid_documents > 0) {
    print("valid {} documents, {} tokens\n", options.valid_documents, report.valid_tokens);
  }
  const double error = floor.document_nats_error / floor.tokens_per_document;
  print("floor {:.6f} nats per token ({}), {:.6f} without the ends of documents\n", floor.nats_per_token(),
        error == 0.0 ? "exact" : fmt::format("standard error {:.1g}", error), floor.nats_per_text_token());
  if (report.has_answers) print("floor of the answers {:.6f} nats per token\n", floor.nats_per_target());
  print("{}\n", (options.out / "ground_truth.json").string());
}

}  // namespace nmoe::cli
