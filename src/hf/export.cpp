#include "hf/export.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/signals.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "data/shards/corpus_folder.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/binding.h"
#include "hf/export_files.h"
#include "hf/files.h"
#include "hf/kept_format.h"
#include "model/spec/cost.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kModelCard = "README.md";
constexpr std::string_view kBaseModelCard = "README.base.md";             // of the model that training began with
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};  // transformers asks for it

// Elements [first, first + count) of a piece of a Hugging Face tensor, in one of the checkpoint's files.
struct StoredPiece {
  TensorPiece piece;
  int64_t first, count;
  DType dtype;
  const std::byte* values;

  // Those that are among the tensor's elements [begin, end), as `dtype` to `out`.
  void write(int64_t begin, int64_t end, DType written, std::byte* out) const {
    piece.is_spread() ? write_spread(begin, end, written, out) : write_run(begin, end, written, out);
  }

 private:
  void write_run(int64_t begin, int64_t end, DType written, std::byte* out) const {
    const int64_t offset = piece.tensor_offset + first, from = std::max(begin, offset),
                  to = std::min(end, offset + count);
    if (from >= to) return;
    convert(dtype, values + static_cast<size_t>(from - offset) * dtype_bytes(dtype), written,
            out + static_cast<size_t>(from - begin) * dtype_bytes(written), static_cast<size_t>(to - from));
  }
  // By the longer of both steps, and of each by those of the other that are within.
  void write_spread(int64_t begin, int64_t end, DType written, std::byte* out) const {
    const int64_t rows = piece.num_elements / piece.width;
    const bool by_rows = piece.row_step > piece.column_step;
    const int64_t outer_step = by_rows ? piece.row_step : piece.column_step, outer = by_rows ? rows : piece.width;
    const int64_t inner_step = by_rows ? piece.column_step : piece.row_step, inner = by_rows ? piece.width : rows;
    const auto steps = [](int64_t distance, int64_t step) { return distance <= 0 ? 0 : (distance + step - 1) / step; };
    const int64_t reach = (inner - 1) * inner_step + 1;
    const int64_t last = std::min(outer, steps(end - piece.tensor_offset, outer_step));
    for (int64_t o = steps(begin - piece.tensor_offset - reach + 1, outer_step); o < last; ++o) {
      const int64_t offset = piece.tensor_offset + o * outer_step;
      const int64_t inner_last = std::min(inner, steps(end - offset, inner_step));
      for (int64_t i = steps(begin - offset, inner_step); i < inner_last; ++i) {
        const int64_t element = by_rows ? o * piece.width + i : i * piece.width + o;
        if (element < first || element >= first + count) continue;
        convert(dtype, values + static_cast<size_t>(element - first) * dtype_bytes(dtype), written,
                out + static_cast<size_t>(offset + i * inner_step - begin) * dtype_bytes(written), 1);
      }
    }
  }
};

struct HfTarget {
  std::string name;
  Shape shape;
  std::vector<StoredPiece> pieces;
};

const ManifestTensor& stored_tensor(const MappedParameter& parameter, const CheckpointReader& reader) {
  const auto found = std::ranges::find(reader.model(), parameter.name, &ManifestTensor::name);
  NMOE_CHECK(found != reader.model().end() && found->shape == parameter.shape, "{} {}", parameter.name,
             parameter.shape);
  return *found;
}

// Turns the map around: from the tensors to the parameters they come from, in the order of the model.
std::vector<HfTarget> hf_targets(const std::vector<MappedParameter>& parameters, const CheckpointReader& reader) {
  std::vector<HfTarget> targets;
  std::map<std::string, size_t> index;
  for (const MappedParameter& parameter : parameters) {
    const ManifestTensor& stored = stored_tensor(parameter, reader);
    const auto size = static_cast<int64_t>(dtype_bytes(stored.dtype));
    for (const TensorPiece& piece : parameter.pieces) {
      const auto [place, is_new] = index.emplace(piece.tensor, targets.size());
      if (is_new) targets.push_back({piece.tensor, piece.tensor_shape, {}});
      for (int64_t done = 0; done < piece.num_elements;) {  // a slice of the parameter after the other
        const auto bytes = reader.stored_bytes(stored, piece.parameter_offset + done);
        const int64_t count = std::min(piece.num_elements - done, static_cast<int64_t>(bytes.size()) / size);
        targets[place->second].pieces.push_back({piece, done, count, stored.dtype, bytes.data()});
        done += count;
      }
    }
    for (const std::string& copy : parameter.copies) {
      HfTarget target = targets[index.at(parameter.pieces.front().tensor)];
      target.name = copy;
      targets.push_back(std::move(target));
    }
  }
  return targets;
}

