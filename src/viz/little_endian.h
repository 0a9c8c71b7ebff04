// Numbers as pages read them: x86-64's own bytes.
#pragma once

#include <string>

namespace nmoe {

template <class Number>
void append_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace nmoe
