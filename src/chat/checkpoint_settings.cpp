#include "chat/checkpoint_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/json.h"

namespace nmoe {
namespace {

using nlohmann::json;

Error wrong(const fs::path& file, std::string_view key, std::string_view expected) {
  return runtime_error(fmt::format("{}: {} is not {}", file.string(), key, expected),
                       "correct the file, or remove it to go without what it says");
}

// An empty object where there is no such file.
json read_object(const fs::path& file) {
  if (!fs::exists(file)) return json::object();
  json object = try_parse_json<json>(read_file_up_to(file, kMaxSettingsFile));
  if (!object.is_object()) throw wrong(file, "its content", "a JSON object");
  return object;
}

// "" where there is none.
std::string template_of(const json& config, const fs::path& file) {
  const json value = config.value("chat_template", json());
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  constexpr std::string_view kExpected = "a string, or a list of {\"name\", \"template\"} with a \"default\"";
  if (value.is_array()) {
    for (const json& named : value) {
      const bool good = named.is_object() && named.contains("template") && named["template"].is_string();
      if (good && named.value("name", json()) == "default") return named["template"].get<std::string>();
    }
  }
  throw wrong(file, "chat_template", kExpected);
}

void read_tokens(const json& config, const fs::path& file, CheckpointSettings& settings) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token") || key.starts_with("add_") || value.is_null()) continue;
    const json content = value.is_object() ? value.value("content", json()) : value;
    if (!content.is_string()) throw wrong(file, key, "a string or {\"content\": string}");
    settings.special_tokens[key] = content.get<std::string>();
  }
}

// The names of the special tokens in front of the text, in the part of a post-processor that adds some.
std::vector<std::string> tokens_in_front(const json& post_processor, const fs::path& file) {
  const json type = post_processor.is_object() ? post_processor.value("type", json()) : json();
  if (type == "Sequence" && post_processor.value("processors", json()).is_array()) {
    std::vector<std::string> names;
    for (const json& part : post_processor["processors"]) {
      const std::vector<std::string> more = tokens_in_front(part, file);
      names.insert(names.begin(), more.begin(), more.end());  // around what the parts before it have made
    }
    return names;
  }
  std::vector<std::string> names;
  if (type != "TemplateProcessing") return names;
  const json single = post_processor.value("single", json());
  if (!single.is_array()) throw wrong(file, "post_processor.single", "a list");
  for (const json& part : single) {
    const json token = part.is_object() ? part.value("SpecialToken", json()) : json();
    if (!token.is_object()) break;  // the text
    const json name = token.value("id", json());
    if (!name.is_string()) throw wrong(file, "a SpecialToken of post_processor.single", "named by its \"id\"");
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::string> begin_tokens(const json& config, const CheckpointSettings& settings, const fs::path& folder) {
  const json says = config.value("add_bos_token", json());
  if (says.is_boolean()) {
    const auto bos = settings.special_tokens.find("bos_token");
    return says == true && bos != settings.special_tokens.end() ? std::vector{bos->second} : std::vector<std::string>{};
  }
  const fs::path file = folder / "tokenizer.json";
  return tokens_in_front(read_object(file).value("post_processor", json()), file);
}

void read_stop_ids(const json& config, const fs::path& file, const Tokenizer& tokenizer, CheckpointSettings& settings) {
  const json eos = config.value("eos_token_id", json());
  for (const json& id : eos.is_array() ? eos : eos.is_null() ? json::array() : json::array({eos})) {
    if (!id.is_number_integer() || id < 0 || id >= tokenizer.vocab_size()) {
      throw wrong(file, "eos_token_id", fmt::format("an id below {}, or a list of them", tokenizer.vocab_size()));
    }
    settings.stop_ids.push_back(id.get<int32_t>());
  }
}

void read_sampling(const json& config, const fs::path& file, CheckpointSettings& settings) {
  const auto number = [&](const char* key, double min, double max) -> std::optional<double> {
    const json value = config.value(key, json());
    if (value.is_null()) return std::nullopt;
    if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max)) {
      throw wrong(file, key, fmt::format("a number from {} to {}", min, max));
    }
    return value.get<double>();
  };
  SamplingDefaults& sampling = settings.sampling;
  sampling.temperature = number("temperature", 0, 100);
  sampling.top_p = number("top_p", 0, 1);
  sampling.min_p = number("min_p", 0, 1);
  sampling.repetition_penalty = number("repetition_penalty", 0.01, 100);
  // -1 means all, as 0 does
  if (const auto top_k = number("top_k", -1, 1e9)) sampling.top_k = static_cast<int64_t>(std::max(*top_k, 0.0));
}

}  // namespace

CheckpointSettings read_checkpoint_settings(const fs::path& checkpoint, const Tokenizer& tokenizer) {
  return read_model_settings(checkpoint / "huggingface", tokenizer);
}

CheckpointSettings read_model_settings(const fs::path& folder, const Tokenizer& tokenizer) {
  const fs::path template_file = folder / "chat_template.jinja", tokenizer_file = folder / "tokenizer_config.json",
                 generation_file = folder / "generation_config.json", model_file = folder / "config.json";
  CheckpointSettings settings;
  settings.imported = fs::exists(folder / "config.json") || fs::exists(tokenizer_file) || fs::exists(generation_file);
  const json config = read_object(tokenizer_file);
  read_tokens(config, tokenizer_file, settings);
  const bool own_file = fs::exists(template_file);
  settings.chat_template =
      own_file ? read_file_up_to(template_file, kMaxSettingsFile) : template_of(config, tokenizer_file);
  settings.chat_template_file = own_file ? template_file.string() : tokenizer_file.string() + " (chat_template)";

  if (!settings.imported) {
    settings.special_tokens["eos_token"] = tokenizer.special_text(tokenizer.eos_id());
  }
  const auto named = [&](const char* role) -> std::optional<int32_t> {
    const auto found = settings.special_tokens.find(role);
    return found == settings.special_tokens.end() ? std::nullopt : tokenizer.special_id(found->second);
  };
  for (const std::string& token : begin_tokens(config, settings, folder)) {
    const auto id = tokenizer.special_id(token);
    if (!id) throw wrong(folder, fmt::format("{}, with which texts begin,", token), "a special token of the tokenizer");
    settings.begin_ids.push_back(*id);
  }

  const json generation = read_object(generation_file);
  read_sampling(generation, generation_file, settings);
  const fs::path& stops_file = generation.contains("eos_token_id") ? generation_file : model_file;
  read_stop_ids(read_object(stops_file), stops_file, tokenizer, settings);
  if (const auto eos = named("eos_token")) settings.stop_ids.push_back(*eos);
  std::ranges::sort(settings.stop_ids);
  settings.stop_ids.erase(std::unique(settings.stop_ids.begin(), settings.stop_ids.end()), settings.stop_ids.end());
  return settings;
}

std::optional<TextIds> imported_text_ids(const fs::path& checkpoint, const Tokenizer& tokenizer) {
  const CheckpointSettings settings = read_checkpoint_settings(checkpoint, tokenizer);
  if (!settings.imported) return std::nullopt;
  return TextIds{.begin = settings.begin_ids, .stop = settings.stop_ids};
}

std::vector<std::string> read_begin_tokens(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  const json config = read_object(file);
  CheckpointSettings settings;
  read_tokens(config, file, settings);
  return begin_tokens(config, settings, folder);
}

}  // namespace nmoe
