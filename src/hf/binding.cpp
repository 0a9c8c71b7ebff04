#include "hf/binding.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

constexpr size_t kNamesShown = 10;

// "3 tensors are missing: a, b, c", with the first names only where there are many; "" for none.
std::string list_of(const std::vector<std::string>& items, std::string_view what) {
  if (items.empty()) return "";
  std::string text = fmt::format("{} {} {}: ", items.size(), items.size() == 1 ? "tensor is" : "tensors are", what);
  for (size_t i = 0; i < std::min(items.size(), kNamesShown); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", items[i]);
  if (items.size() > kNamesShown) text += fmt::format(", and {} more", items.size() - kNamesShown);
  return text;
}

// The layer in "model.layers.<layer>.rest", or nothing.
std::optional<int64_t> layer_of(std::string_view tensor) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!tensor.starts_with(kPrefix)) return std::nullopt;
  tensor.remove_prefix(kPrefix.size());
  const auto layer = try_parse_count(tensor.substr(0, tensor.find('.')));
  return layer ? std::optional<int64_t>(static_cast<int64_t>(*layer)) : std::nullopt;
}

// ERNIE's and Nemotron's files keep theirs beside the layers.
bool is_prediction_module(std::string_view tensor) {
  return tensor.starts_with("model.mtp_") || tensor.starts_with("mtp.");
}

bool is_rotation_table(std::string_view tensor) { return tensor.ends_with(".rotary_emb.inv_freq"); }

bool same_values(const HfTensor& a, const HfTensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && !a.is_quantised() && !b.is_quantised() &&
         std::ranges::equal(a.bytes(), b.bytes());
}

HfModel with_trained_predictions(HfModel model, const fs::path& dir) {
  if (model.num_nextn_predict_layers > 0 && model.type == ModelType::kErnie45Moe) {
    throw usage_error(
        fmt::format("'{}': ERNIE's modules for further tokens (model.mtp_*) have no norm of their own behind "
                    "their layer, as [model.mtp]'s have",
                    dir.string()),
        "leave --train-mtp out: they are carried along untrained");
  }
  if (model.num_nextn_predict_layers == 0 || !predicts_further(model.type)) {
    throw usage_error(fmt::format("'{}': {} multi-token-prediction layers of a {} model to train", dir.string(),
                                  model.num_nextn_predict_layers, model_type_name(model.type)),
                      "leave --train-mtp out");
  }
  if (model.num_nextn_predict_layers > 1 && is_hybrid(model.type)) {
    throw usage_error(fmt::format("'{}': {} modules for further tokens, and {} stores one", dir.string(),
                                  model.num_nextn_predict_layers, model_type_name(model.type)),
                      "leave --train-mtp out");
  }
  model.config.mtp.depth = model.num_nextn_predict_layers;
  model.config.mtp.layers = model.prediction_layers;
  return model;
}

HfModel read_model(const fs::path& dir, PredictionLayers predictions) {
  HfModel model = read_hf_model(dir);
  return predictions == PredictionLayers::kTrained ? with_trained_predictions(std::move(model), dir) : model;
}

}  // namespace

HfModel read_hf_model(const fs::path& dir) {
  check_links_stay_inside(dir);
  return from_config_json(read_file_up_to(dir / "config.json", kMaxSettingsFile), (dir / "config.json").string());
}

