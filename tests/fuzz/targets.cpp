#include "fuzz/targets.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "chat/chat_template.h"
#include "chat/checkpoint_settings.h"
#include "chat/conversation_encoder.h"
#include "chat/jinja/template.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "cli/command_line.h"
#include "config/load.h"
#include "data/prep/messages.h"
#include "data/prep/records.h"
#include "data/shards/dataset.h"
#include "data/shards/manifest.h"
#include "data/shards/shard.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_splitter.h"
#include "eval/task.h"
#include "eval/task_data.h"
#include "hf/config_json.h"
#include "serve/api_error.h"
#include "serve/api_request.h"
#include "serve/http_server.h"
#include "serve/raw_client.h"
#include "track/record.h"

namespace nmoe::fuzz {
namespace {

// For what is read from files: of this process, in memory.
const fs::path& folder() {
  static const struct Folder {
    Folder() {
      std::string name = "/dev/shm/nmoe-fuzz-XXXXXX";
      NMOE_CHECK(::mkdtemp(name.data()) != nullptr, "mkdtemp {}", name);
      path = name;
    }
    ~Folder() { fs::remove_all(path); }
    fs::path path;
  } made;
  return made.path;
}

void put(const fs::path& path, std::string_view bytes) {
  FileWriter file(path);
  file.write(bytes.data(), bytes.size());
  file.close();
}

fs::path file_of(std::string_view bytes, std::string_view suffix) {
  const fs::path path = folder() / fmt::format("input{}", suffix);
  put(path, bytes);
  return path;
}

// Runs what may refuse what it is given, in the way of the program.
template <class Read>
void refuses(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    NMOE_CHECK(error.exit_code() == 1 || error.exit_code() == 2, "exit code {}", error.exit_code());
  }
}

void json(std::string_view bytes) {
  const nlohmann::ordered_json value = try_parse_json<nlohmann::ordered_json>(bytes);
  if (!value.is_discarded()) value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Behind a byte 0: changes, one a line, as --set makes them.
void toml(std::string_view bytes) {
  std::vector<std::string> overrides;
  std::istringstream lines(std::string(bytes.substr(std::min(bytes.find('\0'), bytes.size() - 1) + 1)));
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  parse_config(bytes.substr(0, bytes.find('\0')), "fuzz.toml", overrides);
}

// The hash is mended, so that what is behind it is reached.
void checkpoint_manifest(std::string_view bytes) {
  nlohmann::json manifest = try_parse_json<nlohmann::json>(bytes);
  if (manifest.is_object()) {
    manifest.erase("manifest_sha256");
    const auto text = [&] { return manifest.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); };
    manifest["manifest_sha256"] = sha256_hex(text());
    parse_manifest(text(), fs::path("manifest.json"));
  }
  parse_manifest(bytes, fs::path("manifest.json"));
}

void shard_manifest(std::string_view bytes) { parse_dataset_manifest(std::string(bytes), fs::path("manifest.json")); }

void safetensors(std::string_view bytes) {
  const SafetensorsFile file(file_of(bytes, ".safetensors"));
  for (const SafetensorsFile::Entry& entry : file.entries()) file.bytes(entry);
}

void npy(std::string_view bytes) {
  const fs::path path = file_of(bytes, ".npy");
  refuses([&] {
    const MaskReader mask(path);
    std::vector<uint8_t> entries(static_cast<size_t>(mask.num_tokens()));
    mask.read(0, entries);
  });
  const ShardReader shard(path);
  std::vector<int32_t> ids(static_cast<size_t>(shard.num_tokens()));
  shard.read(0, ids, /*vocab_size=*/257);
}

// The index of a dataset that is whole otherwise.
void idx(std::string_view bytes) {
  static const fs::path index = [] {
    const fs::path split = folder() / "split";
    SplitWriter writer(split, {.dataset = "fuzz",
                               .tokenizer = "bytes",
                               .tokenizer_hash = byte_tokenizer()->hash(),
                               .vocab_size = 257,
                               .eos_id = 256});
    writer.add_document(std::vector<int32_t>{1, 2, 3}, 3, "a");
    writer.add_document(std::vector<int32_t>{4}, 1, "b");
    writer.close();
    return split / writer.commit().shards.front().index_path;
  }();
  put(index, bytes);
  const TokenDataset dataset(index.parent_path());
  refuses([&] { dataset.documents(0); });
  dataset.verify();
}

void tokenizer(std::string_view bytes) {
  const auto made = make_bpe_tokenizer(bpe_from_json(bytes, "tokenizer.json"));
  std::vector<int32_t> ids;
  made->encode("The quick brown fox, 12345 times.\n  <|endoftext|>\xff", ids);
}

// A pattern, and behind a byte 0 the text that it cuts. Words are what the text has, in its order.
void split_pattern(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view text = bytes.substr(std::min(end + 1, bytes.size()));
  for (const SplitBehavior behavior : {SplitBehavior::kIsolated, SplitBehavior::kMergedWithNext}) {
    const std::vector<Split> splits = {{std::string(bytes.substr(0, end)), behavior}};
    const WordSplitter splitter(splits);
    WordCursor cursor(splitter, text);
    std::string words;
    for (std::string_view word; cursor.next(word);) {
      NMOE_CHECK(!word.empty(), "an empty word");
      words += word;
    }
    NMOE_CHECK(words == text, "the words are not the text");
  }
}

void ranks(std::string_view bytes) { bpe_from_tiktoken(bytes, "gpt2.tiktoken", "gpt2"); }

void config_json(std::string_view bytes) { from_config_json(bytes, "config.json"); }

void records_of(std::string_view bytes, std::string_view suffix, const RecordOptions& options) {
  const auto reader = open_records(file_of(bytes, suffix), options);
  Record record;
  for (int i = 0; i < 1000 && reader->next(record); ++i) continue;
}
void json_lines(std::string_view bytes) {
  records_of(bytes, ".jsonl", {.max_bytes = 1 << 20});
  records_of(bytes, ".json", {.messages_field = "messages", .max_bytes = 1 << 20});
}
void parquet(std::string_view bytes) {
  records_of(bytes, ".parquet", {.text_field = "text", .id_field = "id", .max_bytes = 1 << 20});
  records_of(bytes, ".parquet", {.messages_field = "messages", .max_bytes = 1 << 20});
}
void gzip(std::string_view bytes) { records_of(bytes, ".txt.gz", {.max_bytes = 1 << 20}); }
void zstd(std::string_view bytes) { records_of(bytes, ".txt.zst", {.max_bytes = 1 << 20}); }

void jinja(std::string_view bytes) {
  const nlohmann::ordered_json data = {
      {"messages", {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "x'\"\\\n"}}}},
      {"add_generation_prompt", true}};
  JinjaTemplate(bytes, "fuzz.jinja").render(data, {{"eos_token", "<|end|>"}});
}

