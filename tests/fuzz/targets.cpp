#include "fuzz/targets.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "chat/jinja/template.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "config/load.h"
#include "data/prep/records.h"
#include "data/shards/manifest.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer_json.h"
#include "hf/config_json.h"
#include "serve/api_error.h"
#include "serve/api_request.h"

namespace nmoe::fuzz {
namespace {

// For what is read from files: one of this process, in memory.
fs::path file_of(std::string_view bytes, std::string_view suffix) {
  static const fs::path folder = [] {
    std::string name = "/dev/shm/nmoe-fuzz-XXXXXX";
    NMOE_CHECK(::mkdtemp(name.data()) != nullptr, "mkdtemp {}", name);
    return fs::path(name);
  }();
  static const struct Remove {
    ~Remove() { fs::remove_all(folder); }
  } remove;
  const fs::path path = folder / fmt::format("input{}", suffix);
  FileWriter file(path);
  file.write(bytes.data(), bytes.size());
  file.close();
  return path;
}

void json(std::string_view bytes) {
  const nlohmann::ordered_json value = try_parse_json<nlohmann::ordered_json>(bytes);
  if (!value.is_discarded()) value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void toml(std::string_view bytes) { parse_config(bytes, "fuzz.toml"); }

// The hash is mended, so that what is behind it is reached.
void checkpoint_manifest(std::string_view bytes) {
  nlohmann::json manifest = try_parse_json<nlohmann::json>(bytes);
  if (manifest.is_object()) {
    manifest.erase("manifest_sha256");
    const auto text = [&] { return manifest.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); };
    manifest["manifest_sha256"] = sha256_hex(text());
    parse_manifest(std::string_view(text()), fs::path("manifest.json"));
  }
  parse_manifest(bytes, fs::path("manifest.json"));
}

void shard_manifest(std::string_view bytes) { parse_manifest(std::string(bytes), fs::path("manifest.json")); }

void safetensors(std::string_view bytes) {
  const SafetensorsFile file(file_of(bytes, ".safetensors"));
  for (const SafetensorsFile::Entry& entry : file.entries()) file.bytes(entry);
}

void npy(std::string_view bytes) { const ShardReader shard(file_of(bytes, ".npy")); }

void tokenizer(std::string_view bytes) {
  const auto made = make_bpe_tokenizer(bpe_from_json(bytes, "tokenizer.json"));
  std::vector<int32_t> ids;
  made->encode("The quick brown fox, 12345 times.\n  <|endoftext|>\xff", ids);
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

template <void (*read)(std::string_view)>
void refuses(std::string_view bytes) {
  try {
    read(bytes);
  } catch (const Error& error) {
    NMOE_CHECK(error.exit_code() == 1 || error.exit_code() == 2, "exit code {}", error.exit_code());
  }
}

constexpr std::array kTargets = {
    Target{"json", refuses<json>},
    Target{"toml", refuses<toml>},
    Target{"checkpoint_manifest", refuses<checkpoint_manifest>},
    Target{"shard_manifest", refuses<shard_manifest>},
    Target{"safetensors", refuses<safetensors>},
    Target{"npy", refuses<npy>},
    Target{"tokenizer", refuses<tokenizer>},
    Target{"ranks", refuses<ranks>},
    Target{"config_json", refuses<config_json>},
    Target{"json_lines", refuses<json_lines>},
    Target{"gzip", refuses<gzip>},
    Target{"zstd", refuses<zstd>},
    Target{"jinja", refuses<jinja>},
    Target{"api_request", refuses<api_request>},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  const auto* const found = std::ranges::find(kTargets, name, &Target::name);
  return found == kTargets.end() ? nullptr : found;
}

}  // namespace nmoe::fuzz
