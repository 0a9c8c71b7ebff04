// The files that a Hugging Face model's folder has beside its weights, known by name.
#pragma once

#include <string_view>

namespace nmoe {

// Whether a checkpoint made from such a folder carries the file `name` along for an export: all but weights, in
// whatever format, and what a repository keeps for itself.
bool is_carried_by_import(std::string_view name);

// Whether the file `name` belongs to the model's tokenizer, or speaks of its ids. With another tokenizer it means
// nothing.
bool is_tokenizer_file(std::string_view name);

}  // namespace nmoe