void api_request(std::string_view bytes) {
  for (const auto parse : {parse_completion_request, parse_chat_request}) {
    try {
      parse(std::string(bytes), {});
    } catch (const ApiError& error) {
      error.json();
    }
  }
}

// What a person or a client says to a model: as text, or, where it is JSON, as messages of a conversation. Nothing in
// it is a special token, however it is written.
void chat(std::string_view bytes) {
  static const std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  static const std::string form = [] {
    const fs::path path = folder() / "chat.jinja";
    put(path,
        "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|endoftext|>assistant:{% endif %}");
    return path.string();
  }();
  static const ChatTemplate chat_template({}, form, *tokenizer);
  static const auto encoder = make_conversation_encoder({.chat_template = form}, tokenizer);
  auto messages = try_parse_json<nlohmann::ordered_json>(bytes);
  if (!messages.is_array()) {
    const nlohmann::ordered_json said = {{"role", "user"}, {"content", bytes}};
    messages = nlohmann::ordered_json::array({said});
  }
  refuses([&] {
    const auto ids =
        encode_rendered(chat_template.render(messages, true, nlohmann::ordered_json::object()), *tokenizer);
    NMOE_CHECK(std::ranges::count(ids, tokenizer->eos_id()) == std::ssize(messages) + 1, "a message made a mark");
  });
  Record record;
  take_messages(messages.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "", record);
  if (record.fault.empty()) refuses([&] { encoder->encode(record.messages, record.fields); });
}

// A chat template, and behind a byte 0 the messages of a conversation that it makes a document to train on.
void conversation(std::string_view bytes) {
  static const std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const fs::path form = file_of(bytes.substr(0, end), ".jinja");
  const auto encoder = make_conversation_encoder({.chat_template = form.string()}, tokenizer);
  std::string messages(bytes.substr(std::min(end + 1, bytes.size())));
  if (messages.empty()) {
    messages = R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo"},)"
               R"({"role":"user","content":"more"},{"role":"assistant","content":"end"}])";
  }
  for (const EncodedDocument& document : encoder->encode(messages, "")) {
    NMOE_CHECK(document.ids.size() == document.mask.size(), "{} ids and {} marks", document.ids.size(),
               document.mask.size());
  }
}

