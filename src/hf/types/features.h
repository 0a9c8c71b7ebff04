// What models of other types have that nmoe does not, by name. Private to hf/.
#pragma once

#include <string_view>

namespace nmoe {

// What a key of a config.json asks for, to be told of a file that cannot be read: "layers of Mamba-2"; "" where its
// name says it, or it is not known.
std::string_view feature_of_key(std::string_view key);

// What a type that nmoe does not read needs beside what nmoe has; "" of an unknown one.
std::string_view features_of_type(std::string_view model_type);

}  // namespace nmoe
