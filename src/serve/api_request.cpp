#include "serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "base/json.h"
#include "base/text.h"
#include "data/prep/messages.h"
#include "serve/api_error.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxValues = 250000;  // of a request's JSON
constexpr size_t kMaxStops = 16;
constexpr int64_t kMaxTopLogprobs = 20;
constexpr int64_t kMaxChoices = 128;

ordered_json parse_body(const std::string& body) {
  try {
    ordered_json json = parse_json<ordered_json>(body, kMaxValues);
    if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
    return json;
  } catch (const JsonError& error) {
    throw ApiError(400, fmt::format("the body is not valid JSON: {}", error.what()));
  }
}

// Reads fields, and at the end knows those that nobody asked for.
class Fields {
 public:
  explicit Fields(const ordered_json& object) : object_(object) {}

  // nullptr where it is missing or null.
  const ordered_json* find(const std::string& name) {
    known_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<double> number(const std::string& name, double min, double max) {
    const ordered_json* value = find(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= min && number <= max)) wrong(name, fmt::format("a number from {} to {}", min, max));
    return number;
  }
  std::optional<int64_t> whole(const std::string& name, int64_t min, int64_t max) {
    const ordered_json* value = find(name);
    if (value == nullptr) return std::nullopt;
    const bool unsigned_too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(max);
    if (!value->is_number_integer() || unsigned_too_large || value->get<int64_t>() < min ||
        value->get<int64_t>() > max) {
      wrong(name, fmt::format("an integer from {} to {}", min, max));
    }
    return value->get<int64_t>();
  }
  bool flag(const std::string& name) {
    const ordered_json* value = find(name);
    if (value != nullptr && !value->is_boolean()) wrong(name, "true or false");
    return value != nullptr && value->get<bool>();
  }
  std::string text(const std::string& name) {
    const ordered_json* value = find(name);
    if (value != nullptr && !value->is_string()) wrong(name, "a string");
    return value == nullptr ? "" : value->get<std::string>();
  }

  // A field that would change the result, and is not supported: only a value without effect may be there.
  void unsupported(const std::string& name, const std::vector<ordered_json>& without_effect) {
    const ordered_json* value = find(name);
    if (value == nullptr || std::ranges::find(without_effect, *value) != without_effect.end()) return;
    throw ApiError(400, fmt::format("'{}' is not supported by this server", name), name, "unsupported_parameter");
  }
  // One that does not change the result.
  void ignore(const std::string& name) { find(name); }

  void refuse_others() const {
    for (const auto& [name, value] : object_.items()) {
      if (known_.contains(name) || value.is_null()) continue;
      const std::vector<std::string> names(known_.begin(), known_.end());
      const std::string typo = nearest(name, names);
      const std::string hint = typo.empty() ? "" : fmt::format("; did you mean '{}'?", typo);
      throw ApiError(400, fmt::format("unknown field '{}'{}", name, hint), name, "unknown_parameter");
    }
  }

  [[noreturn]] static void wrong(const std::string& name, std::string_view expected) {
    throw ApiError(400, fmt::format("'{}' must be {}", name, expected), name, "invalid_value");
  }

 private:
  const ordered_json& object_;
  std::set<std::string> known_;
};

void read_common(Fields& fields, const SamplingDefaults& defaults, ApiRequest& request) {
  request.model = fields.text("model");
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 0, 100).value_or(defaults.temperature.value_or(1.0));
  sampling.top_p = fields.number("top_p", 0, 1).value_or(defaults.top_p.value_or(1.0));
  sampling.min_p = fields.number("min_p", 0, 1).value_or(defaults.min_p.value_or(0.0));
  sampling.top_k = std::max<int64_t>(0, fields.whole("top_k", -1, std::numeric_limits<int32_t>::max())
                                            .value_or(defaults.top_k.value_or(0)));  // -1: all, as in vLLM
  sampling.repetition_penalty =
      fields.number("repetition_penalty", 0.01, 100).value_or(defaults.repetition_penalty.value_or(1.0));
  if (const auto seed =
          fields.whole("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    request.seed = static_cast<uint64_t>(*seed);
  }
  request.max_tokens = fields.whole("max_tokens", 0, std::numeric_limits<int32_t>::max());
  request.n = fields.whole("n", 1, kMaxChoices).value_or(1);
  request.ignore_eos = fields.flag("ignore_eos");
  request.stream = fields.flag("stream");
  if (const ordered_json* options = fields.find("stream_options")) {
    if (!options->is_object() || !request.stream) Fields::wrong("stream_options", "an object, with \"stream\": true");
    Fields inner(*options);
    request.include_usage = inner.flag("include_usage");
    inner.ignore("include_obfuscation");
    inner.refuse_others();
  }
  if (const ordered_json* stop = fields.find("stop")) {
    const ordered_json list = stop->is_array() ? *stop : ordered_json::array({*stop});
    for (const ordered_json& text : list) {
      if (!text.is_string() || text.get_ref<const std::string&>().empty() || list.size() > kMaxStops) {
        Fields::wrong("stop", fmt::format("a string, or a list of at most {}, none of them empty", kMaxStops));
      }
      request.stop.push_back(text.get<std::string>());
    }
  }
  fields.unsupported("presence_penalty", {0});
  fields.unsupported("frequency_penalty", {0});
  fields.unsupported("logit_bias", {ordered_json::object()});
  for (const char* name : {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}) {
    fields.ignore(name);
  }
}

