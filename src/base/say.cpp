#include "base/say.h"

#include <cstdio>

namespace nmoe {

void write_to_standard_error(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);  // the disk may have room again
}

}  // namespace nmoe
