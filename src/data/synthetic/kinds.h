// The kinds of synthetic sources, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/synthetic/source.h"

namespace nmoe {

// "cfg", "khop", "arithmetic".
std::vector<std::string> synthetic_kinds();

// `settings` are "key=value" with the keys of the kind: data/synthetic/{grammar_source,khop,arithmetic}.h. The seed
// decides the documents, and for "cfg" the grammar. Error (usage) on an unknown kind or key and on a value out of
// range, naming it.
std::unique_ptr<SyntheticSource> make_synthetic_source(std::string_view kind, uint64_t seed,
                                                       std::span<const std::string> settings);

}  // namespace nmoe