std::vector<int32_t> ids_of(const ordered_json& list) {
  std::vector<int32_t> ids;
  for (const ordered_json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      Fields::wrong("prompt", "a string, a list of strings, a list of token ids, or a list of such lists");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void read_prompts(const ordered_json* prompt, ApiRequest& request) {
  if (prompt == nullptr) {
    request.prompts.emplace_back("");
    return;
  }
  const bool list = prompt->is_array() && !prompt->empty();
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
  } else if (list && prompt->front().is_number()) {
    request.prompts.emplace_back(ids_of(*prompt));
  } else if (list) {
    for (const ordered_json& one : *prompt) {
      if (one.is_string()) {
        request.prompts.emplace_back(one.get<std::string>());
      } else {
        request.prompts.emplace_back(ids_of(one.is_array() ? one : ordered_json::array({one})));
      }
    }
  } else {
    ids_of(ordered_json::array({*prompt}));  // says what it must be
    Fields::wrong("prompt", "not empty");
  }
}

// "content": a string, nothing in what the assistant said, or parts of text.
ordered_json content_of(const ordered_json& message, const std::string& place) {
  const ordered_json content = message.value("content", ordered_json());
  if (content.is_string()) return content;
  if (content.is_null() && message.at("role") == "assistant") return "";
  if (!content.is_array()) Fields::wrong(place + ".content", "a string, or a list of parts of the type \"text\"");
  const std::string wrong = wrong_part(content);
  if (!wrong.empty()) {
    throw ApiError(400, fmt::format("'{}.content' has {}", place, wrong), place + ".content", "invalid_value");
  }
  return content;
}

// Calls of functions, in OpenAI's form. Templates want the arguments as objects.
ordered_json read_tool_calls(const ordered_json& calls, const std::string& place) {
  constexpr std::string_view kForm =
      "a list of {\"type\": \"function\", \"function\": {\"name\": string, \"arguments\": a JSON object as a string}}";
  if (!calls.is_array()) Fields::wrong(place, kForm);
  ordered_json result = calls;
  for (ordered_json& call : result) {
    if (!call.is_object() || call.value("type", ordered_json("function")) != "function") Fields::wrong(place, kForm);
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object() || !function->value("name", ordered_json()).is_string()) {
      Fields::wrong(place, kForm);
    }
    ordered_json& arguments = (*function)["arguments"];
    if (arguments.is_string()) arguments = try_parse_json<ordered_json>(arguments.get<std::string>());
    if (!arguments.is_object()) Fields::wrong(place, kForm);
  }
  return result;
}

// The functions that a chat's model may call, as its template takes them; nothing where it is to call none.
void read_tools(Fields& fields, ApiRequest& request) {
  const ordered_json* tools = fields.find("tools");
  const ordered_json* choice = fields.find("tool_choice");
  fields.unsupported("tool_choice", {"none", "auto"});
  if (tools == nullptr) return;
  constexpr std::string_view kForm = "a list of {\"type\": \"function\", \"function\": {\"name\": string, ...}}";
  if (!tools->is_array()) Fields::wrong("tools", kForm);
  for (const ordered_json& tool : *tools) {
    const ordered_json function = tool.is_object() ? tool.value("function", ordered_json()) : ordered_json();
    const bool named = function.is_object() && function.value("name", ordered_json()).is_string();
    if (!named || tool.value("type", ordered_json()) != "function") Fields::wrong("tools", kForm);
  }
  if (!tools->empty() && (choice == nullptr || *choice == "auto")) request.template_variables["tools"] = *tools;
}

