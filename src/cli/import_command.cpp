#include <fmt/format.h>

#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

void import_command(ImportOptions options) {
  options.version = std::string(version());
  options.commit = std::string(commit());
  const ImportReport report = import_model(options);
  print("{} model of {} parameters: {} tensors in {} ({}), every one in its place\n",
        model_type_name(report.model.type), human_count(static_cast<double>(report.num_parameters)), report.num_tensors,
        report.num_files == 1 ? "1 file" : fmt::format("{} files", report.num_files), human_bytes(report.num_bytes));
  if (report.num_quantised > 0) {
    print("{} FP8 tensors were dequantised to {}\n", report.num_quantised,
          dtype_name(options.dtype.value_or(DType::kBF16)));
  }
  if (report.num_prediction_layers > 0) {
    print("{} multi-token-prediction {} not trained by nmoe yet: carried along for the export\n",
          report.num_prediction_layers, report.num_prediction_layers == 1 ? "layer is" : "layers are");
  }
  if (!report.no_tokenizer.empty()) {
    print("no tokenizer for text in and out, its files are carried along: {}\n", report.no_tokenizer);
  }
  print("checkpoint {}\n", report.checkpoint.string());
}

}  // namespace nmoe::cli
