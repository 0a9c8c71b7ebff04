#include "data/prep/journal.h"

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace nmoe {

NLOHMANN_JSON_SERIALIZE_ENUM(PrepState::Phase, {{PrepState::Phase::kWriting, "writing"},
                                                {PrepState::Phase::kClosed, "closed"},
                                                {PrepState::Phase::kPlacing, "placing"}})

namespace {

using nlohmann::ordered_json;

ordered_json settings_json(const PrepSettings& settings) {
  auto json = ordered_json::object();
  for (const auto& [name, value] : settings) json[name] = value;
  return json;
}

void check_settings(const ordered_json& old, const PrepSettings& settings, const fs::path& path) {
  for (const auto& [name, value] : settings) {
    const std::string was = old.value(name, "");
    if (was == value) continue;
    throw usage_error(fmt::format("'{}' is an unfinished preparation with another {}: \"{}\", now \"{}\"",
                                  path.parent_path().string(), name, was, value),
                      "give the same options to go on with it, or --force to begin anew");
  }
}

PrepState state_from(const ordered_json& root, const fs::path& path) {
  PrepState state;
  const auto count = [](const ordered_json& object, const char* key) {
    const auto number = integer_of<int64_t>(object.at(key));
    if (number < 0) throw JsonError(fmt::format("{} is {}", key, number));
    return number;
  };
  state.phase = root.at("phase").get<PrepState::Phase>();
  state.file = count(root, "file");
  state.record = count(root, "record");
  state.input_bytes = count(root, "input_bytes");
  state.records = count(root, "records");
  for (const auto& [reason, counts] : root.at("dropped").items()) {
    state.dropped[reason] = {count(counts, "records"), count(counts, "bytes")};
  }
  if (const auto by_reply = root.find("by_reply"); by_reply != root.end()) {  // journals of before have none
    state.by_reply = {count(*by_reply, "records"), count(*by_reply, "documents")};
  }
  for (const ordered_json& bad : root.at("bad")) {
    state.bad.push_back({bad.at("place").get<std::string>(), bad.at("reason").get<std::string>()});
  }
  state.dropped_file_bytes = static_cast<uint64_t>(count(root, "dropped_file_bytes"));
  state.digest_file_bytes = static_cast<uint64_t>(count(root, "digest_file_bytes"));
  state.signature_file_bytes = static_cast<uint64_t>(count(root, "signature_file_bytes"));
  state.train = parse_dataset_manifest(root.at("train").dump(), path);
  if (root.contains("valid")) state.valid = parse_dataset_manifest(root.at("valid").dump(), path);
  return state;
}

}  // namespace

void write_journal(const fs::path& path, const PrepSettings& settings, const PrepState& state) {
  auto dropped = ordered_json::object();
  for (const auto& [reason, count] : state.dropped) {
    dropped[reason] = {{"records", count.records}, {"bytes", count.bytes}};
  }
  auto bad = ordered_json::array();
  for (const BadRecord& record : state.bad) bad.push_back({{"place", record.place}, {"reason", record.reason}});
  ordered_json root = {{"settings", settings_json(settings)},
                       {"phase", state.phase},
                       {"file", state.file},
                       {"record", state.record},
                       {"input_bytes", state.input_bytes},
                       {"records", state.records},
                       {"dropped", std::move(dropped)},
                       {"by_reply", {{"records", state.by_reply.records}, {"documents", state.by_reply.documents}}},
                       {"bad", std::move(bad)},
                       {"dropped_file_bytes", state.dropped_file_bytes},
                       {"digest_file_bytes", state.digest_file_bytes},
                       {"signature_file_bytes", state.signature_file_bytes},
                       {"train", parse_json<ordered_json>(manifest_text(state.train))}};
  if (state.valid) root["valid"] = parse_json<ordered_json>(manifest_text(*state.valid));
  write_file_atomically(path, json_text(root, 2) + '\n');
}

std::optional<PrepState> read_journal(const fs::path& path, const PrepSettings& settings, bool force) {
  if (!fs::exists(path)) return std::nullopt;
  const auto refuse = [&](const std::exception& error) {
    return runtime_error(fmt::format("'{}' is not a journal of a preparation: {}", path.string(), error.what()),
                         "begin anew with --force");
  };
  try {
    const ordered_json root = parse_json<ordered_json>(read_file(path));
    check_settings(root.at("settings"), settings, path);
    return state_from(root, path);
  } catch (const ordered_json::exception& error) {
    if (force) return std::nullopt;
    throw refuse(error);
  } catch (const JsonError& error) {
    if (force) return std::nullopt;
    throw refuse(error);
  } catch (const Error&) {
    if (force) return std::nullopt;
    throw;
  }
}

}  // namespace nmoe