// As which a tensor is written.
DType dtype_of(const HfTarget& target, std::optional<DType> wanted) {
  const DType stored = target.pieces.front().dtype;
  const bool mixed =
      std::ranges::any_of(target.pieces, [&](const StoredPiece& piece) { return piece.dtype != stored; });
  const DType own = mixed ? DType::kF32 : stored;
  return is_selection_bias(target.name) ? own : wanted.value_or(own);
}

TensorSource source_of(HfTarget target, DType dtype) {
  const std::string name = target.name;
  const Shape shape = target.shape;
  return {name, dtype, shape,
          [target = std::move(target), dtype](size_t begin_byte, std::span<std::byte> out) {
            const auto size = static_cast<int64_t>(dtype_bytes(dtype));
            const int64_t begin = static_cast<int64_t>(begin_byte) / size;
            const int64_t end = begin + static_cast<int64_t>(out.size()) / size;
            for (const StoredPiece& piece : target.pieces) piece.write(begin, end, dtype, out.data());
            return std::span<const std::byte>(out);
          },
          check_mapped_files};
}

TensorSource stored_source(const SafetensorsFile& file, const SafetensorsFile::Entry& entry) {
  return {entry.name, entry.dtype, entry.shape,
          [bytes = file.bytes(entry)](size_t begin, std::span<std::byte> scratch) {
            return bytes.subspan(begin, scratch.size());
          },
          check_mapped_files};
}

// What config.json calls it.
std::string transformers_dtype(DType dtype) {
  if (dtype == DType::kBF16) return "bfloat16";
  return dtype == DType::kF16 ? "float16" : "float32";
}

Error taken(const fs::path& out) {
  return usage_error(fmt::format("'{}' exists already", out.string()), "name a new folder for the export");
}

// Where the export is to be, once it is known to be free.
fs::path free_folder(fs::path out) {
  if (!out.has_filename()) out = out.parent_path();  // "model/"
  if (out.empty()) throw usage_error("the folder to export to has no name", "name a new folder");
  if (fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out))) {
    throw taken(out);
  }
  return out;
}

