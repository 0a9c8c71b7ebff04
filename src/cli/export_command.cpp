#include <fmt/format.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

void export_command(const ExportOptions& options) {
  const ExportReport report = export_model(options);
  print("{} as {}: {} tensors in {} ({}), read back and equal\n", report.checkpoint.string(),
        model_type_name(report.type), report.num_tensors,
        report.num_files == 1 ? "1 file" : fmt::format("{} files", report.num_files), human_bytes(report.num_bytes));
  if (report.num_carried > 0) print("{} of them are as they were imported\n", report.num_carried);
  if (!report.has_tokenizer) print("no tokenizer.json: the checkpoint has none in Hugging Face's format\n");
}

}  // namespace nmoe::cli