HfBinding::HfBinding(const fs::path& dir, PredictionLayers predictions)
    : model_(read_model(dir, predictions)), weights_(dir), parameters_(map_parameters(model_.config, model_.type)) {
  std::vector<std::string> missing, misshapen, unfit, unknown, differing;
  std::set<std::string> used;
  for (const MappedParameter& parameter : parameters_) {
    for (const TensorPiece& piece : parameter.pieces) {
      if (!used.insert(piece.tensor).second) continue;  // the other half of a joint tensor
      const HfTensor* tensor = weights_.find(piece.tensor);
      if (tensor == nullptr) {
        missing.push_back(piece.tensor);
      } else if (tensor->shape() != piece.tensor_shape) {
        misshapen.push_back(fmt::format("{} (is {}, should be {})", piece.tensor, tensor->shape(), piece.tensor_shape));
      } else if (!is_weight_dtype(tensor->dtype())) {
        unfit.push_back(fmt::format("{} ({})", piece.tensor, dtype_name(tensor->dtype())));
      }
    }
    for (const std::string& copy : parameter.copies) {
      used.insert(copy);
      const HfTensor *tensor = weights_.find(copy), *original = weights_.find(parameter.pieces.front().tensor);
      if (tensor == nullptr) {
        missing.push_back(copy);
      } else if (original != nullptr && !same_values(*tensor, *original)) {
        differing.push_back(fmt::format("{} (from {})", copy, parameter.pieces.front().tensor));
      }
    }
  }

  const int64_t num_layers = model_.config.num_layers;
  std::set<int64_t> prediction_layers;
  const auto embedding = std::ranges::find(parameters_, "embedding", &MappedParameter::name);
  const HfTensor* table = weights_.find(embedding->pieces.front().tensor);  // a tied head may be there a second time
  for (const auto& [name, tensor] : weights_.tensors()) {
    if (used.contains(name)) continue;
    const auto layer = layer_of(name);
    const bool predicts = (layer && *layer >= num_layers && *layer < num_layers + model_.num_nextn_predict_layers) ||
                          (model_.num_nextn_predict_layers > 0 && is_prediction_module(name));
    const bool is_tied_copy =
        model_.config.tied_head && name == "lm_head.weight" && table && same_values(tensor, *table);
    if (predicts) prediction_layers.insert(layer.value_or(num_layers));
    if (predicts || is_rotation_table(name)) {
      carried_.push_back(name);
    } else if (!is_tied_copy) {
      unknown.push_back(name);
    }
  }
  num_prediction_layers_ = static_cast<int64_t>(prediction_layers.size());

  std::string problems;
  for (const std::string& problem :
       {list_of(missing, "missing"), list_of(misshapen, "of another shape than config.json asks for"),
        list_of(unfit, "of a dtype that weights do not have here"), list_of(unknown, "in no place of the model"),
        list_of(differing, "not the copy of another that it has to be")}) {
    if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
  }
  if (problems.empty()) return;
  throw runtime_error(fmt::format("'{}': {}", dir.string(), problems),
                      "fetch the model again, or correct config.json where it does not describe these weights");
}

DType HfBinding::dtype_of(const MappedParameter& parameter) const {
  std::set<DType> found;
  for (const TensorPiece& piece : parameter.pieces) found.insert(weights_.find(piece.tensor)->dtype());
  return found.size() == 1 ? *found.begin() : DType::kF32;  // BF16 and F16 have no common dtype but F32
}

TensorSource HfBinding::source(const MappedParameter& parameter, DType dtype) const {
  const auto read = [this, &pieces = parameter.pieces, dtype](size_t begin_byte, std::span<std::byte> out) {
    const auto size = static_cast<int64_t>(dtype_bytes(dtype));
    const int64_t begin = static_cast<int64_t>(begin_byte) / size;
    const int64_t end = begin + static_cast<int64_t>(out.size()) / size;
    if (pieces.empty()) std::ranges::fill(out, std::byte{0});
    auto piece = std::ranges::upper_bound(pieces, begin, {}, &TensorPiece::parameter_offset);
    if (piece != pieces.begin()) --piece;
    for (; piece != pieces.end() && piece->parameter_offset < end; ++piece) {
      const int64_t from = std::max(begin, piece->parameter_offset);
      const int64_t to = std::min(end, piece->parameter_offset + piece->num_elements);
      const int64_t offset = piece->parameter_offset;
      weights_.find(piece->tensor)->read(*piece, from - offset, to - offset, dtype, out.data() + (from - begin) * size);
    }
    return std::span<const std::byte>(out);
  };
  return {parameter.name, dtype, parameter.shape, read, check_mapped_files};
}

TensorSource HfBinding::carried_source(const std::string& name) const {
  const HfTensor& tensor = *weights_.find(name);
  const DType dtype = tensor.dtype();
  return {name, dtype, tensor.shape(),
          [&tensor, dtype](size_t begin, std::span<std::byte> out) {
            const size_t size = dtype_bytes(dtype);
            tensor.read(static_cast<int64_t>(begin / size), static_cast<int64_t>(out.size() / size), dtype, out.data());
            return std::span<const std::byte>(out);
          },
          check_mapped_files};
}

}  // namespace nmoe