// Tensors cut into files in their order.
std::vector<std::vector<TensorSource>> cut_into_shards(std::vector<TensorSource> tensors, int64_t shard_bytes) {
  std::vector<std::vector<TensorSource>> shards(1);
  int64_t filled = 0;
  for (TensorSource& tensor : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.num_bytes());
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

// Writes the weights and returns the hash of every tensor by name.
std::map<std::string, std::string> write_weights(const fs::path& dir, std::vector<TensorSource> tensors,
                                                 int64_t shard_bytes, ThreadPool& pool) {
  const auto shards = cut_into_shards(std::move(tensors), shard_bytes);
  std::map<std::string, std::string> hashes;
  OrderedJson weight_map = OrderedJson::object();
  size_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    const std::vector<ChunkHashes> written = write_safetensors(dir / file, shards[i], pool, kMetadata);
    for (size_t k = 0; k < written.size(); ++k) {
      hashes[shards[i][k].name] = tensor_sha256(written[k]);
      weight_map[shards[i][k].name] = file;
      total_bytes += shards[i][k].num_bytes();
    }
  }
  if (shards.size() > 1) {
    const OrderedJson index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    write_file_atomically(dir / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  return hashes;
}

void check_for_signal(const StopSignal& stop) {
  if (!stop.requested()) return;
  throw runtime_error(fmt::format("stopped by {}: nothing is exported", stop.name()), "run the same command again");
}

// The same tensors, whose reading ends when a signal came.
std::vector<TensorSource> interruptible(std::vector<TensorSource> tensors, const StopSignal& stop) {
  for (TensorSource& tensor : tensors) {
    tensor.read = [read = std::move(tensor.read), &stop](size_t begin, std::span<std::byte> out) {
      check_for_signal(stop);
      return read(begin, out);
    };
  }
  return tensors;
}

// Of a tensor, or of the scales of one; "" where there is none of the name.
std::string hash_of(const HfWeights& weights, const std::string& name) {
  if (const HfTensor* tensor = weights.find(name)) return tensor->sha256();
  if (is_blocks_name(name)) {
    if (const HfTensor* codes = weights.find(name_of_blocks(name))) return codes->sha256();
  }
  const HfTensor* quantised = is_scales_name(name) ? weights.find(name_of_scaled(name)) : nullptr;
  return quantised != nullptr ? quantised->scales_sha256() : "";
}

// Holds what is on the disk against what was meant.
void read_back(const fs::path& dir, const std::map<std::string, std::string>& hashes, const StopSignal& stop,
               ThreadPool& pool) {
  const HfBinding binding(dir);  // config.json describes exactly these tensors
  const std::vector<std::pair<std::string, std::string>> expected(hashes.begin(), hashes.end());
  const int64_t found = std::ssize(binding.weights().tensors()) + binding.weights().num_quantised();
  NMOE_CHECK(found == std::ssize(expected), "{} tensors read back, {} written", found, expected.size());
  pool.parallel_for(static_cast<int64_t>(expected.size()), [&](int64_t i, int) {
    check_for_signal(stop);
    const auto& [name, hash] = expected[static_cast<size_t>(i)];
    if (hash_of(binding.weights(), name) != hash) {
      throw runtime_error(
          fmt::format("'{}': tensor '{}' reads back with other bytes than were written", dir.string(), name),
          "check the disk and its file system, then export again");
    }
  });
}

bool is_zero(const ManifestTensor& tensor, const CheckpointReader& reader) {
  return std::ranges::all_of(tensor.slices, [&](const TensorSlice& slice) {
    return std::ranges::all_of(reader.stored_bytes(tensor, slice.range.offset),
                               [](std::byte byte) { return byte == std::byte{0}; });
  });
}

// Everything that keeps the model from being one of `type`: its keys and, where those agree that there is no selection
// bias, one that earlier training left.
void check_expressible(const ModelConfig& config, ModelType type, const CheckpointReader& reader) {
  std::vector<std::string> obstacles = obstacles_to(config, type);
  if (!has_selection_bias(type) && config.moe.bias_rate == 0.0) {
    for (const ManifestTensor& tensor : reader.model()) {
      if (!tensor.name.ends_with(".moe.router_bias") || is_zero(tensor, reader)) continue;
      obstacles.push_back(fmt::format("{} is not zero: {} has no selection bias", tensor.name, model_type_name(type)));
    }
  }
  if (!obstacles.empty()) throw not_expressible(type, obstacles);
}

// The token that began every text in training: what ended the one before. None where documents were masked, and a text
// saw nothing before it.
std::string token_in_front(const Tokenizer& tokenizer, const Config& config) {
  return std::string(config.data.mask_documents ? "" : tokenizer.special_text(tokenizer.eos_id()));
}

// A copy, on the disk.
void copy_durably(const fs::path& source, const fs::path& target) {
  fs::copy_file(source, target);
  sync_file(target);
}

// What is exported: a checkpoint, and what an import left in it or training from the start says of its model.
struct Source {
  explicit Source(const ExportOptions& options);
  bool is_imported() const { return !base.empty(); }
  // Tensors that were imported and are not trained: all that is carried but scales.
  std::vector<const SafetensorsFile::Entry*> carried_weights() const;
  bool has_scales(const std::string& tensor) const {
    return carried_tensors && (carried_tensors->find(scales_name(tensor)) != nullptr ||
                               carried_tensors->find(block_scales_name(tensor)) != nullptr);
  }

  CheckpointReader reader;
  Config config;
  std::vector<CarriedFile> carried_files;
  std::string base;                                // the config.json that was imported; "": there is none
  std::optional<SafetensorsFile> carried_tensors;  // that were imported and are not trained, and scales
  bool carries_tokenizer = false;
  std::shared_ptr<const Tokenizer> tokenizer;  // the checkpoint's own, where none is carried
  HfModel model;
};

Source::Source(const ExportOptions& options)
    : reader(CheckpointReader::open(options.checkpoint)),
      config(saved_config(reader)),
      carried_files(reader.carried()) {
  for (const CarriedFile& file : carried_files) {
    if (file.name == "config.json") base = read_file(file.source);
    if (file.name == kCarriedTensors) carried_tensors.emplace(file.source);
    carries_tokenizer = carries_tokenizer || file.name == "tokenizer.json";
  }
  if (is_imported()) {
    model = from_config_json(base, (reader.path() / kCarriedFolder / "config.json").string());
  } else {
    model.type = nearest_type(config.model);
  }
  if (!carries_tokenizer && !reader.tokenizer_json().empty()) {
    tokenizer = reader.tokenizer();
    model.bos_id = tokenizer->eos_id();  // a document begins where the last one ended
    model.eos_ids = {tokenizer->eos_id()};
  }
  model.config = config.model;
  if (model.config.mtp.depth > 0) model.num_nextn_predict_layers = model.config.mtp.num_modules();
  if (model.config.max_positions == 0) model.config.max_positions = config.data.seq_len;
  check_expressible(model.config, model.type, reader);
}

std::vector<const SafetensorsFile::Entry*> Source::carried_weights() const {
  std::vector<const SafetensorsFile::Entry*> weights;
  if (!carried_tensors) return weights;
  for (const SafetensorsFile::Entry& entry : carried_tensors->entries()) {
    if (!is_scales_name(entry.name)) weights.push_back(&entry);
  }
  return weights;
}

void check_has_format(const Source& source) {
  const auto is_scales = [](const SafetensorsFile::Entry& entry) { return is_scales_name(entry.name); };
  if (source.carried_tensors && std::ranges::any_of(source.carried_tensors->entries(), is_scales)) return;
  throw usage_error(fmt::format("'{}' was not imported from quantised weights: there is no format to keep",
                                source.reader.path().string()),
                    "leave --keep-format out; if its model was quantised, import that again");
}

// That of the quantised weights whose scales were carried along.
HfFormat kept_format_of(const SafetensorsFile& carried) {
  const bool is_mxfp4 = std::ranges::any_of(carried.entries(), [](const SafetensorsFile::Entry& entry) {
    return is_scales_name(entry.name) && entry.dtype == DType::kU8;
  });
  return is_mxfp4 ? HfFormat::kMxFp4 : HfFormat::kFp8;
}

// The weights as Hugging Face's tensors, of the dtype asked for or as they are stored: what is to be quantised is.
std::vector<TensorSource> trained_tensors(const Source& source, const ExportOptions& options) {
  const auto parameters = map_parameters(source.model.config, source.model.type);
  std::vector<TensorSource> tensors;
  for (HfTarget& target : hf_targets(parameters, source.reader)) {
    const bool is_quantised = options.keep_format && source.has_scales(target.name);
    const DType written = dtype_of(target, is_quantised ? std::nullopt : options.dtype);
    tensors.push_back(source_of(std::move(target), written));
  }
  return tensors;
}

// The files that an import carried along. Whether the model card of the model that was imported is one of them, which
// is then kept beside the export's own, if it is to have one.
bool write_carried_files(const fs::path& dir, const Source& source, bool has_own_card) {
  bool has_base_card = false;
  for (const CarriedFile& file : source.carried_files) {
    if (file.name == kCarriedTensors || file.name == "config.json") continue;
    if (!is_carried_by_import(file.name)) {
      throw runtime_error(fmt::format("'{}' is not a file that an import carries along", file.source.string()),
                          "the checkpoint was altered: take another one");
    }
    const bool is_card = file.name == kModelCard && has_own_card;
    copy_durably(file.source, dir / (is_card ? std::string(kBaseModelCard) : file.name));
    has_base_card = has_base_card || is_card;
  }
  return has_base_card;
}

// What training's own tokenizer is to transformers. False where it has no such form: then generation_config.json alone
// is written.
bool write_tokenizer(const fs::path& dir, const Source& source, const std::string& begins_with) {
  write_file_atomically(dir / "generation_config.json", generation_config_json(source.model));
  if (source.tokenizer->name() != "bpe") return false;
  write_file_atomically(dir / "tokenizer.json", exported_tokenizer_json(*source.tokenizer, begins_with));
  write_file_atomically(dir / "tokenizer_config.json",
                        tokenizer_config_json(*source.tokenizer, begins_with, source.model.config.max_positions));
  return true;
}

void change_file(const fs::path& path, const std::string& otherwise,
                 const std::function<std::string(const std::string&)>& change) {
  const std::string before = fs::exists(path) ? read_file(path) : "";
  const std::string after = change(before.empty() ? otherwise : before);
  if (after != before) write_file_atomically(path, after);
}

// Into the files that say it to others: those are older than what the model was trained on.
void write_conversation_form(const fs::path& dir, const ConversationForm& form, const HfModel& model) {
  change_file(dir / "tokenizer_config.json", "{}",
              [&](const std::string& text) { return with_chat_template(text, form.chat_template); });
  change_file(dir / kChatTemplateFile, "", [&](const std::string&) { return form.chat_template; });
  change_file(dir / "generation_config.json", generation_config_json(model),
              [&](const std::string& text) { return with_stop_ids(text, form.stop_ids); });
}

// All but the weights, and whether there is a tokenizer among it.
bool write_other_files(const fs::path& dir, const Source& source, const ConversationForm& conversations,
                       const std::string& weights_sha256) {
  const std::string config_json = to_config_json(source.model, source.base);
  write_file_atomically(dir / "config.json", config_json);
  ModelCard card{.name = source.config.run.name,
                 .model = from_config_json(config_json, "config.json"),
                 .steps = source.reader.info().step,
                 .tokens = source.reader.info().tokens,
                 .version = source.reader.info().nmoe_version,
                 .weights_sha256 = weights_sha256,
                 .has_tokenizer = source.carries_tokenizer,
                 .imported = source.is_imported()};
  const bool was_trained = card.steps > 0;
  card.has_base_card = write_carried_files(dir, source, was_trained);
  if (source.tokenizer) {
    const std::string begins_with = token_in_front(*source.tokenizer, source.config);
    if (write_tokenizer(dir, source, begins_with)) {
      card.has_tokenizer = true;
      card.begins_with = begins_with;
    }
  }
  if (card.has_tokenizer && !conversations.chat_template.empty()) {
    write_conversation_form(dir, conversations, source.model);
    card.has_chat_template = true;
  }
  if (was_trained) {
    const ModelCost cost = model_cost(card.model.config);
    card.parameters = cost.parameters;
    card.active_parameters = cost.active_parameters;
    write_file_atomically(dir / kModelCard, model_card(card));
  }
  return card.has_tokenizer;
}

int64_t count_weight_files(const fs::path& dir) {
  return std::ranges::count_if(fs::directory_iterator(dir),
                               [](const auto& entry) { return entry.path().extension() == ".safetensors"; });
}

// Puts the finished folder where it is to be.
void publish(const fs::path& dir, const fs::path& out) {
  sync_directory(dir);
  std::error_code error;
  fs::rename(dir, out, error);
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists) throw taken(out);  // meanwhile
  if (error) throw io_error("make", out, error.value());
  sync_directory(fs::absolute(out).parent_path());
}

}  // namespace

