#include "data/prep/conversation.h"

#include <fmt/format.h>

#include "base/json.h"

namespace nmoe {

using nlohmann::ordered_json;

void take_messages(const std::string& json, Record& record) {
  constexpr const char* kForm = R"(write each message as {"role": "user" | "assistant" | "system", "content": "text"})";
  const ordered_json messages = try_parse_json<ordered_json>(json);
  const auto fail = [&](const std::string& fault) {
    record.text.clear();
    record.fault = fault;
    record.remedy = kForm;
  };
  if (!messages.is_array()) return fail("its messages are no list");
  bool any_assistant = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    for (const char* key : {"role", "content"}) {
      const bool good = message.is_object() && message.contains(key) && message[key].is_string();
      if (!good) return fail(fmt::format("message {} has no \"{}\" that is a string", i + 1, key));
    }
    any_assistant |= message["role"] == "assistant";
    if (i > 0) record.text += '\n';
    record.text += message["content"].get_ref<const std::string&>();
  }
  if (!any_assistant) return fail("no message is the assistant's: there is nothing to learn");
  record.messages = json;
}

}  // namespace nmoe
