#include "viz/run_cache.h"

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace nmoe {

// A value is a step, a time and itself; what is kept over them is small beside that.
int64_t RunCache::Entry::bytes() const {
  int64_t bytes = time.bytes();
  for (const std::string& tag : loaded) {
    bytes += static_cast<int64_t>(metrics.series(tag).size() * 3 * sizeof(int64_t));
    const ArraySeries& arrays = metrics.arrays(tag);
    if (arrays.size() == 0) continue;
    const size_t row = 2 * sizeof(int64_t) + sizeof(arrays.rows()[0]) + arrays.rows()[0].size() * sizeof(float);
    bytes += static_cast<int64_t>(arrays.size() * row);
  }
  return bytes;
}

std::shared_ptr<RunCache::Entry> RunCache::entry_of(const Key& key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = places_.find(key); found != places_.end()) {
      found->second.used = ++clock_;
      return found->second.entry;
    }
  }
  auto made = std::make_shared<Entry>(metrics_path(run_dir_, key.first, key.second));
  const std::lock_guard lock(mutex_);
  Place& place = places_.try_emplace(key).first->second;
  if (place.entry == nullptr) place.entry = std::move(made);  // two may have asked at once
  place.used = ++clock_;
  return place.entry;
}

void RunCache::set_bytes(const Key& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = places_.find(key); found != places_.end()) found->second.bytes = bytes;
}

void RunCache::drop_oldest(const Key& kept) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    int64_t bytes = 0;
    for (const auto& [key, place] : places_) bytes += place.bytes;
    if (bytes <= max_bytes_) return;
    auto oldest = places_.end();
    for (auto at = places_.begin(); at != places_.end(); ++at) {
      if (at->first != kept && (oldest == places_.end() || at->second.used < oldest->second.used)) oldest = at;
    }
    if (oldest == places_.end()) return;
    places_.erase(oldest);
  }
}

void RunCache::look(const std::string& run, int64_t rank, std::span<const std::string> tags, const Look& look) {
  const Key key(run, rank);
  const std::shared_ptr<Entry> entry = entry_of(key);
  {
    const std::lock_guard lock_wanted(entry->wanted_mutex);
    entry->wanted.insert(tags.begin(), tags.end());
  }
  {
    const std::lock_guard lock(entry->mutex);
    std::set<std::string> wanted(tags.begin(), tags.end());
    {
      const std::lock_guard lock_wanted(entry->wanted_mutex);
      wanted.merge(entry->wanted);
      entry->wanted.clear();
    }
    std::erase_if(wanted,
                  [&](const std::string& tag) { return !entry->metrics.has(tag) || entry->loaded.contains(tag); });
    if (!wanted.empty()) {
      entry->metrics.load(std::vector<std::string>(wanted.begin(), wanted.end()));
      entry->loaded.merge(wanted);
      set_bytes(key, entry->bytes());
    }
    look(entry->metrics, entry->time);
  }
  drop_oldest(key);
}

std::vector<RunCache::Key> RunCache::poll() {
  std::vector<std::pair<Key, std::shared_ptr<Entry>>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, place] : places_) all.emplace_back(key, place.entry);
  }
  std::vector<Key> changed;
  for (const auto& [key, entry] : all) {
    // One that is being read for somebody is looked after next time: no run waits for another.
    const std::unique_lock lock(entry->mutex, std::try_to_lock);
    if (!lock.owns_lock()) continue;
    try {
      const MetricsReader::Change change = entry->metrics.poll();
      if (!change.values) continue;
      if (change.reloaded) entry->time.clear();
      // A tag that was recorded behind the step gone on from only is not there, until it is recorded again.
      if (change.reloaded) std::erase_if(entry->loaded, [&](const auto& tag) { return !entry->metrics.has(tag); });
      set_bytes(key, entry->bytes());
    } catch (const std::exception&) {
      // Its files have been removed, say, or a program keeps them. Who asks for it next is told.
      const std::lock_guard lock_places(mutex_);
      places_.erase(key);
    }
    changed.push_back(key);
  }
  return changed;
}

}  // namespace nmoe
