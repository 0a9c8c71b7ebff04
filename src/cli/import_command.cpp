#include <fmt/format.h>

#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "hf/binding.h"
#include "model/spec/cost.h"

namespace nmoe::cli {

namespace {

// What config.json alone says: that the model can be imported, or an Error.
void try_import(const fs::path& source) {
  const HfModel model = read_hf_model(source);
  const ModelCost cost = model_cost(imported_config(model, source).model);
  print("{} model of {} parameters, {} of them for a token: nmoe has all that its config.json asks for\n",
        model_type_name(model.type), human_count(static_cast<double>(cost.parameters)),
        human_count(static_cast<double>(cost.active_parameters)));
  if (model.num_nextn_predict_layers > 0) {
    print("its multi-token-prediction layers, {}, would be carried along untrained{}\n", model.num_nextn_predict_layers,
          predicts_further(model.type) ? ", or trained with --train-mtp" : "");
  }
}

}  // namespace

void import_command(const ImportArguments& arguments) {
  if (arguments.dry_run) return try_import(arguments.options.source);
  ImportOptions options = arguments.options;
  options.version = std::string(version());
  options.commit = std::string(commit());
  const ImportReport report = import_model(options);
  print("{} model of {} parameters: {} tensors in {} ({}), every one in its place\n",
        model_type_name(report.model.type), human_count(static_cast<double>(report.num_parameters)), report.num_tensors,
        report.num_files == 1 ? "1 file" : fmt::format("{} files", report.num_files), human_bytes(report.num_bytes));
  if (report.num_quantised > 0) {
    print("{} {} tensors were dequantised to {}\n", report.num_quantised,
          report.model.format == HfFormat::kMxFp4 ? "MXFP4" : "FP8", dtype_name(options.dtype.value_or(DType::kBF16)));
  }
  if (report.num_prediction_layers > 0) {
    print("{} multi-token-prediction {} carried along for the export{}\n", report.num_prediction_layers,
          report.num_prediction_layers == 1 ? "layer is" : "layers are",
          predicts_further(report.model.type) ? "; with --train-mtp, training goes on with them" : "");
  }
  if (report.model.config.mtp.depth > 0) {
    print("{} multi-token-prediction {} of the model: [model.mtp] says what their loss counts\n",
          report.model.config.mtp.depth, report.model.config.mtp.depth == 1 ? "layer is part" : "layers are part");
  }
  if (!report.no_tokenizer.empty()) {
    print("no tokenizer for text in and out, its files are carried along: {}\n", report.no_tokenizer);
  }
  print("checkpoint {}\n", report.checkpoint.string());
}

}  // namespace nmoe::cli
