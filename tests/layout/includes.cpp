#include "layout/includes.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>

namespace nmoe::test {
namespace {

std::string unit_of(const fs::path& file) { return (file.parent_path() / file.stem()).string(); }

bool is_below(const fs::path& file, const fs::path& folder) {
  return std::ranges::mismatch(folder, file).in1 == folder.end();
}

// The strongly connected components of a graph (Tarjan, SIAM J. Comput. 1 (1972) 146), those of one node left out.
class Components {
 public:
  explicit Components(const std::map<std::string, std::set<std::string>>& uses) : uses_(uses) {
    for (const auto& [unit, used] : uses_) {
      if (!number_.contains(unit)) visit(unit);
    }
  }
  const std::vector<std::set<std::string>>& found() const { return found_; }

 private:
  void visit(const std::string& unit) {
    const size_t number = number_[unit] = lowest_[unit] = number_.size();
    const size_t begin = open_.size();
    open_.push_back(unit);
    if (const auto used = uses_.find(unit); used != uses_.end()) {
      for (const std::string& next : used->second) {
        if (!number_.contains(next)) visit(next);
        if (std::ranges::find(open_, next) != open_.end()) lowest_[unit] = std::min(lowest_[unit], lowest_[next]);
      }
    }
    if (lowest_[unit] != number) return;
    std::set<std::string> component(open_.begin() + static_cast<std::ptrdiff_t>(begin), open_.end());
    open_.resize(begin);
    if (component.size() > 1) found_.push_back(std::move(component));
  }

  const std::map<std::string, std::set<std::string>>& uses_;
  std::map<std::string, size_t> number_, lowest_;
  std::vector<std::string> open_;
  std::vector<std::set<std::string>> found_;
};

}  // namespace

std::vector<Include> includes_among(const std::vector<fs::path>& files, const fs::path& src_dir, const ReadFile& read) {
  const std::set<fs::path> known(files.begin(), files.end());
  std::vector<Include> includes;
  for (const fs::path& user : files) {
    for (const std::string& name : included_names(read(user))) {
      fs::path used = (user.parent_path() / name).lexically_normal();
      if (!known.contains(used)) used = (src_dir / name).lexically_normal();
      if (!known.contains(used)) continue;
      includes.push_back({.user = user.lexically_relative(src_dir), .used = used.lexically_relative(src_dir)});
    }
  }
  return includes;
}

std::vector<std::string> circles_of_units(const std::vector<Include>& includes) {
  std::map<std::string, std::set<std::string>> uses;
  for (const Include& include : includes) {
    if (unit_of(include.user) != unit_of(include.used)) uses[unit_of(include.user)].insert(unit_of(include.used));
  }
  std::vector<std::string> messages;
  const Components components(uses);
  for (const std::set<std::string>& circle : components.found()) {
    std::set<std::string> between;
    for (const Include& include : includes) {
      const std::string user = unit_of(include.user), used = unit_of(include.used);
      if (user == used || !circle.contains(user) || !circle.contains(used)) continue;
      between.insert(fmt::format("{} includes {}", include.user.string(), include.used.string()));
    }
    messages.push_back(fmt::format("{} units include each other: {}", circle.size(), fmt::join(between, "; ")));
  }
  return messages;
}

std::vector<std::string> upward_includes(const std::vector<Include>& includes, const FolderOrder& order) {
  std::vector<std::string> messages;
  for (const auto& [user, used] : includes) {
    const std::string user_folder = order.folder_of(order.src_dir() / user),
                      used_folder = order.folder_of(order.src_dir() / used);
    if (!order.may_use(user_folder, used_folder)) {
      messages.push_back(
          fmt::format("{} includes {}, whose folder stands later in src/CMakeLists.txt", user.string(), used.string()));
    }
  }
  return messages;
}

std::vector<std::string> ways_between(const std::vector<Include>& includes, const fs::path& from, const fs::path& to) {
  std::map<fs::path, std::set<fs::path>> uses;
  for (const Include& include : includes) uses[include.user].insert(include.used);
  std::vector<std::string> messages;
  for (const auto& [begin, used_by_it] : uses) {
    if (!is_below(begin, from)) continue;
    std::map<fs::path, fs::path> before = {{begin, {}}};
    std::deque<fs::path> next = {begin};
    for (; !next.empty() && !is_below(next.front(), to); next.pop_front()) {
      for (const fs::path& used : uses[next.front()]) {
        if (before.try_emplace(used, next.front()).second) next.push_back(used);
      }
    }
    if (next.empty()) continue;
    std::string way = next.front().string();
    for (fs::path at = before.at(next.front()); !at.empty(); at = before.at(at)) way = at.string() + " -> " + way;
    messages.push_back(way);
  }
  return messages;
}

}  // namespace nmoe::test
