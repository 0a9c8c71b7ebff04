#include "data/prep/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;

constexpr const char* kParts = "write contents as text, or as lists of {\"type\": \"text\", \"text\": \"...\"}";
constexpr const char* kForm = R"(write each message as {"role": "user" | "assistant" | "system", "content": "text"})";

constexpr std::array<std::string_view, 2> kLists = {"tools", "documents"};
constexpr std::string_view kVariables = "chat_template_kwargs";
// What would make the conversation another one, and has no place in it.
constexpr std::array<std::string_view, 18> kRefused = {
    "functions", "function_call", "system", "system_prompt", "image",         "images",
    "audio",     "audios",        "video",  "videos",        "weight",        "train",
    "trainable", "loss",          "masked", "rejected",      "chat_template", "response_format"};

// Members of a message that say whether it is trained on.
struct LearnSwitch {
  std::string_view name;
  bool learned_when_set;
};
constexpr std::array<LearnSwitch, 5> kSwitches = {
    {{"weight", true}, {"train", true}, {"trainable", true}, {"loss", true}, {"masked", false}}};

bool is_empty(const ordered_json& value) {
  return value.is_null() || ((value.is_object() || value.is_array()) && value.empty()) || value == "";
}

// Whether a message is to be learned by what it says itself, which is then taken out of it; nothing if it does not say.
std::optional<bool> take_switches(ordered_json& message, size_t number) {
  std::optional<bool> learned;
  for (const LearnSwitch& one : kSwitches) {
    const auto found = message.find(one.name);
    if (found == message.end()) continue;
    const ordered_json value = *found;
    message.erase(found);
    const bool set = value == true || value == 1, unset = value == false || value == 0;
    if (!set && !unset) {
      throw runtime_error(
          fmt::format("message {} has the {} {}, which is neither 0 nor 1", number, one.name, value.dump()),
          "train on a message, or do not: nothing between is supported");
    }
    const bool says = set == one.learned_when_set;
    if (learned && *learned != says) {
      throw runtime_error(fmt::format("message {} says both that it is trained on and that it is not", number),
                          "leave one of the two members out");
    }
    learned = says;
  }
  return learned;
}

// Parts without members that are null: Parquet files have those of every type in each.
ordered_json plain_parts(const ordered_json& parts) {
  ordered_json plain = ordered_json::array();
  for (const ordered_json& part : parts) plain.push_back({{"type", "text"}, {"text", part["text"]}});
  return plain;
}

// The message as templates take it, and whether it is learned.
std::pair<ordered_json, bool> read_message(const ordered_json& given, size_t number) {
  const auto lacks = [&](const char* key) {
    return runtime_error(fmt::format("message {} has no \"{}\" that is a string", number, key), kForm);
  };
  if (!given.is_object() || !given.contains("role") || !given["role"].is_string()) throw lacks("role");
  ordered_json message = ordered_json::object();
  for (const auto& [key, value] : given.items()) {
    if (!value.is_null() && !(key == "tool_calls" && is_empty(value))) message[key] = value;
  }
  const bool is_reply = message["role"] == "assistant";
  if (!message.contains("content") && is_reply && message.contains("tool_calls")) message["content"] = nullptr;
  const ordered_json content = message.value("content", ordered_json(false));
  if (content.is_array()) {
    const std::string wrong = wrong_part(content);
    if (!wrong.empty()) throw runtime_error(fmt::format("message {} has {}", number, wrong), kParts);
    message["content"] = plain_parts(content);
  } else if (!content.is_string() && !content.is_null()) {
    throw lacks("content");
  }
  const std::optional<bool> told = take_switches(message, number);
  if (told.value_or(false) && !is_reply) {
    throw runtime_error(fmt::format("message {} is to be trained on, and its role is \"{}\"", number,
                                    message["role"].get<std::string>()),
                        "only the assistant's messages are learned: leave that out, or set it to 0");
  }
  return {std::move(message), is_reply && told.value_or(true)};
}

// A list, which Parquet files often have as JSON in a string.
ordered_json read_list(const std::string& name, const ordered_json& value) {
  const ordered_json list = value.is_string() ? try_parse_json<ordered_json>(value.get<std::string>()) : value;
  if (!list.is_array()) {
    throw runtime_error(fmt::format("\"{}\" is not a list", name),
                        fmt::format("write {} as a list, or as JSON of one", name));
  }
  return list;
}