// The files beside an imported model: tokenizer_config.json, and behind bytes 0 generation_config.json, tokenizer.json.
void model_settings(std::string_view bytes) {
  static const std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  const fs::path model = folder() / "model";
  fs::create_directory(model);
  for (const char* name : {"tokenizer_config.json", "generation_config.json", "tokenizer.json"}) {
    const size_t end = std::min(bytes.find('\0'), bytes.size());
    put(model / name, bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  read_model_settings(model, *tokenizer);
}

// What a rank has measured, as whoever watches the run reads it: as it is, and as the body of a record whose size and
// checksum are right.
void metric_record(std::string_view bytes) {
  const auto take = [](const MetricRecord& record, size_t) { encode_record(record); };
  decode_records(bytes, take);
  std::string frame(2 * sizeof(uint32_t), '\0');
  const std::array head = {static_cast<uint32_t>(bytes.size()), crc32c(bytes)};
  std::memcpy(frame.data(), head.data(), frame.size());
  decode_records(frame.append(bytes), take);
}

// A suite of tasks, and behind a byte 0 the rows of each.
void task_suite(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const TaskSuite suite = parse_task_suite(bytes.substr(0, end), "fuzz.toml");
  const fs::path rows = file_of(bytes.substr(std::min(end + 1, bytes.size())), ".jsonl");
  for (Task task : suite.tasks) {
    if (task.kind == TaskKind::kText) continue;
    task.file = rows.filename();
    if (!task.shots_file.empty()) task.shots_file = task.file;
    refuses([&] {
      const TaskData data(task, rows.parent_path(), /*limit=*/20);
      for (int64_t i = 0; i < data.size(); ++i) data.texts_of(i);
    });
  }
}

// Words of a command line, one a line. What they ask for is not done.
void arguments(std::string_view bytes) {
  std::vector<std::string> words = {"n"};
  std::istringstream lines{std::string(bytes)};
  for (std::string line; std::getline(lines, line);) words.push_back(line);
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  cli::CommandLine().parse(static_cast<int>(pointers.size()), pointers.data());
}

// Everything that a client sends on one connection; the first byte says in pieces of which size.
void http(std::string_view bytes) {
  class Handler : public HttpHandler {
   public:
    std::optional<HttpReply> on_head(const HttpRequest& request) override {
      if (request.method != "GET" || !request.header("answer").empty()) return std::nullopt;
      std::string body = request.path;
      for (const std::string& value : request.parameters("a")) body += value;
      return text(200, body);
    }
    void on_request(const HttpRequest& request, HttpAnswer& answer) override {
      if (request.count("stream") == 0) return answer.send(text(200, request.body));
      answer.begin(text(200, ""));
      answer.write(request.body);
      answer.end();
    }
    HttpReply refusal(int status, const std::string& message) override { return text(status, message); }
    void log(const HttpLogEntry&) override {}

   private:
    static HttpReply text(int status, std::string body) {
      return {.status = status, .type = "text/plain", .body = std::move(body), .headers = {}, .note = {}};
    }
  };
  static Handler handler;
  static HttpServer server(handler, "127.0.0.1", 0, {.max_body = 10000, .timeout = std::chrono::seconds(5)}, 1);
  static const bool started = (server.start(), true);
  NMOE_CHECK(started, "the server");
  if (bytes.empty()) return;
  const size_t piece = 1 + static_cast<size_t>(static_cast<unsigned char>(bytes.front())) * 16;
  const RawClient client(server.port());
  for (size_t at = 1; at < bytes.size() && client.send(bytes.substr(at, piece)); at += piece) continue;
  client.finish();
  const auto begin = std::chrono::steady_clock::now();
  client.read();
  NMOE_CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(4), "a connection that nobody ends");
}

template <void (*read)(std::string_view)>
void target(std::string_view bytes) {
  refuses([&] { read(bytes); });
}

constexpr std::array kTargets = {
    Target{"json", target<json>},
    Target{"toml", target<toml>},
    Target{"checkpoint_manifest", target<checkpoint_manifest>},
    Target{"shard_manifest", target<shard_manifest>},
    Target{"safetensors", target<safetensors>},
    Target{"npy", target<npy>},
    Target{"idx", target<idx>},
    Target{"tokenizer", target<tokenizer>},
    Target{"split_pattern", target<split_pattern>},
    Target{"ranks", target<ranks>},
    Target{"config_json", target<config_json>},
    Target{"json_lines", target<json_lines>},
    Target{"parquet", target<parquet>},
    Target{"gzip", target<gzip>},
    Target{"zstd", target<zstd>},
    Target{"jinja", target<jinja>},
    Target{"chat", target<chat>},
    Target{"conversation", target<conversation>},
    Target{"model_settings", target<model_settings>},
    Target{"metric_record", target<metric_record>},
    Target{"task_suite", target<task_suite>},
    Target{"api_request", target<api_request>},
    Target{"http", target<http>},
    Target{"arguments", target<arguments>},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  const auto* const found = std::ranges::find(kTargets, name, &Target::name);
  return found == kTargets.end() ? nullptr : found;
}

}  // namespace nmoe::fuzz