ExportReport export_model(const ExportOptions& options) {
  if (options.shard_bytes <= 0) throw usage_error("a shard of 0 bytes holds nothing", "give --shard-size as \"5GB\"");
  const fs::path out = free_folder(options.out);
  Source source(options);
  if (options.keep_format) check_has_format(source);
  const std::string weights_sha256 = source.reader.weights_sha256();  // verifies every byte
  std::vector<TensorSource> tensors = trained_tensors(source, options);
  source.model.dtype = transformers_dtype(tensors.front().dtype);
  source.model.format = options.keep_format ? kept_format_of(*source.carried_tensors) : HfFormat::kPlain;

  ExportReport report;
  report.checkpoint = source.reader.path();
  report.type = source.model.type;
  for (const SafetensorsFile::Entry* entry : source.carried_weights()) {
    tensors.push_back(stored_source(*source.carried_tensors, *entry));
    ++report.num_carried;
  }

  const StopSignal stop;
  ThreadPool pool(options.num_threads);
  tensors = interruptible(std::move(tensors), stop);
  if (options.keep_format) {
    KeptFormat kept = in_kept_format(std::move(tensors), *source.carried_tensors, source.model.scales, pool);
    tensors = std::move(kept.tensors);
    report.num_unchanged = kept.num_unchanged;
    report.num_changed = kept.num_changed;
  }
  report.num_tensors = static_cast<int64_t>(tensors.size());
  for (const TensorSource& tensor : tensors) report.num_bytes += static_cast<int64_t>(tensor.num_bytes());

  make_directories(fs::absolute(out).parent_path());
  remove_unfinished_folders(out);
  const TemporaryFolder folder(out);
  const auto hashes = write_weights(folder.path(), std::move(tensors), options.shard_bytes, pool);
  report.has_tokenizer = write_other_files(folder.path(), source, options.conversations, weights_sha256);
  read_back(folder.path(), hashes, stop, pool);
  report.num_files = count_weight_files(folder.path());
  check_for_signal(stop);
  publish(folder.path(), out);
  return report;
}

}  // namespace nmoe
