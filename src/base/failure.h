// What a user is told of exceptions that are not our own.
#pragma once

#include <exception>

#include "base/error.h"

namespace nmoe {

// An Error as it is. Of others an Error (runtime): that memory is used up (std::bad_alloc, or a system call that says
// so), a path and what is wrong with it, or what the exception says of itself, with a remedy for what is known.
Error as_error(const std::exception& exception);

// Where memory is used up, `what` says for what it was wanted.
Error out_of_memory(const std::string& what);

}  // namespace nmoe
