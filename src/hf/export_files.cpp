#include "hf/export_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "hf/config_json_keys.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

int32_t id_of(const Tokenizer& tokenizer, std::string_view text) {
  const auto found = tokenizer.special_id(text);
  NMOE_CHECK(found, "special token {}", text);
  return *found;
}

// Puts a special token in front of a text, and of each of a pair.
Json prepend(std::string_view token, int32_t id) {
  const auto special = [&](int type) { return Json{{"SpecialToken", {{"id", token}, {"type_id", type}}}}; };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  Json json = {{"type", "TemplateProcessing"},
               {"single", Json::array({special(0), sequence("A", 0)})},
               {"pair", Json::array({special(0), sequence("A", 0), special(1), sequence("B", 1)})}};
  json["special_tokens"][std::string(token)] = {
      {"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
  return json;
}

// The parts of a post-processor that add no tokens: they only say where in the text an id comes from.
Json offsets_only(const Json& post_processor) {
  Json kept = Json::array();
  if (!post_processor.is_object()) return kept;
  const Json parts =
      post_processor.value("type", "") == "Sequence" ? post_processor["processors"] : Json::array({post_processor});
  for (const Json& part : parts) {
    if (part.is_object() && part.value("type", "") == "ByteLevel") kept.push_back(part);
  }
  return kept;
}

Json object_of(const std::string& text, const char* file) {
  Json json = try_parse_json<Json>(text);
  if (json.is_object()) return json;
  throw runtime_error(fmt::format("{} of the checkpoint is not a JSON object", file),
                      "import the model again, from files that are whole");
}

std::string usage(const ModelCard& card) {
  std::string text = "## Use\n\n```python\n";
  if (!card.has_tokenizer) {
    return text +
           "from transformers import AutoModelForCausalLM\n\n"
           "model = AutoModelForCausalLM.from_pretrained(\"THIS_FOLDER\")\n```\n\n"
           "There is no tokenizer in this folder: the model takes ids.\n";
  }
  text +=
      "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
      "model = AutoModelForCausalLM.from_pretrained(\"THIS_FOLDER\")\n"
      "tokenizer = AutoTokenizer.from_pretrained(\"THIS_FOLDER\")\n";
  text += card.has_chat_template
              ? "messages = [{\"role\": \"user\", \"content\": \"Hello!\"}]\n"
                "inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors=\"pt\", "
                "return_dict=True)\n"
              : "inputs = tokenizer(\"It is\", return_tensors=\"pt\")\n";
  text +=
      "ids = model.generate(**inputs, max_new_tokens=100, do_sample=True)\n"
      "print(tokenizer.decode(ids[0], skip_special_tokens=True))\n```\n";
  if (card.begins_with.empty()) return text;
  return text +
         fmt::format("\nThe tokenizer puts `{}` in front of every text, as it was in training.\n", card.begins_with);
}

}  // namespace

std::string generation_config_json(const HfModel& model) {
  Json json = Json::object();
  if (model.bos_id) json["bos_token_id"] = *model.bos_id;
  if (!model.eos_ids.empty()) {
    json["eos_token_id"] = model.eos_ids.size() == 1 ? Json(model.eos_ids.front()) : Json(model.eos_ids);
    json["pad_token_id"] = model.eos_ids.front();  // in batches; the attention mask covers it
  }
  return json.dump(2) + "\n";
}

std::string exported_tokenizer_json(const Tokenizer& tokenizer, std::string_view begins_with) {
  Json json = Json::parse(tokenizer.json());
  Json parts = offsets_only(json.value("post_processor", Json()));
  if (!begins_with.empty()) parts.push_back(prepend(begins_with, id_of(tokenizer, begins_with)));
  Json& post_processor = json["post_processor"];
  if (parts.size() < 2) {
    post_processor = parts.empty() ? Json() : parts.front();
  } else {
    post_processor = {{"type", "Sequence"}, {"processors", std::move(parts)}};
  }
  return json.dump(2) + "\n";
}

std::string tokenizer_config_json(const Tokenizer& tokenizer, std::string_view begins_with, int64_t max_positions) {
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"model_max_length", max_positions},
               {"clean_up_tokenization_spaces", false}};
  const std::string eos(tokenizer.special_text(tokenizer.eos_id()));
  if (!eos.empty()) {
    for (const char* role : {"eos_token", "bos_token", "pad_token"}) json[role] = eos;
    json["add_bos_token"] = !begins_with.empty();
  }
  return json.dump(2) + "\n";
}

std::string with_stop_ids(const std::string& generation_config, std::span<const int32_t> stop_ids) {
  Json json = object_of(generation_config, "generation_config.json");
  const Json eos = json.value("eos_token_id", Json());
  Json ids = eos.is_array() ? eos : eos.is_null() ? Json::array() : Json::array({eos});
  const size_t before = ids.size();
  for (const int32_t id : stop_ids) {
    if (std::ranges::find(ids, Json(id)) == ids.end()) ids.push_back(id);
  }
  if (ids.size() == before) return generation_config;
  json["eos_token_id"] = ids.size() == 1 ? ids.front() : ids;
  return json.dump(2) + "\n";
}

std::string with_chat_template(const std::string& tokenizer_config, const std::string& chat_template) {
  Json json = object_of(tokenizer_config, "tokenizer_config.json");
  if (json.value("chat_template", Json()) == chat_template) return tokenizer_config;
  json["chat_template"] = chat_template;
  return json.dump(2) + "\n";
}

std::string model_card(const ModelCard& card) {
  const ModelConfig& config = card.model.config;
  const auto count = [](int64_t number) { return human_count(static_cast<double>(number)); };
  std::string text = fmt::format(
      "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- nmoe\n- moe\n---\n\n# {}\n\n"
      "A Mixture-of-Experts language model, {} nmoe {}.\n\n| | |\n| --- | --- |\n",
      card.name, card.imported ? "trained further with" : "trained with", card.version);
  const auto row = [&](std::string_view what, const std::string& value) {
    text += fmt::format("| {} | {} |\n", what, value);
  };
  row("type", fmt::format("`{}` (`{}`), {}", model_type_name(card.model.type), architecture_name(card.model.type),
                          card.model.dtype));
  row("parameters", fmt::format("{}, of which a token uses {}", count(card.parameters), count(card.active_parameters)));
  row("layers", fmt::format("{}, the first {} without experts; {} wide, {} heads", config.num_layers,
                            config.num_dense_layers, config.dim, config.num_heads));
  row("experts", fmt::format("{} a layer, {} for a token, {} shared by all", config.moe.num_experts, config.moe.top_k,
                             config.moe.num_shared_experts));
  row("context", fmt::format("{} tokens", config.max_positions));
  row("vocabulary", fmt::format("{} ids", config.vocab_size));
  row(card.imported ? "trained further" : "trained",
      fmt::format("{} steps, {} tokens", card.steps, count(card.tokens)));
  row("weights in nmoe (sha256)", fmt::format("`{}`", card.weights_sha256));
  text += "\n" + usage(card);
  text += "\n## Before you publish it\n\n";
  if (card.has_base_card) text += "What it was trained from describes itself in [README.base.md](README.base.md). ";
  text +=
      "This card was written by a program that does not know what the text was, what it may be used for, or how good "
      "the model is. Say so here: data, licence (`license:` at the top), evaluation, limits.\n";
  return text;
}

}  // namespace nmoe
