// Every tag that a run records, with its unit and meaning.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace nmoe {

struct TagInfo {
  // Of tags: LL stands for a layer, RR for a rank, GG for a GPU, SOURCE for a source of data, TASK and SUITE for what
  // is evaluated, OPERAND for a part of a layer and which operand or output.
  std::string_view pattern;
  std::string_view unit;  // "" of a plain number
  bool is_array = false;
  std::string_view meaning;
};

// By group, as documented.
std::span<const TagInfo> tag_catalogue();

// The entry of a tag such as "router/layer_03/cv"; null of one that is not there.
const TagInfo* find_tag(std::string_view tag);

// Markdown: every tag. docs/metrics.md is this.
std::string tag_reference();

}  // namespace nmoe
