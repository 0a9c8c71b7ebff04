#include "layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace nmoe::test {
namespace {

std::string message(const std::string& user_file, const std::string& used, const std::string& user_folder,
                    const std::string& used_folder) {
  return fmt::format("{} uses {}: folder {} may not use folder {}, which stands later in src/CMakeLists.txt", user_file,
                     used, user_folder, used_folder);
}

bool is_source(const fs::path& file) { return file.extension() == ".cpp" || file.extension() == ".cu"; }

}  // namespace

std::vector<std::string> included_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0) continue;
    const size_t open = line.find_first_of("\"<", word + 7);
    if (open == std::string::npos) continue;
    const size_t close = line.find_first_of("\">", open + 1);
    if (close != std::string::npos) names.push_back(line.substr(open + 1, close - open - 1));
  }
  return names;
}

std::vector<CompiledObject> parse_ninja_deps(std::string_view text, const fs::path& build_dir) {
  std::vector<CompiledObject> objects;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) {
      if (!objects.empty()) objects.back().files.push_back((build_dir / line.substr(4)).lexically_normal());
    } else if (const size_t colon = line.find(": #deps"); colon != std::string::npos) {
      objects.push_back({.object = line.substr(0, colon), .files = {}});
    }
  }
  return objects;
}

std::vector<Link> parse_links(std::string_view text) {
  std::vector<Link> links;
  std::istringstream words{std::string(text)};
  for (Link link; words >> link.folder >> link.target >> link.links_to;) links.push_back(link);
  return links;
}

FolderOrder::FolderOrder(fs::path src_dir, std::vector<std::string> folders)
    : src_dir_(std::move(src_dir)), folders_(std::move(folders)) {}

std::string FolderOrder::folder_of(const fs::path& file) const {
  const fs::path inside = file.lexically_relative(src_dir_);
  const bool in_folder = !inside.empty() && *inside.begin() != ".." && inside.has_parent_path();
  return in_folder ? inside.begin()->string() : "";
}

bool FolderOrder::may_use(const std::string& user, const std::string& used) const {
  return user == used || position(used) < position(user);
}

int FolderOrder::position(const std::string& folder) const {
  const auto found = std::find(folders_.begin(), folders_.end(), folder);
  return found == folders_.end() ? -1 : static_cast<int>(found - folders_.begin());
}

std::vector<std::string> upward_includes(const std::vector<CompiledObject>& objects, const FolderOrder& order,
                                         const ReadFile& read) {
  const auto name = [&](const fs::path& file) {
    return file.lexically_relative(order.src_dir().parent_path()).string();
  };
  std::map<fs::path, std::vector<std::string>> includes;  // of each file that was read
  std::set<std::string> violations;                       // many objects read the same headers
  for (const CompiledObject& object : objects) {
    std::set<fs::path> ours;
    fs::path source;
    for (const fs::path& file : object.files) {
      if (source.empty() && is_source(file)) source = file;
      if (!order.folder_of(file).empty()) ours.insert(file);
    }
    bool found = false;
    for (const fs::path& user : ours) {
      const auto [entry, is_new] = includes.try_emplace(user);
      if (is_new) entry->second = included_names(read(user));
      for (const std::string& included : entry->second) {
        fs::path used = (user.parent_path() / included).lexically_normal();
        if (!ours.contains(used)) used = (order.src_dir() / included).lexically_normal();
        if (!ours.contains(used)) continue;  // an outside header, or one that this object's build leaves out
        if (order.may_use(order.folder_of(user), order.folder_of(used))) continue;
        found = true;
        violations.insert(message(name(user), "\"" + included + "\"", order.folder_of(user), order.folder_of(used)));
      }
    }
    // An #include that is spelled in another way, by a macro say, is still in what the compiler read.
    const std::string folder = order.folder_of(source);
    if (folder.empty() || found) continue;
    for (const fs::path& used : ours) {
      if (order.may_use(folder, order.folder_of(used))) continue;
      violations.insert(message(name(source), name(used), folder, order.folder_of(used)));
    }
  }
  return {violations.begin(), violations.end()};
}

std::vector<std::string> upward_links(const std::vector<Link>& links, const FolderOrder& order) {
  std::map<std::string, std::string> folder_of;  // of each library
  for (const Link& link : links) folder_of[link.target] = link.folder;
  std::vector<std::string> violations;
  for (const Link& link : links) {
    const auto used = folder_of.find(link.links_to);
    if (used == folder_of.end() || order.may_use(link.folder, used->second)) continue;
    violations.push_back(message("library " + link.target, "library " + link.links_to, link.folder, used->second));
  }
  return violations;
}

std::vector<std::string> long_files(const std::vector<fs::path>& files, int max_lines, const ReadFile& read) {
  std::vector<std::string> violations;
  for (const fs::path& file : files) {
    const std::string text = read(file);
    const auto lines = std::count(text.begin(), text.end(), '\n');
    if (lines > max_lines)
      violations.push_back(fmt::format("{} has {} lines; at most {}", file.string(), lines, max_lines));
  }
  return violations;
}

std::string one_a_line(const std::vector<std::string>& messages) {
  std::string text;
  for (const std::string& message : messages) text += message + "\n";
  return text;
}

}  // namespace nmoe::test
