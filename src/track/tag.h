// Tags of metrics whose patterns have placeholders (base/metric.h), and back.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/metric.h"

namespace nmoe {

// What stands in the place of a placeholder: a number, of two digits or more, or a name.
class TagPart {
 public:
  TagPart(std::integral auto number) : TagPart(static_cast<int64_t>(number)) {}
  TagPart(int64_t number);
  TagPart(const std::convertible_to<std::string_view> auto& name) : text_(std::string_view(name)) {}
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// "router/layer_03/cv" of the pattern "router/layer_LL/cv" and 3: with a part for each placeholder, in their order.
std::string tag_of(const Metric& metric, std::initializer_list<TagPart> parts);

// "03" of that pattern and that tag: what stands in the places of placeholders; nothing if the tag is not the metric's.
// A SUITE's name has no '/', those of a SOURCE or a TASK may.
std::optional<std::vector<std::string_view>> parts_of(const Metric& metric, std::string_view tag);

// The first placeholder's number, of a metric that begins with one: 3.
std::optional<int64_t> number_of(const Metric& metric, std::string_view tag);

// That of one source of a metric of all sources together: "valid/code/loss" of "valid/loss".
std::string tag_of_source(const Metric& of_all, std::string_view source);

// "router": what a tag or pattern begins with.
constexpr std::string_view group_of(std::string_view tag) { return tag.substr(0, tag.find('/')); }
constexpr std::string_view group_of(const Metric& metric) { return group_of(metric.tag); }

// "cv": what a tag or pattern ends with.
std::string_view name_of(std::string_view tag);
inline std::string_view name_of(const Metric& metric) { return name_of(metric.tag); }

}  // namespace nmoe
