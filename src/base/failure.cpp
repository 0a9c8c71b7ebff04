#include "base/failure.h"

#include <filesystem>
#include <new>
#include <system_error>

namespace nmoe {

Error out_of_memory(const std::string& what) {
  return runtime_error(
      "memory is used up: " + what,
      "end other programs, raise the limit (ulimit -v, a container's or a job's memory), or ask for less: a smaller "
      "batch or context, fewer threads; n plan says what training needs");
}

Error as_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return out_of_memory("the system gives no more");
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system != nullptr && system->code() == std::errc::not_enough_memory) return out_of_memory(system->what());
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&exception) != nullptr) {
    return runtime_error(exception.what(), "check the path, its permissions, and that its disk is not full");
  }
  return runtime_error(exception.what(), "none is known; please report it");
}

}  // namespace nmoe