ordered_json read_fields(const std::string& json) {
  ordered_json variables = ordered_json::object();
  if (json.empty()) return variables;
  const ordered_json fields = try_parse_json<ordered_json>(json);
  if (!fields.is_object()) throw runtime_error("what is beside its messages is nested too deeply", kForm);
  for (const auto& [name, value] : fields.items()) {
    if (is_empty(value)) continue;
    if (std::ranges::find(kLists, name) != kLists.end()) {
      if (ordered_json list = read_list(name, value); !list.empty()) variables[name] = std::move(list);
      continue;
    }
    if (name != kVariables) {
      throw runtime_error(
          fmt::format("the record has \"{}\", which is not supported beside messages", name),
          fmt::format("say it in the messages (a system message, \"tools\", a message's \"weight\"), or "
                      "say that it means nothing: --ignore-field {}",
                      name));
    }
    const ordered_json object = value.is_string() ? try_parse_json<ordered_json>(value.get<std::string>()) : value;
    if (!object.is_object() || object.contains("messages") || object.contains("add_generation_prompt")) {
      throw runtime_error(fmt::format("\"{}\" is not an object of variables for the template", name),
                          "write it as {\"variable\": value}, without messages");
    }
    for (const auto& [variable, content] : object.items()) {
      if (!content.is_null()) variables[variable] = content;
    }
  }
  return variables;
}

}  // namespace

bool is_conversation_field(std::string_view name) {
  const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, name) != names.end(); };
  return name == kVariables || is_one_of(kLists) || is_one_of(kRefused);
}

std::string wrong_part(const ordered_json& parts) {
  for (const ordered_json& part : parts) {
    if (!part.is_object()) return "a part that is not an object";
    const ordered_json type = part.value("type", ordered_json());
    if (type.is_string() && type != "text") {
      return fmt::format("a part of the type \"{}\", and only text is supported", type.get<std::string>());
    }
    if (type != "text" || !part.value("text", ordered_json()).is_string()) {
      return "a part without \"type\": \"text\" and a \"text\" that is a string";
    }
    for (const auto& [name, value] : part.items()) {
      if (name != "type" && name != "text" && !is_empty(value)) {
        return fmt::format("a part with \"{}\", which is not supported", name);
      }
    }
  }
  return "";
}

std::string content_text(const ordered_json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) return text;
  if (const std::string wrong = wrong_part(content); !wrong.empty()) {
    throw runtime_error(fmt::format("a message has {}", wrong), kForm);
  }
  for (const ordered_json& part : content) {
    if (&part != &content.front()) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

bool is_field_beside_messages(std::string_view name, const RecordOptions& options) {
  return name != options.messages_field && is_conversation_field(name) &&
         std::ranges::find(options.ignored_fields, name) == options.ignored_fields.end();
}

Conversation parse_conversation(const std::string& messages, const std::string& fields) {
  const ordered_json list = try_parse_json<ordered_json>(messages);
  if (!list.is_array()) throw runtime_error("its messages are not a list", kForm);
  Conversation conversation{.messages = ordered_json::array(), .variables = {}, .learned = {}};
  bool any_reply = false;
  for (const ordered_json& given : list) {
    auto [message, learned] = read_message(given, conversation.messages.size() + 1);
    any_reply |= message["role"] == "assistant";
    conversation.messages.push_back(std::move(message));
    conversation.learned.push_back(learned);
  }
  if (!any_reply) throw runtime_error("no message is the assistant's: there is nothing to learn", kForm);
  if (std::ranges::find(conversation.learned, true) == conversation.learned.end()) {
    throw runtime_error("none of the assistant's messages is to be trained on: there is nothing to learn",
                        "remove the record, or train on one of them");
  }
  conversation.variables = read_fields(fields);
  return conversation;
}

std::string conversation_text(const ordered_json& messages, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const ordered_json& message = messages[i];
    if (i > 0) text += '\n';
    text += content_text(message["content"]);
    for (const char* key : {"reasoning_content", "reasoning", "thinking", "tool_calls"}) {
      const auto found = message.find(key);
      if (found == message.end()) continue;
      text += '\n';
      text += found->is_string() ? found->get<std::string>() : found->dump();
    }
  }
  return text;
}

void take_messages(const std::string& messages, const std::string& fields, Record& record) {
  try {
    const Conversation conversation = parse_conversation(messages, fields);
    record.text = conversation_text(conversation.messages, conversation.messages.size());
    record.messages = messages;
    record.fields = conversation.variables.empty() ? "" : fields;
  } catch (const Error& error) {
    record.fault = error.what();
    record.remedy = error.remedy();
  }
}

}  // namespace nmoe
