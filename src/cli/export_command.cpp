#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "chat/chat_template.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "cli/standard_output.h"

namespace nmoe::cli {
namespace {

bool has_chatml_marks(const Tokenizer& tokenizer) {
  return std::ranges::all_of(kChatMlMarks,
                             [&](std::string_view mark) { return tokenizer.special_id(mark).has_value(); });
}

// `choice` as ChatTemplate takes it; "": the form in which n chat would talk to the model, the checkpoint's own
// template or ChatML where its tokenizer has the marks. Of a model that was not trained here, or whose template is none
// that nmoe reads, the files it came with say all.
ConversationForm form_of(const fs::path& checkpoint, const std::string& choice) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  if (choice.empty() && (reader.tokenizer_json().empty() || reader.info().step == 0)) return {};
  if (reader.tokenizer_json().empty()) {
    throw usage_error("the checkpoint has no tokenizer, and so no conversations", "leave --chat-template out");
  }
  const std::shared_ptr<const Tokenizer> tokenizer = reader.tokenizer();
  const CheckpointSettings settings = read_checkpoint_settings(reader.path(), *tokenizer);
  if (choice.empty() && settings.chat_template.empty() && !has_chatml_marks(*tokenizer)) return {};
  try {
    const ChatTemplate chat(settings, choice, *tokenizer);
    ConversationForm form{.chat_template = chat.source(), .stop_ids = settings.stop_ids};
    if (const auto end = chat.end_of_turn(*tokenizer)) form.stop_ids.push_back(*end);
    return form;
  } catch (const Error& error) {
    if (!choice.empty()) throw;
    print("the chat template is left as it is: {}\n", error.what());
    return {};
  }
}

}  // namespace

void export_command(const ExportArguments& arguments) {
  ExportOptions options = arguments.options;
  options.conversations = form_of(options.checkpoint, arguments.chat_template);
  const ExportReport report = export_model(options);
  print("{} as {}: {} tensors in {} ({}), read back and equal\n", report.checkpoint.string(),
        model_type_name(report.type), report.num_tensors,
        report.num_files == 1 ? "1 file" : fmt::format("{} files", report.num_files), human_bytes(report.num_bytes));
  if (const int64_t quantised = report.num_unchanged + report.num_changed; quantised > 0) {
    print("{} of {} quantised tensors are the bytes that were imported, {} quantised anew\n", report.num_unchanged,
          quantised, report.num_changed);
  }
  if (report.num_carried > 0) print("{} of them are as they were imported\n", report.num_carried);
  if (!report.has_tokenizer) print("no tokenizer.json: the checkpoint has none in Hugging Face's format\n");
}

}  // namespace nmoe::cli