ordered_json read_messages(const ordered_json* messages) {
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    Fields::wrong("messages", "a list of messages, not empty");
  }
  ordered_json result = ordered_json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    const ordered_json& message = (*messages)[i];
    const std::string place = fmt::format("messages[{}]", i);
    if (!message.is_object()) Fields::wrong(place, "an object with \"role\" and \"content\"");
    Fields fields(message);
    std::string role = fields.text("role");
    if (role == "developer") role = "system";  // OpenAI's newer name for it
    constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
    if (std::ranges::find(kRoles, role) == kRoles.end()) {
      Fields::wrong(place + ".role", "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
    }
    fields.ignore("content");
    fields.unsupported("type", {"text"});  // as lm-evaluation-harness sends it
    const ordered_json* calls = fields.find("tool_calls");
    if (calls != nullptr && role != "assistant") Fields::wrong(place + ".tool_calls", "the assistant's");
    for (const char* name : {"function_call", "audio"}) fields.unsupported(name, {});
    for (const char* name : {"refusal", "annotations", "name", "reasoning_content", "tool_call_id"})
      fields.ignore(name);
    fields.refuse_others();
    ordered_json checked = {{"role", role}, {"content", content_of(message, place)}};
    if (calls != nullptr && *calls != ordered_json::array()) {
      checked["tool_calls"] = read_tool_calls(*calls, place + ".tool_calls");
    }
    for (const char* name : {"name", "reasoning_content", "tool_call_id"}) {
      if (const std::string text = fields.text(name); !text.empty()) checked[name] = text;
    }
    result.push_back(std::move(checked));
  }
  return result;
}

}  // namespace

ApiRequest parse_completion_request(const std::string& body, const SamplingDefaults& defaults) {
  const ordered_json json = parse_body(body);
  Fields fields(json);
  ApiRequest request;
  read_common(fields, defaults, request);
  read_prompts(fields.find("prompt"), request);
  constexpr int64_t kUsualMaxTokens = 16;  // as OpenAI's
  if (!request.max_tokens) request.max_tokens = kUsualMaxTokens;
  request.echo = fields.flag("echo");
  if (const auto top = fields.whole("logprobs", 0, kMaxTopLogprobs)) {
    request.logprobs = true;
    request.top_logprobs = static_cast<int>(*top);
  }
  fields.unsupported("suffix", {""});
  fields.unsupported("best_of", {1});
  fields.refuse_others();
  return request;
}

ApiRequest parse_chat_request(const std::string& body, const SamplingDefaults& defaults) {
  const ordered_json json = parse_body(body);
  Fields fields(json);
  ApiRequest request;
  request.is_chat = true;
  read_common(fields, defaults, request);
  request.messages = read_messages(fields.find("messages"));
  if (const auto most = fields.whole("max_completion_tokens", 0, std::numeric_limits<int32_t>::max())) {
    if (request.max_tokens && *request.max_tokens != *most) {
      Fields::wrong("max_completion_tokens", "given without another max_tokens");
    }
    request.max_tokens = most;
  }
  request.logprobs = fields.flag("logprobs");
  if (const auto top = fields.whole("top_logprobs", 0, kMaxTopLogprobs)) {
    if (!request.logprobs) Fields::wrong("top_logprobs", "given with \"logprobs\": true");
    request.top_logprobs = static_cast<int>(*top);
  }
  if (const ordered_json* variables = fields.find("chat_template_kwargs")) {
    if (!variables->is_object()) Fields::wrong("chat_template_kwargs", "an object");
    request.template_variables = *variables;
  }
  if (const std::string effort = fields.text("reasoning_effort"); !effort.empty()) {
    request.template_variables["reasoning_effort"] = effort;
  }
  read_tools(fields, request);
  fields.unsupported("functions", {ordered_json::array()});
  fields.unsupported("function_call", {"none", "auto"});
  fields.unsupported("response_format", {{{"type", "text"}}});
  fields.unsupported("modalities", {ordered_json::array({"text"})});
  for (const char* name : {"audio", "prediction", "verbosity", "web_search_options"}) {
    fields.unsupported(name, {});
  }
  fields.unsupported("store", {false});
  fields.ignore("parallel_tool_calls");
  fields.refuse_others();
  return request;
}

}  // namespace nmoe
